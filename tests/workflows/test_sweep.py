"""`fedalc.sweep` and `fedalc sweep`: validation decides, the test set is used once, and interrupted sweeps go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.config.experiment import Experiment
from fedalc.errors import ConfigError, FedalcError, Interrupted
from fedalc.report.sweep_figures import plot_sweep
from fedalc.training.callbacks import Callback
from fedalc.workflows.search_space import Space, parse_grid, point_name
from tests.commands import run
from tests.problems import StopAfter, small_dataset, small_files

ENCODER = {"name": "linear", "dim": 4}
RIDGES = [0.1, 1, 10]


class Counting(Callback):
    def __init__(self) -> None:
        self.trained: list[Experiment] = []

    def started(self, settings: Experiment) -> None:
        self.trained.append(settings)


def swept(folder: Path, ridges: list[float] = RIDGES, **keys: Any) -> fedalc.Sweep:
    keys = {"dataset": small_dataset(instances=120), "method": "fedalc-oneshot", "encoder": ENCODER, **keys}
    return fedalc.sweep({"server.ridge": ridges}, folder=folder, **keys)


def test_the_best_by_validation_is_trained_and_tested(tmp_path: Path, draw: Callable[..., None]) -> None:
    draw("fedalc.report.sweep_figures.plot_sweep")
    data = small_dataset(instances=120)
    done = swept(tmp_path / "sweep", dataset=data)
    by_hand = {}
    for ridge in RIDGES:
        settings = {"method": "fedalc-oneshot", "encoder": ENCODER, "server": {"ridge": ridge}}
        by_hand[ridge] = fedalc.train(data=data, selection={"refit": False}, **settings)
    values = {ridge: one.result["selection"]["value"] for ridge, one in by_hand.items()}
    assert {trial.settings["server.ridge"]: trial.value for trial in done.trials} == values
    assert [trial.value for trial in done.trials] == sorted(values.values(), reverse=True)
    assert done.best["server.ridge"] == max(values, key=lambda ridge: values[ridge])
    again = fedalc.train(
        data=data, method="fedalc-oneshot", encoder=ENCODER, server={"ridge": done.best["server.ridge"]}
    )
    assert done.run.metrics == again.metrics and done.run.result["rounds"] == 1
    assert done.run.settings.selection.refit
    saved = json.loads((tmp_path / "sweep" / "sweep.json").read_text(encoding="utf-8"))
    assert saved["judged_on"] == "validation data" and saved["test"] == done.run.metrics
    table = (tmp_path / "sweep" / "table.md").read_text(encoding="utf-8")
    assert "validation nDCG@5" in table and "no trial saw the test set" in table
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_no_trial_sees_the_test_set(tmp_path: Path) -> None:
    data = small_dataset(instances=120)
    other = replace(data, test=data.test.rows(np.arange(5)))
    one, two = swept(tmp_path / "one", dataset=data), swept(tmp_path / "two", dataset=other)
    assert [trial.value for trial in one.trials] == [trial.value for trial in two.trials]
    for trial in one.trials:
        assert fedalc.load_run(trial.folder).metrics == {}
    assert one.run.metrics != two.run.metrics


def test_best_toml_is_a_config(tmp_path: Path) -> None:
    done = swept(tmp_path / "sweep")
    assert fedalc.experiment(file=tmp_path / "sweep" / "best.toml") == done.run.settings
    assert done.run.settings.server.ridge == done.best["server.ridge"]


def test_a_sweep_goes_on_where_it_stopped_and_grows(tmp_path: Path) -> None:
    keys = {"method": "fedavg", "rounds": 4, "selection": {"every": 2}, "dataset": small_dataset(instances=120)}
    grid = {"server.learning_rate": [0.01, 0.1]}
    with pytest.raises(Interrupted):
        fedalc.sweep(grid, folder=tmp_path / "a", callbacks=StopAfter("select", 2), encoder=ENCODER, **keys)
    assert not (tmp_path / "a" / "server.learning_rate=0.1").exists()
    counting = Counting()
    stopped = fedalc.sweep(grid, folder=tmp_path / "a", callbacks=counting, encoder=ENCODER, **keys)
    assert len(counting.trained) == 3  # two trials and the best
    whole = fedalc.sweep(grid, folder=tmp_path / "b", encoder=ENCODER, **keys)
    assert [t.value for t in stopped.trials] == [t.value for t in whole.trials]
    assert stopped.run.metrics == whole.run.metrics
    counting = Counting()
    same = fedalc.sweep(grid, folder=tmp_path / "a", callbacks=counting, encoder=ENCODER, **keys)
    assert not counting.trained and same.run.metrics == whole.run.metrics
    larger = {"server.learning_rate": [0.01, 0.1, 0.3]}
    fedalc.sweep(larger, folder=tmp_path / "a", callbacks=counting, encoder=ENCODER, **keys)
    assert counting.trained[0].server.learning_rate == 0.3 and len(counting.trained) <= 2
    with pytest.raises(ConfigError, match="other settings"):
        fedalc.sweep(grid, folder=tmp_path / "a", encoder=ENCODER, **{**keys, "rounds": 5})


def test_a_finished_sweep_of_a_table_trains_nothing_again(tmp_path: Path) -> None:
    """The columns that were found are settings too."""
    table = tmp_path / "mine.csv"
    rows = [f"{('apple', 'sky', 'sea')[n % 3]} number {n % 7},{('fruit', 'air', 'water')[n % 3]}" for n in range(60)]
    table.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    swept(tmp_path / "sweep", dataset=str(table))
    before = (tmp_path / "sweep" / "best" / "result.json").read_bytes()
    counting = Counting()
    swept(tmp_path / "sweep", dataset=str(table), callbacks=counting)
    assert not counting.trained and (tmp_path / "sweep" / "best" / "result.json").read_bytes() == before


def test_settings_that_follow_from_the_data_are_no_other_settings(tmp_path: Path) -> None:
    """Rounds that are minibatches: their number is in config.toml, not in the request."""
    keys = {"method": "fedalc-exact", "tuning": {"batch": 40, "epochs": 1}, "dataset": small_dataset(instances=120)}
    keys["encoder"] = {"name": "mlp", "dim": 4, "hidden": [4]}
    keys |= {"client": {"loss": "softmax"}, "server": {"optimizer": "adam"}}
    grid = {"server.learning_rate": [0.01, 0.1]}
    fedalc.sweep(grid, folder=tmp_path / "sweep", **keys)
    counting = Counting()
    again = fedalc.sweep(grid, folder=tmp_path / "sweep", callbacks=counting, **keys)
    assert not counting.trained and again.run.settings.rounds > 1 and again.run.settings.tuning.batch is None
    with pytest.raises(ConfigError, match="other settings"):
        fedalc.sweep(grid, folder=tmp_path / "sweep", **{**keys, "tuning": {"batch": 20, "epochs": 1}})


def test_a_trial_that_fails_is_listed_and_the_others_go_on(tmp_path: Path) -> None:
    keys = {"method": "fedavg", "rounds": 3, "encoder": {**ENCODER, "output": "raw"}, "client": {"loss": "square"}}
    grid = {"server.learning_rate": [0.01, 1e30]}
    keys |= {"server": {"optimizer": "sgd", "weight_decay": 0.0}, "dataset": small_dataset(instances=120)}
    done = fedalc.sweep(grid, folder=tmp_path / "sweep", **keys)
    assert done.best == {"server.learning_rate": 0.01}
    assert done.trials[1].value is None and "diverged" in done.trials[1].problem
    assert "failed" in (tmp_path / "sweep" / "table.md").read_text(encoding="utf-8")
    with pytest.raises(FedalcError, match="no trial has finished"):
        fedalc.sweep({"server.learning_rate": [1e30]}, folder=tmp_path / "other", **keys)


def test_random_draws_lie_in_their_ranges_and_continue() -> None:
    space = Space.of(
        {"server.optimizer": ["adam", "sgd"]},
        {"server.ridge": "0.01:10:log", "rounds": (1, 5), "server.ema": (0.1, 0.9), "encoder.dim": "4:512:log"},
    )
    points = space.points(200, seed=3)
    assert points[:20] == space.points(20, seed=3) and points[:20] != space.points(20, seed=4)
    assert {point["rounds"] for point in points} == {1, 2, 3, 4, 5}
    assert {point["server.optimizer"] for point in points} == {"adam", "sgd"}
    ridges = np.array([point["server.ridge"] for point in points])
    assert ridges.min() >= 0.01 and ridges.max() <= 10 and 0.4 < np.mean(ridges < 0.316) < 0.6  # half of the decades
    assert all(isinstance(point["encoder.dim"], int) for point in points)
    assert 0.4 < np.mean([point["server.ema"] for point in points]) < 0.6
    assert len({point_name(point) for point in points}) == len(points)


@pytest.mark.parametrize(
    "grid, ranges, random, message",
    [
        ({}, {}, None, "nothing to try"),
        ({"seed": [1, 2]}, {}, None, "seed: a sweep needs the same for all trials"),
        ({"selection.metric": ["P@1"]}, {}, None, "the same for all"),
        ({"server.ridge": "1,2"}, {}, None, "expected a list of values"),
        ({"server.ridge": []}, {}, None, "expected a list of values"),
        ({"server.ridge": [1]}, {"server.ridge": "1:2"}, 3, "values or a range, not both"),
        ({}, {"server.ridge": "1:2"}, None, "need a number of draws"),
        ({}, {"server.ridge": "2:1"}, 3, "smaller than the second"),
        ({}, {"server.ridge": "0:1:log"}, 3, "above 0 for log"),
        ({}, {"server.ridge": "1:2:lin"}, 3, "expected LOW:HIGH"),
        ({}, {"server.ridge": "1"}, 3, "expected LOW:HIGH"),
        ({}, {"server.ridge": "1:2"}, 0, "expected a whole number from 1"),
        ({"server.rigde": [1]}, {}, None, "did you mean 'ridge'"),
        ({"server.ridge": [1, -1]}, {}, None, r"with server.ridge=-1"),
    ],
)
def test_wrong_requests_are_refused(tmp_path: Path, grid: Any, ranges: Any, random: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedalc.sweep(grid, ranges=ranges, random=random, folder=tmp_path / "sweep", dataset=small_dataset())
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_needs_validation_data_and_no_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chooses on validation data"):
        swept(tmp_path / "sweep", selection={"validation": 0})
    with pytest.raises(ConfigError, match="search chooses settings by itself"):
        swept(tmp_path / "sweep", method="fedalc-exact", tuning={"search": True})


@pytest.mark.few(2)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_number_of_settings_can_be_drawn(tmp_path: Path, count: int) -> None:
    names = [f"section.setting_{number}" for number in range(count)]
    values = [0.01, 1.0, "word", None, [1, 2], True]
    trials = [
        {"settings": {name: values[(row + at) % 6] for at, name in enumerate(names)}, "value": 50.0 + row}
        for row in range(6)
    ]
    plot_sweep("P@1", names, [*trials, {"settings": trials[0]["settings"], "value": None}], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_grids_on_the_command_line() -> None:
    assert parse_grid("server.ridge=0.1,1") == ("server.ridge", [0.1, 1])
    for wrong in ("server.ridge", "=1", "server.ridge=", "server.ridge=1,,2"):
        with pytest.raises(ConfigError, match="expected NAME=A,B,C"):
            parse_grid(wrong)


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_the_command_prints_a_table_that_is_not_cut(
    tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(tmp_path / "mine")
    monkeypatch.setattr("tests.commands.COLUMNS", columns)
    command = ["sweep", "--dataset", "mine", "--method", "fedalc-oneshot", "--set", "encoder.dim=5"]
    command += ["--grid", "server.ridge=0.1,1", "--name", "s", "-q"]
    said = run(*command, cwd=tmp_path).stdout
    saved = json.loads((tmp_path / "runs" / "s" / "sweep.json").read_text(encoding="utf-8"))
    for trial in saved["trials"]:
        assert f"{trial['value']:.2f}" in said
    assert "validation nDCG@5" in said and "No trial saw the test set" in said and "best.toml" in said
    assert f"{saved['test']['P@1']:.2f}" in said and "…" not in said
    listed = run("runs", cwd=tmp_path).stdout
    assert "3 runs" in listed
    run("runs", "delete", "s", "--yes", cwd=tmp_path)
    assert not (tmp_path / "runs" / "s").exists()
