"""A run from settings to result: choose the number of rounds on validation data, fit, look at the test set once.

A run has one or two phases, each a federated training of its own. `select` trains on a part of train and evaluates on
the rest; `refit` trains again on all of train, for the number of rounds that was best. Without validation data the only
phase is `fit`; with `selection.refit = false` it is `select`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.interrupt import Interrupt
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import FedalcError, Interrupted
from fedalc.evaluation.calibrate import fit_calibration, log_shares
from fedalc.evaluation.evaluate import evaluate, measure, scorer_for
from fedalc.labels.privacy.accounts import dataset_account
from fedalc.labels.privacy.ledger import Account
from fedalc.methods import METHODS
from fedalc.models.calibration import Calibration
from fedalc.models.class_embeddings import collapse_of
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from fedalc.runs import history
from fedalc.runs.result import Result
from fedalc.training import checkpoint
from fedalc.training.base import AnyTraining, Callback, inverse_propensity, listening
from fedalc.training.best_round import BestRound
from fedalc.training.calibration import calibrate_on_parts, refusal, score_validation, summary
from fedalc.training.federated import FederatedTraining, knowledge_for, simulated
from fedalc.training.privacy_budget import PrivacyBudget
from fedalc.training.reasons import goes_by, why_round
from fedalc.training.stranger_trials import with_stranger_trials


class Training(AnyTraining):
    """The loop over rounds. `epsilon_budget`: the ε that all runs on this data may spend together."""

    centralised = False
    checkpoint_seconds = 60.0
    has_key = True  # of the clients, who are all here: with it the model of a training with secret rows can score

    # Set by `prepare`:
    phase: str
    federated: FederatedTraining  # of the current phase
    best: BestRound
    budget: PrivacyBudget

    def __init__(
        self,
        settings: Experiment,
        dataset: Dataset,
        folder: Path | None,
        callbacks: Sequence[Callback],
        epsilon_budget: float | None = None,
    ) -> None:
        super().__init__(settings, dataset, folder, callbacks)
        self.epsilon_budget = epsilon_budget
        self.rounds = 1 if METHODS[settings.method].one_round else settings.rounds  # of the current phase
        self.planned = self.rounds  # in the phase that chooses
        self.unevaluated: float | None = None  # the loss of a round that was saved before its evaluation
        # Cost of the phases that are over:
        self.spent = {"seconds": 0.0, "rounds_run": 0, "bytes_down": 0, "bytes_up": 0, "looks_at_labels": 0}
        self._saved_at = time.monotonic()

    def prepare(self) -> Self:
        """Also collect the labels of the first phase and draw its model."""
        super().prepare()
        self.phase = "fit" if self.validation is None else "select"
        self.best = BestRound(self.settings.selection, keeps_model=not self.refits)
        self.budget = PrivacyBudget(self.settings, 2 if self.refits else 1, self.folder, self._account)
        self.federated = self._begin_phase(self.train)
        self._saved_at = time.monotonic()
        return self

    # --- the loop ---

    def run(self, interrupt: Interrupt | None = None) -> TrainedModel:
        with listening(interrupt) as interrupt:
            if self._draws_noise:
                self.budget.charge()
            self._run_phase(interrupt)
            if self.phase == "select" and self.refits:
                self._start_refit()
                self._run_phase(interrupt)
            self._save_if_due(force=True)
            calibration = with_stranger_trials(self._calibrated(interrupt), self.settings, self.dataset)
        data, secret = self.dataset, self.settings.embeddings.secret and not self.has_key
        kept, held = self._kept_model(), self.federated.held
        return TrainedModel(
            kept, self.settings.encoder, data.label_names, held, data.text, calibration, secret, data.pictures
        )

    def _run_phase(self, interrupt: Interrupt) -> None:
        federated, every = self.federated, self.settings.selection.every
        self._save_if_due(force=self._draws_noise)
        for callback in self.callbacks:
            callback.stop = False
            callback.phase(self.phase, self.rounds, federated.round_number)
        if self.phase == "select":
            self.log(goes_by(self.settings.selection, self.rounds, self._judged_on, self.refits))
        if self.unevaluated is not None:
            self._evaluate(self.unevaluated)
        while federated.round_number < self.rounds and not self.best.patience_is_over and not self._told_to_stop:
            loss = federated.run_round()
            due = federated.round_number % every == 0 or federated.round_number == self.rounds
            # Checking all of θ and W costs more than a round of few clients, and the next loss would show NaNs anyway.
            if not math.isfinite(loss) or due:
                self._refuse_divergence(loss)
            if self.budget.draws_noise_each_round(federated.knowledge):  # saved before its outcome is shown
                self.unevaluated = loss if due else None
                self._save_if_due(force=True)
            for callback in self.callbacks:
                callback.round(federated.round_number, loss)
            if due or self._told_to_stop:
                self._evaluate(loss)
            stop = distributed.any_of(interrupt.asked)
            self._save_if_due(force=stop)
            if stop:
                raise Interrupted(f"after round {federated.round_number} of phase '{self.phase}'")

    @property
    def _told_to_stop(self) -> bool:
        """Whether a callback has ended the phase. A refit repeats the chosen number of rounds, whatever it says."""
        return self.phase != "refit" and distributed.any_of(any(callback.stop for callback in self.callbacks))

    def _begin_phase(self, train: Split) -> FederatedTraining:
        """Start a phase's training. Its clients hold other instances than another phase's, so labels are collected
        anew; a collection file must cover the labels of all phases, so that the last one does not fail."""
        needed = self.dataset.train.labels.getnnz(axis=0) > 0
        names, phases = self.dataset.label_names, self.budget.phases
        knowledge = knowledge_for(self.settings, train, names, self.phase, phases, needed)
        return simulated(self.settings, self._scaled(train), knowledge)

    def _start_refit(self) -> None:
        assert self.chosen is not None
        self.spent = self.cost()
        self.phase, self.rounds, self.best.stale = "refit", self.chosen["round"], 0
        self.federated = self._begin_phase(self.dataset.train)
        self._save_if_due(force=True)

    def _refuse_divergence(self, loss: float = 0.0) -> None:
        if not (math.isfinite(loss) and self.federated.is_finite()):
            if self.federated.method.one_round:
                raise FedalcError("the solution has numbers that are not finite: check that features vary (data check)")
            raise FedalcError(
                f"training diverged: numbers that are not finite after round {self.federated.round_number}; "
                "lower client.learning_rate, server.learning_rate or regularizer.lambda"
            )

    # --- evaluation and selection ---

    def _evaluate(self, loss: float) -> None:
        model, round_number = self.federated.averaged_model(), self.federated.round_number
        distributed.check_equal(self.federated.model.copies, f"after round {round_number}")
        metrics: dict[str, float] = {}
        if self.phase == "select":
            assert self.validation is not None
            held, labels = self.federated.held, self.validation.labels
            scorer = scorer_for(model, self.validation, held, self._budget)
            trials = self._validation_trials(scorer, held)
            found = measure(scorer, labels, with_map=self._with_map, budget=self._budget, trials=trials)
            metrics = {f"validation {name}": value for name, value in found.items()}
            is_best = self.best.consider(round_number, found[self.settings.selection.metric], metrics, model)
            if is_best and refusal(self.settings) is None:
                scored = score_validation(scorer, self.validation, self.train, model, held, self.settings)
                shares = log_shares(self.dataset.train.labels)
                self.best.fit_later(partial(fit_calibration, [scored], labels.shape[1], shares, self._verifies))
        elif self.phase == "fit" and self.settings.selection.test_curve and len(self.dataset.test):
            held = self.federated.held
            found = self._evaluated_on_test(model, held, None, self._with_map)
            metrics = {f"test {name}": value for name, value in found.items()}
        self._record(loss, metrics, model)

    def _calibrated(self, interrupt: Interrupt) -> Calibration | None:
        """Return what turns scores into probabilities: from validation data, or from parts of train."""
        reason = refusal(self.settings)
        if reason is not None:
            self.calibration = {"left_out": reason}
            return None
        if self.validation is not None:
            self.calibration = summary(self.best.calibration)
            return self.best.calibration
        calibration, self.calibration = calibrate_on_parts(
            self.settings, self.dataset, self.rounds, self.tuning is not None, partial(self._calibrating, interrupt)
        )
        return calibration

    def _calibrating(self, interrupt: Interrupt, done: int, rounds: int) -> None:
        for callback in self.callbacks:
            callback.part("rounds to fit probabilities", done, rounds)
        if interrupt.asked:
            raise Interrupted("while fitting probabilities; a resumed run starts with them")

    def _record(self, loss: float, metrics: dict[str, float], model: Model) -> None:
        """Pass an evaluation on to the history and the other callbacks."""
        record: dict[str, Any] = {"phase": self.phase, "round": self.federated.round_number, "loss": loss}
        record |= {"metrics": metrics, "collapse": collapse_of(model, self.federated.held, self._budget)}
        self._evaluated(record | self.cost())
        self.unevaluated = None

    def _kept_model(self) -> Model:
        return self.best.model(self.federated.model) if self.phase == "select" else self.federated.averaged_model()

    # --- the result ---

    @property
    def chosen(self) -> dict[str, Any] | None:
        return self.best.chosen

    def why_kept(self) -> str:
        refitted = self.phase == "refit"
        ran = self.spent["rounds_run"] if refitted else self.federated.round_number
        return why_round(self.settings.selection, self.chosen, (int(ran), self.planned), self._judged_on, refitted)

    @property
    def kept_round(self) -> int:
        if self.phase == "select" and self.chosen is not None:
            return int(self.chosen["round"])
        return self.federated.round_number

    def cost(self) -> dict[str, Any]:
        now = self.federated
        return {
            "seconds": self.spent["seconds"] + now.seconds,
            "rounds_run": self.spent["rounds_run"] + now.round_number,
            "bytes_down": self.spent["bytes_down"] + now.ledger.down,
            "bytes_up": self.spent["bytes_up"] + now.ledger.up,
            "looks_at_labels": self.spent["looks_at_labels"] + (0 if now.knowledge is None else now.knowledge.looks),
        }

    def test(self, trained: TrainedModel) -> dict[str, float]:
        """The only look at the test set, except for `selection.test_curve`, which chooses nothing."""
        if not len(self.dataset.test):
            return {}
        inverse = inverse_propensity(self.dataset)
        return self._evaluated_on_test(trained.model, trained.held, inverse, True, trained.calibration)

    def _evaluated_on_test(
        self,
        model: Model,
        held: np.ndarray,
        inverse: np.ndarray | None,
        with_map: bool,
        calibration: Calibration | None = None,
    ) -> dict[str, float]:
        test, trials = self._tested(partial(scorer_for, model, held=held, budget=self._budget), held)
        return evaluate(model, test, held, inverse, with_map, self._budget, calibration, trials)

    def result(self, trained: TrainedModel) -> Result:
        result = super().result(trained)
        federation, knowledge = self.federated.federation, self.federated.knowledge
        result.engine = self.settings.engine
        result.aggregation = self.settings.server.aggregation
        result.collapse = collapse_of(trained.model, trained.held, self._budget)
        private = self.settings.privacy.covers_records  # which labels have a record is not released
        result.clients = federation.label_count if private else len(federation.clients)
        if self.settings.clients == "users":
            result.users = len(np.unique(federation.user_of[federation.clients]))
        if self.settings.clients == "parties":
            result.parties = len(set(self.dataset.train.parties or ()))
        result.collection = None if knowledge is None else knowledge.collection
        result.privacy = self.budget.spent(knowledge, self.cost()["looks_at_labels"])
        return result

    def finish(self, interrupt: Interrupt) -> tuple[TrainedModel, Result]:
        trained, result = super().finish(interrupt)
        return replace(trained, model=trained.model.gathered()), result

    # --- privacy ---

    def check_budget(self, resume: bool) -> None:
        if self._draws_noise and self.epsilon_budget is not None:
            self.budget.check(resume)

    @property
    def _draws_noise(self) -> bool:
        return self.budget.draws_noise(self.federated.knowledge)

    def _account(self) -> Account:
        return dataset_account(self.dataset, self.settings.dataset, self.epsilon_budget)

    # --- checkpoints: the state of the loop and of the current phase's training ---

    def _save_if_due(self, force: bool) -> None:
        due = force or time.monotonic() - self._saved_at > self.checkpoint_seconds
        if self.folder is None or not distributed.any_of(due):
            return
        self._refuse_divergence()  # a good checkpoint must not be replaced by NaNs
        tensors, facts = self.federated.tensors() | self.best.tensors(self.federated.model), self._facts()
        if self.writes:
            checkpoint.save(self.folder, tensors, facts)
        self._saved_at = time.monotonic()

    def resume(self) -> None:
        """Continue from the newest intact checkpoint and cut the history back to it. Without one, start over."""
        assert self.folder is not None
        path = self.folder / "history.jsonl"
        if not checkpoint.exists(self.folder):
            distributed.barrier()  # all processes have looked
            if self.writes:
                history.rewrite(path, [])
            return
        saved = checkpoint.load(self.folder, self._may_fall_back, self.note)
        if saved.facts.get("data") != self.dataset.fingerprint:
            raise FedalcError(f"{self.folder}: this run began with other data than {self.dataset.name} holds now")
        checkpoint.check_settings(self.folder, saved.facts.get("settings"), self.settings, self.note)
        try:
            self._restore(saved.tensors, saved.facts)
        except (KeyError, TypeError, RuntimeError) as error:
            raise checkpoint.misfit(self.folder, error) from None
        distributed.barrier()  # all processes have read it, so it may be replaced
        if self.writes:
            if saved.fell_back:
                checkpoint.remove_newest(self.folder)
            done = self.federated.round_number - (self.unevaluated is not None)
            history.rewrite(path, checkpoint.records_until(history.read(path), self.phase, done))

    def _may_fall_back(self, facts: dict[str, Any]) -> bool:
        return not self.budget.draws_again_from(facts.get("phase"), self.federated.knowledge)

    def _facts(self) -> dict[str, Any]:
        return {
            "settings": self.settings.to_dict(),
            "data": self.dataset.fingerprint,
            "phase": self.phase,
            "rounds": self.rounds,
            **self.best.facts(),
            "unevaluated": self.unevaluated,
            "spent": self.spent,
            "federated": self.federated.facts(),
        }

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.phase, self.rounds, self.spent = facts["phase"], facts["rounds"], self.spent | facts["spent"]
        self.unevaluated = facts.get("unevaluated")
        if self.phase == "refit":
            self.federated = self._begin_phase(self.dataset.train)
        self.federated.restore(tensors, facts["federated"])
        self.best.restore(tensors, facts, self.federated.model)
