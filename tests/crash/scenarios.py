"""Crash-test scenarios: each writes files, can be resumed by another process, and knows the expected result."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import fedalc
from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.deployment.state import ServerState, Submitted
from fedalc.runs.folder import CENSUS, FILES, LOCK, read_settings
from fedalc.training import checkpoint
from fedalc.training.base import Callback
from fedalc.training.selection import Training
from fedalc.workflows.train import train_or_continue
from tests.problems import small_dataset

Promise = Callable[[list[Any]], None]
"""Is told what is now on the disk for good: (phase, round), or the number of a write."""
Outcome = dict[str, Any]

ORDER = ("fit", "select", "refit")
PER_RUN = ("seconds", "seconds_per_round", "peak_memory_mb")  # differ from run to run


class Took(Callback):
    """The round where a resumed run begins, and the messages to the user."""

    def __init__(self) -> None:
        self.start: list[Any] | None = None
        self.notes: list[str] = []

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.start = self.start or [ORDER.index(name), done]

    def note(self, text: str) -> None:
        self.notes.append(text)


class Train:
    """A run with two phases that saves its state after every round."""

    name = "training"
    data = small_dataset()
    keys: ClassVar[dict[str, Any]] = {
        "dataset": "small",
        "rounds": 4,
        "encoder": {"name": "mlp", "dim": 8, "embedding": 6, "hidden": (9,), "dropout": 0.2},
        "server": {"ema": 0.5, "participation": 0.7, "optimizer": "adam", "learning_rate": 0.02},
        "selection": {"every": 2, "validation": 0.2, "keep": "last"},
    }
    seed = 0

    @property
    def settings(self) -> Experiment:
        return experiment({**self.keys, "seed": self.seed})

    def prepare(self, folder: Path) -> None:
        """Write the files that exist before the disturbance."""

    def begin(self, folder: Path, promise: Promise) -> Outcome:
        with promising(promise):
            return self._outcome(folder, train_or_continue(self.settings, folder / "run", self.data), Took())

    def go_on(self, folder: Path, promise: Promise) -> Outcome:
        took = Took()
        with promising(promise):
            return self._outcome(folder, train_or_continue(self.settings, folder / "run", self.data, [took]), took)

    def newest(self, folder: Path) -> Path:
        return folder / "run" / "checkpoint"

    def _outcome(self, folder: Path, run: fedalc.Run, took: Took) -> Outcome:
        return {"bits": run_bits(folder / "run"), "start": took.start, "notes": took.notes}


class Overwrite(Train):
    """A new run replaces a finished one. The result must be that of whichever run can be resumed."""

    name = "overwriting"

    def prepare(self, folder: Path) -> None:
        with undrawn():
            fedalc.train(self.settings, folder=folder / "run", data=self.data)

    def begin(self, folder: Path, promise: Promise) -> Outcome:
        with promising(promise, every_round=False):
            run = fedalc.train(
                self.settings.model_copy(update={"seed": 1}), folder=folder / "run", data=self.data, overwrite=True
            )
        return self._outcome(folder, run, Took())

    def go_on(self, folder: Path, promise: Promise) -> Outcome:
        took = Took()
        settings = read_settings(folder / "run")
        with undrawn():
            run = train_or_continue(settings, folder / "run", self.data, [took])
        return self._outcome(folder, run, took)


class Parties(Train):
    """The server of a run with parties, including census/ and parties.jsonl. The parties are in this process."""

    name = "parties"

    def __init__(self, held: Path) -> None:
        from tests.deployment.flower import problem

        self.problem = problem
        self.nodes = problem.write_parties(held, problem.all_different())

    def begin(self, folder: Path, promise: Promise) -> Outcome:
        return self._run(folder, promise, {})

    def go_on(self, folder: Path, promise: Promise) -> Outcome:
        run = folder / "run"
        if (run / "result.json").exists():
            fedalc.load_run(run)
            return {"bits": run_bits(run), "start": None, "notes": []}
        return self._run(folder, promise, {"resume": True} if (run / "config.toml").exists() else {})

    def _run(self, folder: Path, promise: Promise, more: dict[str, Any]) -> Outcome:
        from tests.deployment.flower.local_grid import LocalGrid

        took = Took()
        config = self.problem.asked("fedalc", self.problem.SETTINGS, **more)
        app = "fedalc.deployment.flower.server_app"
        quiet = mock.patch(f"{app}.say", lambda line: None)
        with promising(promise), mock.patch(f"{app}.Spoken", lambda rounds: took), quiet:
            self.problem.run(LocalGrid(self.nodes), folder / "run", config)
        return {"bits": run_bits(folder / "run"), "start": took.start, "notes": took.notes}


class State:
    """A server's record of parties and runs. After each write it must be in the state before or after it."""

    name = "server state"
    parties = ("north", "south", "east")

    def prepare(self, folder: Path) -> None: ...

    def begin(self, folder: Path, promise: Promise) -> Outcome:
        state = ServerState(folder / "state")
        state.write_connection("127.0.0.1:9443", None)
        promise([0])
        for number, party in enumerate(self.parties, 1):
            state.add_party(party, f"node {number}")
            promise([number])
        state.remember(Path("/runs/a"), Submitted("7", {"rounds": 3}))
        promise([len(self.parties) + 1])
        return {"bits": [], "start": [len(self.parties) + 1], "notes": []}

    def go_on(self, folder: Path, promise: Promise) -> Outcome:
        state, reached = ServerState(folder / "state"), -1
        if (folder / "state" / "flower" / "config.toml").exists():
            reached = 0
            assert state.connection() == ("127.0.0.1:9443", None)
        known = state.parties()
        assert known == {party: f"node {n}" for n, party in enumerate(self.parties[: len(known)], 1)}
        reached = len(known) or reached
        submitted = state.submitted(Path("/runs/a"))
        if submitted is not None:
            assert submitted == Submitted("7", {"rounds": 3})
            reached = len(self.parties) + 1
        return {"bits": [], "start": [reached], "notes": []}


class promising:  # noqa: N801  a context manager
    """Save after every round, and report each checkpoint once `save_folder` has returned."""

    def __init__(self, promise: Promise, every_round: bool = True) -> None:
        self.promise, self.every_round = promise, every_round

    def __enter__(self) -> None:
        save = checkpoint.save_folder

        def told(folder: Path, tensors: Any, facts: dict[str, Any], **more: Any) -> None:
            save(folder, tensors, facts, **more)
            if self.every_round:
                self.promise([ORDER.index(facts["phase"]), facts["federated"]["round"]])

        self._patches = [mock.patch.object(checkpoint, "save_folder", told), undrawn()]
        if self.every_round:
            self._patches.append(mock.patch.object(Training, "checkpoint_seconds", -1.0))
        for patch in self._patches:
            patch.start()
        warnings.simplefilter("ignore")

    def __exit__(self, *error: object) -> None:
        for patch in self._patches:
            patch.stop()


def undrawn() -> Any:
    """Write reports without curves: drawing takes longer than the rest, and involves no other writes."""
    return mock.patch("fedalc.report.page.panel_svg", lambda *panel: "")


def run_bits(folder: Path) -> list[str]:
    """Return all that must be equal: tensors of model and last checkpoint, figures, history; check for leftovers."""
    result = json.loads((folder / "result.json").read_text())
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for record in (result, *history):
        for key in PER_RUN:
            record.pop(key, None)
    tensors = [hashlib.sha256((folder / name / "tensors.safetensors").read_bytes()).hexdigest()
               for name in ("model", "checkpoint")]  # fmt: skip
    strange = {path.name for path in folder.iterdir()} - {*FILES, "model", "checkpoint", CENSUS, LOCK}
    assert not strange, f"left over: {strange}"
    assert (folder / "report.html").stat().st_size > 1000
    return [*tensors, json.dumps(result), json.dumps(history), (folder / "config.toml").read_text()]
