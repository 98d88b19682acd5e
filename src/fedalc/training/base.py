"""What a federated training and an oracle's training share: data splits, callbacks and the result."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.interrupt import Interrupt
from fedalc.data.catalog.datasets import entry, is_generated, is_known
from fedalc.data.dataset import Dataset, Split
from fedalc.data.federation import hold_out
from fedalc.errors import ConfigError
from fedalc.evaluation.evaluate import check_map_affordable
from fedalc.evaluation.metrics import Propensity, find_metric
from fedalc.evaluation.verification import Trials
from fedalc.methods import METHODS
from fedalc.models.encoders import scale_rows
from fedalc.runs.result import Result, versions
from fedalc.training.calibration import why_no_thresholds
from fedalc.training.callbacks import Callback, HistoryWriter, checked_callbacks
from fedalc.training.reasons import held_out, why_settings
from fedalc.training.verification import ScorerOf, enrolled_only, scored_trials, test_trials

__all__ = ["AnyTraining", "Callback", "checked_callbacks", "inverse_propensity", "listening"]


def inverse_propensity(dataset: Dataset) -> np.ndarray:
    """Return 1 / p_l for each label, with the dataset's own constants if it has them."""
    name, train = dataset.name, dataset.train.in_one_place.labels
    propensity = Propensity(*entry(name).propensity) if is_known(name) else Propensity()
    return propensity.inverse(train.getnnz(axis=0), train.shape[0])


class AnyTraining(ABC):
    """Trains one model. Call `prepare` once, then `finish` (or `resume` and `finish`).

    Without a `folder` nothing is written. Of several processes, the first one writes.
    """

    centralised: ClassVar[bool]

    # Set by `prepare`:
    train: Split
    validation: Split | None  # with scaled features
    refits: bool  # whether the best number of rounds is trained again on all of train

    def __init__(
        self, settings: Experiment, dataset: Dataset, folder: Path | None, callbacks: Sequence[Callback]
    ) -> None:
        self.settings = settings
        self.dataset = dataset
        self.folder = folder
        self.writes = folder is not None and distributed.is_first()
        history = [HistoryWriter(folder)] if folder is not None and self.writes else []
        self.callbacks: tuple[Callback, ...] = (*history, *callbacks)
        self.records: list[dict[str, Any]] = []  # the history of a run without a folder
        self.tuning: dict[str, Any] | None = None  # the search that chose the settings, as in result.json
        self.calibration: dict[str, Any] | None = None  # what probabilities were fitted on, as in result.json
        self.verification: dict[str, Any] | None = None  # the trials on the test set, as in result.json

    def prepare(self) -> Self:
        """Split the data and get ready for round 1. Refuses what cannot be trained, before anything is written."""
        settings = self.settings
        self.train, validation = hold_out(self.dataset, settings.selection.validation, settings.seed)
        self.validation = None if validation is None else self._scaled(validation)
        has_own_validation = self.dataset.validation is not None
        self.refits = settings.selection.refit and self.validation is not None and not has_own_validation
        if find_metric(settings.selection.metric).needs == "scores" and self.validation is not None:
            check_map_affordable(self.validation.labels)
        if self._verifies and distributed.here().count > 1:
            raise ConfigError("verification is measured in one process: start it without torchrun", "task")
        if self._verifies and (why := self._why_no_thresholds()) is not None:
            warnings.warn(f"there will be no thresholds, so this model cannot verify claims: {why}", stacklevel=2)
        if self._verifies and settings.method in METHODS:
            persons, wanted = int((self.train.labels.getnnz(axis=0) > 0).sum()), METHODS[settings.method].enough_persons
            if persons < wanted:
                warnings.warn(
                    f"{settings.method} cannot tell strangers from {persons} persons, and will refuse many claims: use "
                    f"fedncm, or at least {wanted} persons",
                    stacklevel=2,
                )
        return self

    def _why_no_thresholds(self) -> str | None:
        """Return why a model for verification will have no thresholds; None if it will."""
        return why_no_thresholds(self.settings, self.train, self.validation)

    def check_budget(self, resume: bool) -> None:  # noqa: B027 - oracles spend nothing
        """Refuse a run that would exceed its privacy budget."""

    @abstractmethod
    def run(self, interrupt: Interrupt | None = None) -> Any:
        """Train to the end and return the trained model or oracle."""

    @abstractmethod
    def resume(self) -> None:
        """Continue the run in `folder`, or start it over."""

    @property
    @abstractmethod
    def kept_round(self) -> int:
        """Rounds that the resulting model was trained for."""

    @property
    @abstractmethod
    def chosen(self) -> dict[str, Any] | None:
        """The best evaluation on validation data: the field `selection` of result.json."""

    @abstractmethod
    def cost(self) -> dict[str, Any]:
        """Return `seconds` of training, `rounds_run`, `bytes_up` and `bytes_down` so far, over all phases."""

    @abstractmethod
    def test(self, trained: Any) -> dict[str, float]:
        """Return the metrics on the test set, in percent; {} without test data."""

    def finish(self, interrupt: Interrupt) -> tuple[Any, Result]:
        """Train, test, and return the trained model or oracle and the result."""
        trained = self.run(interrupt)
        return trained, self.result(trained)

    def result(self, trained: Any) -> Result:
        """Test the trained model and return the result. `peak_memory_mb` is left to the workflow."""
        settings, metrics, test = self.settings, self.test(trained), self.dataset.test
        cost = self.cost()  # after the test, which may send bytes too
        return Result(
            dataset=self.dataset.name,
            generated=is_generated(self.dataset.name),
            method=settings.method,
            centralised=self.centralised,
            processes=distributed.here().count,
            preset=settings.preset,
            rounds=self.kept_round,
            seed=settings.seed,
            metrics=metrics,
            test_records=len(test) or None,
            test_labels=int((test.labels.getnnz(axis=0) > 0).sum()) if len(test) else None,
            selection=self.chosen,
            kept=why_settings(self.tuning, self.kept_round) if self.tuning else self.why_kept(),
            tuning=self.tuning,
            calibration=self.calibration,
            verification=self.verification,
            labels=len(trained.held),
            labels_without_client=int((~trained.held).sum()),
            rounds_run=cost["rounds_run"],
            seconds=cost["seconds"],
            seconds_per_round=cost["seconds"] / max(cost["rounds_run"], 1),
            bytes_up=cost["bytes_up"] + (self.tuning or {}).get("bytes_up", 0),
            bytes_down=cost["bytes_down"] + (self.tuning or {}).get("bytes_down", 0),
            versions=versions(),
        )

    @abstractmethod
    def why_kept(self) -> str:
        """Say what the model was chosen by, and why: the field `kept` of result.json."""

    def log(self, text: str) -> None:
        for callback in self.callbacks:
            callback.log(text)

    def note(self, text: str) -> None:
        """Show the user a message, as a warning and through the callbacks."""
        if self.writes:
            warnings.warn(text, stacklevel=2)
            for callback in self.callbacks:
                callback.note(text)

    def _is_better(self, value: float, than: float) -> bool:
        return find_metric(self.settings.selection.metric).is_better(value, than)

    def _scaled(self, split: Split) -> Split:
        return replace(split, features=scale_rows(split.features, self.settings.encoder.features))

    @cached_property
    def _scaled_test(self) -> Split:
        return self._scaled(self.dataset.test)

    @property
    def _verifies(self) -> bool:
        return self.settings.task == "verification"

    def _validation_trials(self, scorer: Any, held: np.ndarray) -> Trials | None:
        """Return the trials of the validation data, which has no strangers; None if the task is another one."""
        assert self.validation is not None
        return scored_trials(scorer, self.validation.labels, held) if self._verifies else None

    def _tested(self, scorer_of: ScorerOf, held: np.ndarray) -> tuple[Split, Trials | None]:
        """Return the test records to rank labels for, and the trials of all. For verification these records are those
        of enrolled persons; otherwise there are no trials."""
        test, strangers = self._scaled_test, self.dataset.strangers
        if not self._verifies:
            return test, None
        trials = test_trials(scorer_of, test, None if strangers is None else self._scaled(strangers), held)
        self.verification = trials.summary()
        return enrolled_only(test, held), trials

    @property
    def _judged_on(self) -> str:
        """The records that decide, in words."""
        return held_out(None if self.validation is None else len(self.validation))

    @property
    def _with_map(self) -> bool:
        """Whether curves show mAP: pictures are compared by it. With many labels it is slow, so only the end has it."""
        shown = self.settings.encoder.is_image or self.settings.encoder.frozen
        return shown or find_metric(self.settings.selection.metric).needs == "scores"

    @property
    def _budget(self) -> int:
        return self.settings.memory_budget

    def _evaluated(self, record: dict[str, Any]) -> None:
        if self.folder is None:
            self.records.append(record)
        for callback in self.callbacks:
            callback.evaluated(record)


def listening(interrupt: Interrupt | None) -> AbstractContextManager[Interrupt]:
    """Return the caller's interrupt, which outlives the training, or a new one for this training alone."""
    return Interrupt() if interrupt is None else nullcontext(interrupt)
