"""A centralised run from settings to result: choose a candidate on validation data, fit, test once.

Phases as in a federated run: `select` fits each candidate on a part of train and evaluates it on the rest; `refit` fits
the best one on all of train. With a single candidate the only phase is `fit`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.core.interrupt import Interrupt
from fedalc.core.registry import ORACLES
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import DataError, Interrupted
from fedalc.evaluation.calibrate import fit_calibration, held_out_scores, log_shares, some_records
from fedalc.evaluation.evaluate import measure
from fedalc.models.calibration import Calibration
from fedalc.oracles import Oracle, OracleScorer, TrainedOracle
from fedalc.runs import history
from fedalc.training.base import AnyTraining, Callback, inverse_propensity, listening
from fedalc.training.calibration import refusal, summary
from fedalc.training.reasons import why_candidate


class OracleTraining(AnyTraining):
    """Trains and tests an oracle. It writes no checkpoint, so a resumed run starts again."""

    centralised = True
    kept_round = 1
    chosen: dict[str, Any] | None = None

    def __init__(
        self, settings: Experiment, dataset: Dataset, folder: Path | None, callbacks: Sequence[Callback]
    ) -> None:
        super().__init__(settings, dataset, folder, callbacks)
        self.kind = ORACLES[settings.method]
        self.seconds = 0.0

    def prepare(self) -> Self:
        self.kind.check_ready()
        super().prepare()
        if self.train.labels.nnz == 0:
            raise DataError("no training instance has a label, so there is nothing to learn")
        return self

    def run(self, interrupt: Interrupt | None = None) -> TrainedOracle:
        candidates = self.kind.candidates(self.settings)
        with listening(interrupt) as heard:
            if self.validation is None or (self.refits and len(candidates) == 1):
                trained = self._fit("fit", candidates[0], heard)
                self.calibration = {"left_out": "no record was held out"}
            else:
                best, calibration = self._select(candidates, heard)
                assert self.chosen is not None
                trained = best or self._fit("refit", self.chosen[self.kind.choice], heard)
                trained = replace(trained, calibration=calibration)
        if self.chosen is not None or trained.oracle.unconverged:
            self.chosen = {**(self.chosen or {}), "unconverged": trained.oracle.unconverged}
        return trained

    def _select(
        self, candidates: tuple[float | None, ...], interrupt: Interrupt
    ) -> tuple[TrainedOracle | None, Calibration | None]:
        """Choose the best candidate. Return its trained oracle, or None if `refit` will train it again, and what its
        scores of validation data give for probabilities."""
        assert self.validation is not None
        best, calibration, tried = None, None, []
        self.log(f"choosing the {self.kind.choice} by {self.settings.selection.metric} on {self._judged_on}")
        following = self._follow("select", len(self.train), len(candidates), interrupt)
        began = time.perf_counter()
        for candidate, oracle in self.kind.fits(self.settings, self._scaled(self.train), candidates, following):
            self.seconds += time.perf_counter() - began
            trained = self._trained(oracle, self.train)
            scorer = OracleScorer(trained.oracle, self.validation.features, trained.held)
            trials = self._validation_trials(scorer, trained.held)
            metrics = self._measured(trained, self.validation, with_map=self._with_map, trials=trials)
            value = metrics[self.settings.selection.metric]
            named = {f"validation {name}": number for name, number in metrics.items()}
            found = {"value": value, "unconverged": oracle.unconverged, "metrics": named}
            tried.append({self.kind.choice: candidate, **found})
            if self.chosen is None or self._is_better(value, self.chosen["value"]):
                self.chosen = {"round": 1, "value": value, "metrics": named, self.kind.choice: candidate}
                best = None if self.refits else trained
                calibration = self._fit_calibration(trained)
            began = time.perf_counter()  # as in a federated run, count only the seconds of training
        assert self.chosen is not None
        self.chosen |= {"tried": tried, "edge": edge(self.chosen[self.kind.choice], candidates)}
        self._record("select", self.chosen["metrics"])
        return best, calibration

    def _fit_calibration(self, trained: TrainedOracle) -> Calibration | None:
        if (reason := refusal(self.settings)) is not None:
            self.calibration = {"left_out": reason}
            return None
        assert self.validation is not None
        some, seed, budget = some_records(self.validation, self.settings.seed), self.settings.seed, self._budget
        scorer = OracleScorer(trained.oracle, some.features, trained.held)
        shares = log_shares(self.train.labels)
        scored = held_out_scores(scorer, some.labels, trained.held, shares, seed, budget)
        calibration = fit_calibration(
            [scored], self.dataset.label_count, log_shares(self.dataset.train.labels), self._verifies
        )
        self.calibration = summary(calibration)
        return calibration

    def _fit(self, phase: str, candidate: float | None, interrupt: Interrupt) -> TrainedOracle:
        train = self.dataset.train
        following = self._follow(phase, len(train), 1, interrupt)
        began = time.perf_counter()
        ((_, oracle),) = self.kind.fits(self.settings, self._scaled(train), (candidate,), following)
        self.seconds += time.perf_counter() - began
        self._record(phase, {})
        return self._trained(oracle, train)

    def _trained(self, oracle: Oracle, train: Split) -> TrainedOracle:
        has_instances = np.asarray(train.labels.getnnz(axis=0) > 0)
        data, rows = self.dataset, self.settings.encoder.features
        return TrainedOracle(oracle, rows, data.label_names, has_instances, data.text, pictures=data.pictures)

    def _measured(self, trained: TrainedOracle, scaled: Split, **more: Any) -> dict[str, float]:
        scorer = OracleScorer(trained.oracle, scaled.features, trained.held)
        return measure(scorer, scaled.labels, budget=self.settings.memory_budget, **more)

    def _follow(self, phase: str, instances: int, candidates: int, interrupt: Interrupt) -> _Following:
        steps = self.kind.steps(self.settings, instances, self.dataset.label_count, candidates)
        return _Following(self.callbacks, phase, steps, interrupt)

    def _record(self, phase: str, metrics: dict[str, float]) -> None:
        """Write the only record of a phase. It has no loss, no class embeddings and no traffic."""
        nothing = {"loss": None, "collapse": None}
        self._evaluated({"phase": phase, "round": 1, "metrics": metrics, **self.cost(), **nothing})

    def cost(self) -> dict[str, Any]:
        """Return the cost of training. It counts as one round, and without clients there is no traffic."""
        return {"seconds": self.seconds, "rounds_run": 1, "bytes_down": 0, "bytes_up": 0}

    def test(self, trained: TrainedOracle) -> dict[str, float]:
        """Evaluate on the test set, once. Return {} if there is none."""
        if not len(self.dataset.test):
            return {}
        inverse = inverse_propensity(self.dataset)
        more = {"inverse_propensity": inverse, "with_map": True, "calibration": trained.calibration}
        test, trials = self._tested(
            lambda split: OracleScorer(trained.oracle, split.features, trained.held), trained.held
        )
        return self._measured(trained, test, trials=trials, **more)

    def why_kept(self) -> str:
        metric, choice = self.settings.selection.metric, self.kind.choice
        return why_candidate(metric, choice, self.chosen, self._judged_on, self.refits)

    def resume(self) -> None:
        """Start again from the beginning."""
        assert self.folder is not None
        history.rewrite(self.folder / "history.jsonl", [])


def edge(chosen: float | None, candidates: Sequence[float | None]) -> str | None:
    """Return "smallest" or "largest" if the best candidate is at that end of the range: one beyond may be better."""
    numbers = [candidate for candidate in candidates if candidate is not None]
    if len(numbers) < 2 or chosen not in (min(numbers), max(numbers)):
        return None
    return "smallest" if chosen == min(numbers) else "largest"


class _Following:
    """Passes the steps of a fit to the callbacks, and an interrupt to the fit."""

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
                f"after step {self._number} of {self._steps} of phase '{self._phase}'; centralised training writes "
                "no checkpoint, so it will start again"
            )
