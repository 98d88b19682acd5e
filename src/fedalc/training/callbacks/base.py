"""The hooks of a callback, in the order in which a run calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedalc.core.progress_events import Watcher
from fedalc.errors import ConfigError

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment
    from fedalc.data.dataset import Dataset


class Callback:
    """Follows a run. Extend it and override the hooks you need; the others do nothing.

    Set `self.stop = True` in `round` or `evaluated` to end the phase early: the round is evaluated, and the run goes on
    as after its last round. A refit takes as many rounds as were best, and cannot be stopped so.
    """

    stop = False

    def reading(self, done: int, pictures: int) -> None:
        """Pictures are being resized. Called from another thread, while the first rounds run."""

    def loaded(self, data: Dataset) -> None:
        """The data has been read. `data.notes` says which columns were taken for what, and what was held out."""

    def placed(self, folder: Path) -> None:
        """The run is written to this folder. Called before `started`; not called for a run without a folder."""

    def started(self, settings: Experiment) -> None:
        """A run starts, or resumes, with these settings. `settings.to_dict()` has them as plain values."""

    def phase(self, name: str, rounds: int, done: int) -> None:
        """A phase of `rounds` rounds starts, or resumes after `done` of them."""

    def round(self, number: int, loss: float) -> None:
        """A round is over."""

    def step(self, number: int, what: str) -> None:
        """A step of an oracle's fit, or of a search for settings, is over. These have no rounds."""

    def part(self, what: str, done: int, total: int) -> None:
        """Progress within a round, a server step or an evaluation: instances, clients or classes done."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """A round was evaluated. `record` is its line in history.jsonl."""

    def log(self, text: str) -> None:
        """A line for the log, such as what the round will be chosen by."""

    def note(self, text: str) -> None:
        """A message for the user. It is also a Python warning, which the command line shows."""

    def stopping(self) -> None:
        """The user asked to stop. The run finishes and saves the current round first."""

    def finished(self, result: Mapping[str, Any]) -> None:
        """The run is finished and saved. `result` is what result.json holds, with the metrics on the test set."""


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return one callback, or several, as a tuple. Refuse functions: they do not say which hook they are for."""
    given = (callbacks,) if isinstance(callbacks, Callback) else callbacks
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise ConfigError(f"expected a list of callbacks, found {callbacks!r:.60}", "callbacks")
    given = tuple(given)
    for number, callback in enumerate(given):
        if not isinstance(callback, Callback):
            what = "the class itself, not an object of it" if isinstance(callback, type) else "not a callback"
            raise ConfigError(
                f"{callback!r:.60} is {what}: give objects of a class that extends fedalc.Callback and overrides "
                "hooks such as round(number, loss) or evaluated(record)",
                f"callbacks[{number}]",
            )
    return given


def part_watcher(callbacks: Sequence[Callback]) -> Watcher:
    """Return a watcher that passes progress events on to the hook `part`."""

    def pass_on(what: str, done: int, total: int) -> None:
        for callback in callbacks:
            callback.part(what, done, total)

    return pass_on
