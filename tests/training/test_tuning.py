"""The search for settings: what it measures is what a training with those settings gives, and it can be resumed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.config.resolve import default_choice, experiment
from fedalc.core.interrupt import Interrupt
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import ConfigError, Interrupted
from fedalc.evaluation.evaluate import evaluate
from fedalc.training import tuning
from fedalc.training.callbacks import Callback
from fedalc.training.federated import knowledge_for, simulated
from fedalc.training.search_parts import SplitPart
from fedalc.training.settings_for_data import can_solve, with_axes
from fedalc.training.tuning import POWERS, Search, Trial, changed
from tests.problems import random_split, small_dataset


@pytest.fixture(autouse=True)
def small_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try few settings, without random features."""
    monkeypatch.setattr(tuning, "RANDOM_FEATURES_UP_TO", 0)
    monkeypatch.setattr(tuning, "MOST_PENALTIES", 1)
    monkeypatch.setattr(tuning, "ENOUGH", 20)  # two parts


def search(data: Dataset, **more: Any) -> Search:
    settings = fedalc.experiment({"dataset": "demo", "method": "fedalc-exact", "dtype": "float64", **more})
    with Interrupt() as interrupt:
        return Search(settings, data, interrupt)


def measured(found: Search, changes: dict[str, Any], rounds: int) -> float:
    """Train with these settings on each part and evaluate on its held-out records, as a simulation does."""
    values = []
    for part in found._parts:
        settings = changed(found.settings, changes)
        training = simulated(settings, part.train, knowledge_for(settings, part.train))
        for _ in range(rounds):
            training.run_round()
        values.append(evaluate(training.model, part.held_out, training.held)[found.metric])
    return float(np.mean(values))


def test_all_powers_of_the_square_loss_follow_from_one_solution() -> None:
    found = search(small_dataset(instances=100))
    trial = found._solved({"name": "linear"}, 0.7)
    assert len(found._parts) == 2 and len(set(trial.also.values())) > 1
    for power in POWERS:
        changes = trial.model_copy(update={"label_power": power}).changes
        assert trial.also[f"label_power {power:g}"] == pytest.approx(measured(found, changes, 1), abs=1e-9)
    assert trial.value == max(trial.also.values())


@pytest.mark.parametrize("loss", ["squared-hinge", "logistic"])
def test_newton_trials_are_trainings(loss: tuning.Loss) -> None:
    found = search(small_dataset(instances=100))
    found._try("square", {"name": "linear"}, 1.0)
    trial = found._by_rounds(loss, {"name": "linear", "constant": 1.0}, 0.3)
    for rounds in (5, 10):
        if f"rounds {rounds}" in trial.also:
            assert trial.also[f"rounds {rounds}"] == pytest.approx(measured(found, trial.changes, rounds), abs=1e-9)
    assert trial.bytes_up > 0 and trial.bytes_down > 0


def test_held_out_records_are_not_trained_on() -> None:
    data = small_dataset(instances=100)
    for part in search(data)._parts:
        assert len(part.train) + len(part.held_out) == 100
        rows = {row.tobytes() for row in part.train.features.toarray() if row.any()}
        assert not any(row.tobytes() in rows for row in part.held_out.features.toarray() if row.any())


def test_own_validation_data_is_used() -> None:
    data = small_dataset(instances=100)
    data = Dataset("small", data.train, data.test, data.label_names, validation=random_split(30, 20, 7, seed=9))
    (part,) = search(data)._parts
    assert len(part.train) == 100 and len(part.held_out) == 30


def test_labels_that_do_not_fit_get_no_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    data, settings = small_dataset(), fedalc.experiment({"method": "fedalc-exact"})
    assert with_axes(settings, data).encoder.dim == 7
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_MATRIX", 20 * 7 - 1)
    assert with_axes(settings, data).encoder.dim == 512


def test_a_search_without_an_axis_per_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels share axes: a tree, and the square loss, with one label power, which the training uses too."""
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_MATRIX", 20 * 7 - 1)
    found = search(small_dataset(instances=100), encoder={"dim": 5})
    best = found.run()
    assert [trial.method for trial in found.trials[:2]] == ["fedalc-tree", None] and best in found.trials
    assert {(trial.loss, trial.label_power) for trial in found.trials} == {("square", 0.2)}
    for trial in found.trials:
        assert trial.value == pytest.approx(measured(found, trial.changes, 1), abs=1e-9)


def test_a_tree_is_tried_on_part_of_train_where_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    data, settings = small_dataset(instances=100), fedalc.experiment({"method": "fedalc-exact"})
    assert tuning.tree_fits(settings, data)
    assert not tuning.tree_fits(fedalc.experiment({"method": "fedalc-exact", "engine": "flower"}), data)
    assert len(search(data)._parts[0].train) > 60
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_MATRIX", 20 * 7 - 1)
    monkeypatch.setattr(tuning, "SAMPLE", 60)
    found = search(data, encoder={"dim": 5})
    for part in found._parts:
        assert len(part.train) + len(part.held_out) == 60
    monkeypatch.setattr(tuning, "LARGEST_MATRIX", 20 * 9 - 1)  # a tree of 7 labels has 3 · 2 clusters
    assert tuning.tree_fits(settings, data)
    monkeypatch.setattr(tuning, "MOST_LABELS", 6)
    assert not tuning.tree_fits(settings, data)


def test_a_run_takes_the_tree_that_the_search_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "_has_axes", False)
    monkeypatch.setattr(Search, "_kinds_of_features", lambda self: iter(()))
    run = fedalc.train(data=small_dataset(instances=100), folder=tmp_path / "run")
    assert run.settings.method == "fedalc-tree" and run.result["tuning"]["chosen"]["method"] == "fedalc-tree"
    again = fedalc.train(run.settings, data=small_dataset(instances=100), folder=tmp_path / "again")
    assert again.metrics == run.metrics and "fedalc-tree" in (tmp_path / "run" / "report.html").read_text()


def test_too_many_features_for_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then conjugate gradients train the square loss, and the search judges rounds as well as label powers."""
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_GRAM", 20 * 20 - 1)
    found = search(small_dataset(instances=100))
    found._try("square", {"name": "linear"}, 1.0)
    (trial,) = found.trials
    assert trial.changes["method"] == "fedalc-exact" and trial.changes["server"]["optimizer"] == "cg"
    for rounds, power in ((5, 0.0), (5, 0.4), (10, 0.2)):
        again = trial.model_copy(update={"label_power": power, "rounds": rounds})
        value = trial.also[f"rounds {rounds}, label_power {power:g}"]
        assert value == pytest.approx(measured(found, again.changes, rounds), abs=1e-9)
    fedalc.train(data=small_dataset(instances=100), folder=tmp_path / "run")
    tried = json.loads((tmp_path / "run" / "result.json").read_text())["tuning"]["tried"]
    assert {trial["loss"] for trial in tried} == {"square", "squared-hinge", "logistic"}


def test_one_round_is_possible_if_records_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """But only where the records are: other engines add up sums over features."""
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_GRAM", 15 * 15)
    settings = fedalc.experiment({"method": "fedalc-exact"})
    assert can_solve(settings, small_dataset(instances=15)) and not can_solve(settings, small_dataset(instances=16))
    settings = fedalc.experiment({"method": "fedalc-exact", "engine": "clients"})
    assert not can_solve(settings, small_dataset(instances=15))


@pytest.mark.long
def test_few_records_with_very_many_features() -> None:
    """Features × features numbers would be 29 GB, and solving them 115."""
    data = small_dataset(instances=40, features=60_000)
    for tune in (None, False):
        assert fedalc.train(data=data, tune=tune).settings.encoder.dim == 7


@pytest.mark.long
def test_too_many_features_and_labels_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_GRAM", 20 * 20 - 1)
    with pytest.warns(UserWarning, match="20 features are too many for one round: training fedalc-exact"):
        run = fedalc.train(data=small_dataset(), tune=False)
    assert run.settings.method == "fedalc-exact" and run.settings.server.optimizer == "cg"
    assert run.settings.encoder.dim == 7
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_MATRIX", 20 * 7 - 1)
    monkeypatch.setattr(tuning, "MOST_LABELS", 599)
    for tune in (None, False):
        with pytest.warns(UserWarning, match="600 labels too many for a search"):
            run = fedalc.train(data=small_dataset(labels=600), tune=tune)
        assert run.settings.method == "fedalc-exact" and run.settings.encoder.dim == 512


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 5}, "rounds: the search chooses it"),
        ({"server": {"ridge": 3}}, "server.ridge: the search chooses it"),
        ({"selection": {"validation": 0.5}}, "selection.validation: the search holds out records itself"),
        ({"privacy": {"epsilon": 1}}, "privacy.epsilon: ε does not cover a search"),
        ({"clients": "users"}, "clients: the search needs a client for each label"),
        ({"method": "ovr"}, "tuning.search: the search is for the exact methods, not for ovr"),
        ({"dataset": "mosaics"}, "tuning.search: the search is for rows of features"),
    ],
    ids=str,
)
def test_settings_that_the_search_would_replace_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        default_choice({"method": "fedalc-exact", **settings}, tune=True)


def test_no_search_means_one_round_whatever_else_is_set() -> None:
    chosen = default_choice({"server": {"ridge": 3.0}}, tune=False)
    assert chosen == {"method": "fedalc-oneshot", "tuning": {"axes": True}}
    assert default_choice({"encoder": {"dim": 9}}, tune=False)["tuning"] == {"axes": False}
    assert default_choice({"server": {"ridge": 3.0}}) == {}, "a method of the paper"


@pytest.mark.parametrize("records", [1, 4, 9])
def test_too_few_records_for_a_search(records: int) -> None:
    data = small_dataset(instances=60)
    labelled = np.flatnonzero(data.train.labels.getnnz(axis=1))[:records]
    data = Dataset("few", data.train.rows(labelled), data.test, data.label_names)
    with pytest.warns(UserWarning, match=f"{records} records with labels are too few for a search"):
        run = fedalc.train(data=data)
    assert run.settings.method == "fedalc-oneshot" and run.settings.encoder.dim == 7


def test_only_labelled_records_are_held_out() -> None:
    data = small_dataset(instances=100)
    labels = data.train.labels.tolil()
    labels[:60] = 0
    data = Dataset("some", Split(data.train.features, labels.tocsr()), data.test, data.label_names)
    for part in search(data)._parts:
        assert isinstance(part, SplitPart)
        assert (part.held_out.labels.getnnz(axis=1) > 0).all() and len(part.train) + len(part.held_out) == 100


class StopAt(Callback):
    """Asks to stop while the n-th setting is tried."""

    def __init__(self, number: int) -> None:
        self.number, self.seen = number, 0

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.seen += name.startswith("search")
        if self.seen == self.number:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_without_a_method_searches_and_can_be_run_again(tmp_path: Path) -> None:
    data = small_dataset(instances=100)
    run = fedalc.train(data=data, folder=tmp_path / "run")
    tried = run.result["tuning"]
    best = max(tried["tried"], key=lambda trial: trial["value"])
    assert {trial["loss"] for trial in tried["tried"]} == {"square", "squared-hinge", "logistic"}
    assert tried["value"] == best["value"] and tried["chosen"]["client"]["loss"] == best["loss"]
    assert run.settings.client.loss == best["loss"] and run.settings.server.ridge == best["penalty"]
    assert run.settings.encoder.dim == 7 and not run.settings.tuning.search
    assert run.result["bytes_up"] > tried["bytes_up"] > 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "tuning.jsonl").read_text().splitlines()]
    assert lines == tried["tried"]
    settings = fedalc.experiment(file=tmp_path / "run" / "config.toml")
    assert settings == run.settings
    assert fedalc.train(settings, data=data).metrics == run.metrics


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_interrupted_search_goes_on(tmp_path: Path, number: int) -> None:
    data = small_dataset(instances=100)
    whole = fedalc.train(data=data, folder=tmp_path / "whole")
    with pytest.raises(Interrupted, match="during the search"):
        fedalc.train(data=data, folder=tmp_path / "run", callbacks=[StopAt(number)])
    settings = fedalc.experiment(file=tmp_path / "run" / "config.toml")
    assert settings.tuning.search
    run = fedalc.train(settings, data=data, folder=tmp_path / "run", resume=True)
    assert run.metrics == whole.metrics and run.settings == whole.settings
    values = [[trial["value"] for trial in one.result["tuning"]["tried"]] for one in (run, whole)]
    assert values[0] == values[1]


def test_a_damaged_record_of_a_search_is_said(tmp_path: Path) -> None:
    data = small_dataset(instances=100)
    with pytest.raises(Interrupted):
        fedalc.train(data=data, folder=tmp_path / "run", callbacks=[StopAt(3)])
    (tmp_path / "run" / "tuning.jsonl").write_text('{"loss": "square"\n')
    settings = fedalc.experiment(file=tmp_path / "run" / "config.toml")
    with pytest.warns(UserWarning, match="damaged; the search starts over"):
        run = fedalc.train(settings, data=data, folder=tmp_path / "run", resume=True)
    assert run.metrics


def test_no_search_if_not_wanted() -> None:
    run = fedalc.train(data=small_dataset(), tune=False)
    assert (run.settings.method, run.settings.encoder.dim) == ("fedalc-oneshot", 7)
    assert "tuning" not in run.result and run.settings.selection.validation == 0


def test_when_there_is_a_search() -> None:
    assert default_choice({"dataset": "demo", "seed": 3}) == {"method": "fedalc-exact", "tuning": {"search": True}}
    for settings in ({"method": "fedavg"}, {"rounds": 30}, {"privacy": {"epsilon": 1}}, {"preset": "paper"}):
        assert default_choice(settings) == {}
    assert default_choice({}, overrides=["client.epochs=2"]) == {}
    assert default_choice({"method": "fedalc-oneshot"}, tune=True) == {"tuning": {"search": True}}
    for settings in ({"engine": "clients"}, {"selection": {"metric": "P@1"}}):  # kept by a search, so no other method
        assert default_choice(settings, tune=True) == {"method": "fedalc-exact", "tuning": {"search": True}}
        assert default_choice(settings) == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "fedavg"}, "chooses settings of fedalc-exact"),
        ({"method": "fedalc-exact", "encoder": {"name": "mlp"}}, "linear encoders"),
        ({"method": "fedalc-exact", "privacy": {"epsilon": 1}, "client": {"set_size": "expected"}}, "does not cover"),
        (
            {"method": "fedalc-exact", "selection": {"metric": "mAP"}, "engine": "flower"},
            "positive-only parties can count",
        ),
    ],
    ids=str,
)
def test_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedalc.experiment({**settings, "tuning": {"search": True}})


def test_a_trial_is_checked_when_it_is_read() -> None:
    trial = Trial(loss="square", features={"name": "linear"}, penalty=1.0)
    assert Trial.model_validate_json(trial.model_dump_json()) == trial
    with pytest.raises(ValueError, match="loss"):
        Trial.model_validate_json('{"loss": "other", "features": {}, "penalty": 1}')


def test_a_search_keeps_how_the_data_is_read_and_who_the_clients_are() -> None:
    read = {"text": {"words": [1, 2], "least_documents": 3}, "table": {"label_separator": ";"}, "clients": "parties"}
    settings = experiment({"dataset": "demo", "method": "fedalc-exact", **read})
    after = changed(settings, {"rounds": 7})
    assert (after.text, after.table, after.clients) == (settings.text, settings.table, "parties")
    assert settings.text.least_documents == 3 and after.rounds == 7
