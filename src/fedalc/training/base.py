"""What every training has, a federated one and an oracle's: the data's parts, and who follows it as it goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.interrupt import Interrupt
from fedalc.core.progress_events import Watcher
from fedalc.data.catalog.datasets import entry, is_known
from fedalc.data.dataset import Dataset, Split
from fedalc.data.federation import hold_out
from fedalc.errors import ConfigError
from fedalc.evaluation.evaluate import check_map_affordable
from fedalc.evaluation.metrics import Propensity, find_metric
from fedalc.models.encoders import scale_rows
from fedalc.runs import history


class Callback:
    """What may follow a run as it goes. Every hook does nothing unless overridden."""

    def reading(self, done: int, pictures: int) -> None:
        """Where pictures have to be brought to their size first. From another thread, while the first rounds run."""

    def phase(self, name: str, rounds: int, done: int) -> None:
        """A phase begins, or goes on after `done` of its rounds."""

    def round(self, number: int, loss: float) -> None: ...

    def step(self, number: int, what: str) -> None:
        """In place of `round`, where a method has none: the oracles."""

    def part(self, what: str, done: int, total: int) -> None:
        """How far a round, a server's step or an evaluation has come: instances, clients, classes."""

    def evaluated(self, record: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None:
        """Something the user should know. It is a Python warning too, which the command line shows."""

    def stopping(self) -> None:
        """Somebody has asked to stop: the round is finished and saved first."""


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """One callback, or several. A plain function is none: nobody could say of what it wants to be told."""
    given = (callbacks,) if isinstance(callbacks, Callback) else callbacks
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise ConfigError(f"expected a list of callbacks, found {callbacks!r:.60}", "callbacks")
    given = tuple(given)
    for number, callback in enumerate(given):
        if not isinstance(callback, Callback):
            what = "the class itself, not an object of it" if isinstance(callback, type) else "not a callback"
            raise ConfigError(
                f"{callback!r:.60} is {what}: give objects of a class that extends fedalc.Callback and overrides what "
                "it wants to be told of, such as round(number, loss) or evaluated(record)",
                f"callbacks[{number}]",
            )
    return given


def inverse_propensity(dataset: Dataset) -> np.ndarray:
    """1 / p_l of each label, with the constants of its dataset where it has some of its own."""
    name, train = dataset.name, dataset.train.labels
    propensity = Propensity(*entry(name).propensity) if is_known(name) else Propensity()
    return propensity.inverse(train.getnnz(axis=0), train.shape[0])


def telling(callbacks: Sequence[Callback]) -> Watcher:
    """Tells them of the parts of long steps."""

    def tell(what: str, done: int, total: int) -> None:
        for callback in callbacks:
            callback.part(what, done, total)

    return tell


class AnyTraining:
    """What a federated training and an oracle's share: the data's parts, and how they are told of what happens.

    `folder` None: nothing is written. Of several processes the first writes.
    """

    centralised: ClassVar[bool]

    def __init__(
        self, settings: Experiment, dataset: Dataset, folder: Path | None, callbacks: Sequence[Callback]
    ) -> None:
        self.settings = settings
        self.dataset = dataset
        self.folder = folder
        self.callbacks = callbacks
        self.writes = folder is not None and distributed.is_first()
        self.train, validation = hold_out(dataset, settings.selection.validation, settings.seed)
        self.validation = None if validation is None else self._scaled(validation)
        own_validation = dataset.validation is not None
        self.refits = settings.selection.refit and self.validation is not None and not own_validation
        # Pictures are compared by mAP, so their curves show it; for many labels it takes long, and is left to the end.
        self._maps = settings.encoder.is_image or settings.selection.metric == "mAP"
        if settings.selection.metric == "mAP" and self.validation is not None:
            check_map_affordable(self.validation.labels)
        self.chosen: dict[str, Any] | None = None  # the best of `select`: its round, figures and what else was chosen

    def _is_better(self, value: float, than: float) -> bool:
        return find_metric(self.settings.selection.metric).is_better(value, than)

    def _scaled(self, split: Split) -> Split:
        return replace(split, features=scale_rows(split.features, self.settings.encoder.features))

    @cached_property
    def _scaled_test(self) -> Split:
        return self._scaled(self.dataset.test)

    @property
    def _budget(self) -> int:
        return self.settings.memory_budget

    def _evaluated(self, record: dict[str, Any]) -> None:
        if self.folder and self.writes:
            history.append(self.folder / "history.jsonl", record)
        for callback in self.callbacks:
            callback.evaluated(record)


def listening(interrupt: Interrupt | None) -> AbstractContextManager[Interrupt]:
    """To the caller's interrupt, which outlives the training; or to one of its own."""
    return Interrupt() if interrupt is None else nullcontext(interrupt)
