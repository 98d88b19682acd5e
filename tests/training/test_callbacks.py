"""Callbacks: which hooks a run calls, and how names become callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import fedalc
from fedalc.core.registry import CALLBACKS
from fedalc.errors import ConfigError
from fedalc.runs import history
from fedalc.training.callbacks import Callback, make_callback, register_callback
from tests.problems import small_dataset

DATA = small_dataset()


class Tracker(Callback):
    """What a tracker needs: the settings, every evaluation, the final metrics."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.events: list[str] = []
        self.settings: Any = None
        self.records: list[dict[str, Any]] = []
        self.result: Mapping[str, Any] = {}

    def started(self, settings: fedalc.Experiment) -> None:
        self.events.append("started")
        self.settings = settings

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.events.append(name)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if self.folder is not None:
            assert history.read(self.folder / "history.jsonl")[-1] == record  # on disk before anybody sees it

    def finished(self, result: Mapping[str, Any]) -> None:
        self.events.append("finished")
        self.result = result
        assert self.folder is None or (self.folder / "result.json").exists()


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    before = dict(CALLBACKS._registered)
    yield
    CALLBACKS._registered = before


@pytest.mark.parametrize("method", ["fedavg", "ovr"])
def test_a_tracker_hears_of_settings_evaluations_and_result(tmp_path: Path, method: str) -> None:
    tracker = Tracker(tmp_path / "run")
    run = fedalc.train(data=DATA, method=method, rounds=2, folder=tmp_path / "run", callbacks=tracker)
    assert tracker.events[0] == "started" and tracker.events[-1] == "finished" and len(tracker.events) > 2
    assert tracker.settings == run.settings
    assert tracker.records == history.read(tmp_path / "run" / "history.jsonl")
    assert dict(tracker.result) == dict(run.result)


def test_without_a_folder_the_hooks_are_called_too() -> None:
    tracker = Tracker()
    fedalc.train(data=DATA, method="fedavg", rounds=1, callbacks=[tracker])
    assert tracker.events[0] == "started" and tracker.events[-1] == "finished"


def test_a_registered_callback_is_made_by_its_name() -> None:
    register_callback("tracker")(Tracker)
    assert "tracker" in CALLBACKS and isinstance(make_callback("tracker"), Tracker)
    with pytest.raises(ConfigError, match=r"unknown callback 'traker' .*did you mean 'tracker'"):
        make_callback("traker")


def needs_arguments() -> type:
    class NeedsArguments(Callback):
        def __init__(self, run: str) -> None: ...

    return NeedsArguments


@pytest.mark.parametrize(
    ("item", "why"), [(print, "extends Callback"), (Tracker(), "extends Callback"), (needs_arguments(), "run")]
)
def test_what_cannot_be_a_callback_is_refused(item: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        register_callback("mine")(item)
    assert "mine" not in CALLBACKS


class StopAt(Callback):
    """Ends a phase in `round` or `evaluated`."""

    def __init__(self, hook: str, number: int) -> None:
        self.hook, self.number = hook, number
        self.rounds: dict[str, int] = {}

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.name = name

    def round(self, number: int, loss: float) -> None:
        self.rounds[self.name] = number
        self.stop = self.hook == "round" and number >= self.number

    def evaluated(self, record: dict[str, Any]) -> None:
        self.stop |= self.hook == "evaluated" and record["round"] >= self.number


@pytest.mark.parametrize(("hook", "number", "ends"), [("round", 3, 3), ("evaluated", 4, 4), ("evaluated", 5, 6)])
def test_a_callback_ends_the_training(hook: str, number: int, ends: int) -> None:
    """The round is evaluated, so that there is a best one to refit, which takes all its rounds."""
    keys: dict[str, Any] = {"method": "fedavg", "rounds": 20, "encoder": {"name": "linear", "dim": 8}}
    stop = StopAt(hook, number)
    run = fedalc.train(DATA, **keys, selection={"every": 2, "keep": "last"}, callbacks=[stop])
    assert stop.rounds == {"select": ends, "refit": ends} and run.result["rounds"] == ends
    assert run.records[-1]["phase"] == "refit" and run.metrics
    fit = StopAt(hook, number)
    alone = fedalc.train(DATA, **keys, selection={"every": 2, "validation": 0.0}, callbacks=[fit])
    assert fit.rounds == {"fit": ends} and alone.result["rounds"] == ends
