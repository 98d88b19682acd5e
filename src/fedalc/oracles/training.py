"""A centralised run from settings to result: choose on validation data what there is to choose, fit, test once.

The phases are those of a federated run. `select` fits each candidate on a part of train and evaluates it on the rest;
`refit` fits the best on all of train. With nothing to choose there is only one, `fit`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedalc import history
from fedalc.config import Experiment
from fedalc.data.clients import hold_out
from fedalc.data.dataset import Dataset, Split
from fedalc.encoders import scale_rows
from fedalc.errors import DataError, Interrupted
from fedalc.evaluation import measure
from fedalc.interrupt import Interrupt
from fedalc.oracles import ORACLES, TrainedOracle
from fedalc.training import Callback, inverse_propensity


class OracleTraining:
    """All of a run but its folder's other files. It keeps no checkpoint: what is resumed begins again."""

    def __init__(
        self, settings: Experiment, dataset: Dataset, folder: Path | None, callbacks: Sequence[Callback]
    ) -> None:
        self.settings, self.dataset = settings, dataset
        self.folder, self.callbacks = folder, callbacks
        self.kind = ORACLES[settings.method]
        self.train, self.validation = hold_out(dataset, settings.selection.validation, settings.seed)
        if self.train.labels.nnz == 0:
            raise DataError("no training instance has a label, so there is nothing to learn")
        own_validation = dataset.validation is not None
        self.refits = settings.selection.refit and self.validation is not None and not own_validation
        self.chosen: dict[str, Any] | None = None
        self.seconds = 0.0

    def run(self) -> TrainedOracle:
        candidates = self.kind.candidates(self.settings)
        with Interrupt() as interrupt:
            if self.validation is None or (self.refits and len(candidates) == 1):
                return self._fit("fit", candidates[0], interrupt)
            kept = self._select(candidates, interrupt)
            assert self.chosen is not None
            return kept or self._fit("refit", self.chosen["penalty"], interrupt)

    def _select(self, candidates: tuple[float | None, ...], interrupt: Interrupt) -> TrainedOracle | None:
        """Choose the best candidate; what it gave is kept unless it is to be fitted again."""
        assert self.validation is not None
        kept, tried = None, []
        following = self._follow("select", len(self.train), len(candidates), interrupt)
        began = time.perf_counter()
        for candidate, oracle in self.kind.fits(self.settings, self._scaled(self.train), candidates, following):
            self.seconds += time.perf_counter() - began
            trained = self._trained(oracle, self.train)
            metrics = measure(trained.scorer(self.validation.features), self.validation.labels)
            value = metrics[self.settings.selection.metric]
            tried.append({"penalty": candidate, "value": value})
            if self.chosen is None or value > self.chosen["value"]:
                named = {f"validation {name}": number for name, number in metrics.items()}
                self.chosen = {"round": 1, "value": value, "metrics": named, "penalty": candidate}
                kept = None if self.refits else trained
            began = time.perf_counter()  # as in a federated run, the seconds are those of training
        assert self.chosen is not None
        self.chosen["tried"] = tried
        self._record("select", self.chosen["metrics"])
        return kept

    def _fit(self, phase: str, candidate: float | None, interrupt: Interrupt) -> TrainedOracle:
        train = self.dataset.train
        following = self._follow(phase, len(train), 1, interrupt)
        began = time.perf_counter()
        ((_, oracle),) = self.kind.fits(self.settings, self._scaled(train), (candidate,), following)
        self.seconds += time.perf_counter() - began
        self._record(phase, {})
        return self._trained(oracle, train)

    def _trained(self, oracle: Any, train: Split) -> TrainedOracle:
        held = np.asarray(train.labels.getnnz(axis=0) > 0)
        return TrainedOracle(oracle, self.settings.encoder.features, self.dataset.label_names, held)

    def _scaled(self, split: Split) -> Split:
        return Split(scale_rows(split.features, self.settings.encoder.features), split.labels)

    def _follow(self, phase: str, instances: int, candidates: int, interrupt: Interrupt) -> _Following:
        steps = self.kind.steps(self.settings, instances, self.dataset.label_count, candidates)
        return _Following(self.callbacks, phase, steps, interrupt)

    def _record(self, phase: str, metrics: dict[str, float]) -> None:
        """A phase's only record. It has no loss and no embeddings to measure, and sends nothing."""
        nothing = {"loss": None, "collapse": None, "bytes_down": 0, "bytes_up": 0}
        record = {"phase": phase, "round": 1, "metrics": metrics, "seconds": self.seconds, "rounds_run": 1, **nothing}
        if self.folder:
            history.append(self.folder / "history.jsonl", record)
        for callback in self.callbacks:
            callback.evaluated(record)

    def test(self, trained: TrainedOracle) -> dict[str, float]:
        """The only look at the test set."""
        test = self.dataset.test
        return measure(trained.scorer(test.features), test.labels, inverse_propensity(self.dataset), with_map=True)

    def resume(self) -> None:
        """From the beginning."""
        assert self.folder is not None
        history.rewrite(self.folder / "history.jsonl", [])


class _Following:
    """Passes a fit's steps on to the callbacks, and a wish to stop on to the fit."""

    def __init__(self, callbacks: Sequence[Callback], phase: str, steps: int, interrupt: Interrupt) -> None:
        self._callbacks, self._phase, self._steps, self._interrupt = callbacks, phase, steps, interrupt
        self._number = 0
        for callback in callbacks:
            callback.phase(phase, steps, 0)

    def done(self, what: str) -> None:
        self._number += 1
        for callback in self._callbacks:
            callback.step(self._number, what)
        self.check()

    def check(self) -> None:
        if self._interrupt.asked:
            raise Interrupted(
                f"after step {self._number} of {self._steps} of phase '{self._phase}'; a centralised training keeps "
                "no checkpoint and will begin again"
            )
