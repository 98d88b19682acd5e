"""A run from settings to result: choose the number of rounds on validation, fit, look at the test set once.

Two phases, each a federated training of its own. `select` trains on a part of train and evaluates on the rest of it;
`refit` trains again on all of train for the number of rounds that was best. Without validation data, or with
`selection.refit = false`, there is only one.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedalc.config.experiment import Experiment, flat
from fedalc.core import distributed
from fedalc.core.atomic_files import previous, remove_folder, sync_file
from fedalc.core.interrupt import Interrupt
from fedalc.core.tensor_folder import Damaged, load_folder, save_folder
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import ConfigError, FedalcError, Interrupted
from fedalc.evaluation.evaluate import evaluate
from fedalc.labels.knowledge import planned_charge, privacy_spent
from fedalc.labels.privacy.accounts import charge_run, check_run, dataset_account
from fedalc.labels.privacy.ledger import Account, Charge
from fedalc.methods import METHODS
from fedalc.models.class_embeddings import collapse_of
from fedalc.models.model import Model, model_with
from fedalc.models.trained import TrainedModel
from fedalc.runs import history
from fedalc.runs.folder import PARTIES_LOG
from fedalc.training.base import AnyTraining, Callback, inverse_propensity, listening
from fedalc.training.federated import FederatedTraining, knowledge_for, planned_looks, simulated

# What may change while a run is stopped: where and how it is computed. (The data has a fingerprint of its own.)
MAY_CHANGE = ("name", "dataset", "device", "memory_budget", "shard_rows")


class Training(AnyTraining):
    """The loop over rounds, with its checkpoint."""

    centralised = False
    checkpoint_seconds = 60.0
    epsilon_budget: float | None = None  # what may be spent on this data, by all runs together

    def __init__(
        self, settings: Experiment, dataset: Dataset, folder: Path | None, callbacks: Sequence[Callback]
    ) -> None:
        super().__init__(settings, dataset, folder, callbacks)
        self.phase = "fit" if self.validation is None else "select"
        self.rounds = 1 if METHODS[settings.method].one_round else settings.rounds
        self.chosen_tensors: dict[str, Tensor] = {}
        self.stale = 0  # evaluations since the best
        self.unevaluated: float | None = None  # the loss of a round that was saved first and is evaluated next
        # In phases that are over:
        self.spent = {"seconds": 0.0, "rounds_run": 0, "bytes_down": 0, "bytes_up": 0, "looks_at_labels": 0}
        self.federated = self._begin(self.train)
        self._saved_at = time.monotonic()

    def run(self, interrupt: Interrupt | None = None) -> TrainedModel:
        with listening(interrupt) as heard:
            self._charge()
            self._run_phase(heard)
            if self.phase == "select" and self.refits:
                self._start_refit()
                self._run_phase(heard)
            self._save_if_due(force=True)
        model = self._chosen_model() if self.phase == "select" else self.federated.averaged_model()
        return TrainedModel(model, self.settings.encoder, self.dataset.label_names, self.federated.held)

    def _run_phase(self, interrupt: Interrupt) -> None:
        federated, every = self.federated, self.settings.selection.every
        self._save_if_due(force=self._spends)
        for callback in self.callbacks:
            callback.phase(self.phase, self.rounds, federated.round_number)
        if self.unevaluated is not None:
            self._evaluate(self.unevaluated)
        while federated.round_number < self.rounds:
            patience = self.settings.selection.patience
            if patience is not None and self.stale >= patience:
                break
            loss = federated.run_round()
            due = federated.round_number % every == 0 or federated.round_number == self.rounds
            # Looking at all of θ and W costs more than a round of few clients, and the next loss would show it.
            if not math.isfinite(loss) or due:
                self._refuse_divergence(loss)
            if self._spends_each_round:  # saved before anybody is told what its noise has made
                self.unevaluated = loss if due else None
                self._save_if_due(force=True)
            for callback in self.callbacks:
                callback.round(federated.round_number, loss)
            if due:
                self._evaluate(loss)
            stop = distributed.any_of(interrupt.asked)
            self._save_if_due(force=stop)
            if stop:
                raise Interrupted(f"after round {federated.round_number} of phase '{self.phase}'")

    def _refuse_divergence(self, loss: float = 0.0) -> None:
        if not (math.isfinite(loss) and self.federated.is_finite()):
            raise FedalcError(
                f"training diverged: numbers that are not finite after round {self.federated.round_number}; "
                "lower client.learning_rate, server.learning_rate or regularizer.lambda"
            )

    def _evaluate(self, loss: float) -> None:
        record: dict[str, Any] = {"phase": self.phase, "round": self.federated.round_number, "loss": loss}
        model = self.federated.averaged_model()
        distributed.check_equal(self.federated.model.copies, f"after round {self.federated.round_number}")
        if self.phase == "select":
            assert self.validation is not None
            metrics = evaluate(model, self.validation, self.federated.held, with_map=self._maps, budget=self._budget)
            record["metrics"] = {f"validation {name}": value for name, value in metrics.items()}
            self._choose(record, metrics[self.settings.selection.metric], model)
        elif self.phase == "fit" and self.settings.selection.test_curve and len(self.dataset.test):
            metrics = evaluate(model, self._scaled_test, self.federated.held, with_map=self._maps, budget=self._budget)
            record["metrics"] = {f"test {name}": value for name, value in metrics.items()}
        else:
            record["metrics"] = {}
        record["collapse"] = collapse_of(model, self.federated.held, self._budget)
        self._evaluated(record | self.cost())
        self.unevaluated = None

    def _choose(self, record: dict[str, Any], value: float, model: Model) -> None:
        self.stale += 1
        keeps_last = self.settings.selection.keep == "last"
        if self.chosen is None or self._is_better(value, self.chosen["value"]) or keeps_last:
            self.stale = 0
            self.chosen = {"round": record["round"], "value": value, "metrics": record["metrics"]}
            if not self.refits:  # otherwise the number of rounds is all that is kept
                self.chosen_tensors = {f"chosen.{i}": tensor.detach().clone() for i, tensor in enumerate(model.values)}

    def _start_refit(self) -> None:
        assert self.chosen is not None
        self.spent = self.cost()
        self.phase, self.rounds, self.stale = "refit", self.chosen["round"], 0
        self.federated = self._begin(self.dataset.train)
        self._save_if_due(force=True)

    def _chosen_model(self) -> Model:
        chosen = [self.chosen_tensors[f"chosen.{i}"] for i in range(len(self.chosen_tensors))]
        return model_with(self.federated.model, chosen)

    @property
    def kept_round(self) -> int:
        """How many rounds the resulting model has been trained for."""
        if self.phase == "select" and self.chosen is not None:
            return int(self.chosen["round"])
        return self.federated.round_number

    def _begin(self, train: Split) -> FederatedTraining:
        """A phase's training. Its clients hold other instances than another phase's, so labels are collected anew."""
        held = self.dataset.train.labels.getnnz(axis=0) > 0  # by all phases: the last must not find that a label lacks
        knowledge = knowledge_for(self.settings, train, self.dataset.label_names, self.phase, self._phases, held)
        return simulated(self.settings, self._scaled(train), knowledge)

    @property
    def _phases(self) -> int:
        return 2 if self.refits else 1

    @property
    def _spends(self) -> bool:
        """Whether noise has been drawn that must not be drawn again: then it is kept at once."""
        return self.federated.knowledge is not None and self.settings.privacy.mechanism is not None

    @property
    def _spends_each_round(self) -> bool:
        """Whether each round draws noise: then it is saved before anything made with it is shown, so that noise is
        drawn again only for a round that nobody has seen."""
        return self._spends and self.settings.privacy.mechanism == "gradients"

    def check_budget(self, resume: bool) -> None:
        """Refuse a run that would spend more than its budget, before anything is written."""
        if self._spends and self.epsilon_budget is not None:
            self._in_ledger(lambda account, charge: check_run(account, charge, self.folder, resume))

    def _charge(self) -> None:
        """Enter what all phases may spend into the privacy ledger, before the noise that was drawn is used."""
        if self._spends:
            self._in_ledger(lambda account, charge: charge_run(account, charge, self.folder))

    def _in_ledger(self, act: Callable[[Account, Charge], None]) -> None:
        """The first process acts; where it is refused, all are."""
        refusal: Exception | None = None
        if distributed.is_first():
            try:
                account, planned = self._account(), planned_looks(self.settings, self._phases)
                act(account, planned_charge(self.settings, account, planned, self.folder))
            except (FedalcError, OSError) as error:
                refusal = error
        if distributed.any_of(refusal is not None):
            raise refusal or FedalcError("the first process could not enter the run into the privacy ledger")

    def _account(self) -> Account:
        return dataset_account(self.dataset, self.settings.dataset, self.epsilon_budget)

    def cost(self) -> dict[str, Any]:
        """Seconds of training, rounds and bytes so far, over all phases."""
        now = self.federated
        return {
            "seconds": self.spent["seconds"] + now.seconds,
            "rounds_run": self.spent["rounds_run"] + now.round_number,
            "bytes_down": self.spent["bytes_down"] + now.ledger.down,
            "bytes_up": self.spent["bytes_up"] + now.ledger.up,
            "looks_at_labels": self.spent["looks_at_labels"] + (0 if now.knowledge is None else now.knowledge.looks),
        }

    def privacy(self) -> dict[str, Any] | None:
        """What was spent over all phases."""
        planned = planned_looks(self.settings, self._phases)
        return privacy_spent(self.settings, self.federated.knowledge, planned, self.cost()["looks_at_labels"])

    def test(self, trained: TrainedModel) -> dict[str, float]:
        """The only look at the test set, unless its curve was asked for, by which nothing is chosen. {} without one."""
        if not len(self.dataset.test):
            return {}
        inverse = inverse_propensity(self.dataset)
        return evaluate(trained.model, self._scaled_test, trained.held, inverse, True, self._budget)

    def finish(self, interrupt: Interrupt) -> tuple[TrainedModel, dict[str, Any]]:
        """Run and test it: the model, and what result.json says that an oracle has not, or in another way."""
        trained = self.run(interrupt)
        knowledge = self.federated.knowledge
        own = {
            "engine": self.settings.engine,
            "aggregation": self.settings.server.aggregation,
            "metrics": self.test(trained),
            "collapse": collapse_of(trained.model, trained.held, self._budget),
            "clients": len(self.federated.federation.clients),
            "users": self._users,
            "collection": None if knowledge is None else knowledge.collection,
            "privacy": self.privacy(),
        }
        return replace(trained, model=trained.model.gathered()), own

    @property
    def _users(self) -> int | None:
        """How many there are, where clients are theirs."""
        federation = self.federated.federation
        return None if self.settings.clients == "labels" else len(np.unique(federation.user_of[federation.clients]))

    # --- checkpoints: the state of the loop and of the federated training within it ---

    def _save_if_due(self, force: bool) -> None:
        due = force or time.monotonic() - self._saved_at > self.checkpoint_seconds
        if self.folder is None or not distributed.any_of(due):
            return
        self._refuse_divergence()  # rather than put it in the place of what was good
        facts = {
            "settings": self.settings.to_dict(),
            "data": self.dataset.fingerprint,
            "phase": self.phase,
            "rounds": self.rounds,
            "chosen": self.chosen,
            "stale": self.stale,
            "unevaluated": self.unevaluated,
            "spent": self.spent,
            "federated": self.federated.facts(),
        }
        tensors = self.federated.tensors() | self.chosen_tensors
        if self.chosen_tensors:
            last = f"chosen.{len(self.chosen_tensors) - 1}"
            tensors[last] = self.federated.model.all_rows(self.chosen_tensors[last])
        if self.writes:
            if (self.folder / PARTIES_LOG).exists():
                sync_file(self.folder / PARTIES_LOG)
            save_folder(self.folder / "checkpoint", tensors, facts, keep_previous=True)
        self._saved_at = time.monotonic()

    def resume(self) -> None:
        """Take up the newest checkpoint that is whole; the history is cut back to it."""
        assert self.folder is not None
        newest = self.folder / "checkpoint"
        if not newest.exists() and not previous(newest).exists():
            distributed.barrier()  # all have seen that
            if self.writes:
                history.rewrite(self.folder / "history.jsonl", [])
            return  # stopped before its first checkpoint: from the beginning
        tensors, facts, fell_back = self._load(newest)
        if facts.get("data") != self.dataset.fingerprint:
            raise FedalcError(f"{self.folder}: this run began with other data than {self.dataset.name} holds now")
        self._check_settings(facts.get("settings"))
        try:
            self._restore(tensors, facts)
        except (KeyError, TypeError, RuntimeError) as error:
            raise Damaged(f"{newest}: damaged, it does not fit the run: {error}") from None
        distributed.barrier()  # all have read it, so it may be written again
        if self.writes:
            if fell_back:
                remove_folder(newest)  # or it would become the one before
            history.rewrite(self.folder / "history.jsonl", self._done(history.read(self.folder / "history.jsonl")))

    def _load(self, newest: Path) -> tuple[dict[str, Tensor], dict[str, Any], bool]:
        """The newest checkpoint, or the one before if that is damaged; and whether it is the one before."""
        damage, loaded = None, None
        try:
            loaded = load_folder(newest)
        except Damaged as error:
            damage = error
        if not distributed.any_of(loaded is None):
            assert loaded is not None
            return *loaded, False
        damage = damage or Damaged(f"{newest}: damaged, as another process of this run has found")
        if not newest.exists() or not previous(newest).exists():
            raise Damaged(f"{damage}; there is no other checkpoint: start the run again with --overwrite")
        try:
            tensors, facts = load_folder(previous(newest))
        except Damaged as error:
            raise Damaged(f"{damage}; {error}; start the run again with --overwrite") from None
        if self._draws_again(facts):
            raise Damaged(
                f"{damage}; the checkpoint before it is whole, but going on from there would draw noise again and "
                "spend more than the ε this run promises; start it again with --overwrite"
            )
        self._tell(f"{damage}; going on from the checkpoint before it, the rounds since are run again")
        return tensors, facts, True

    def _draws_again(self, facts: dict[str, Any]) -> bool:
        """Whether noise that was drawn since this checkpoint would be drawn anew, with another outcome."""
        if not self._spends or self.settings.privacy.noise == "seeded":
            return False
        return self._spends_each_round or (self.refits and facts.get("phase") == "select")

    def _check_settings(self, began: Any) -> None:
        """Refuse settings that were edited in config.toml meanwhile. Checkpoints of older versions do not have them,
        and a setting that only one version knows is no edit."""
        if not isinstance(began, dict):
            return
        before, now = flat(began), flat(self.settings.to_dict())
        changed = [key for key in before.keys() & now.keys() if before[key] != now[key]]
        if "device" in changed:
            self._tell(
                f"this run began on {before['device']} and goes on on {now['device']}: the last digits may differ"
            )
        if edited := sorted(set(changed) - set(MAY_CHANGE)):
            raise ConfigError(
                f"{self.folder}: config.toml was edited since this run began: "
                + ", ".join(f"{key} was {before[key]!r} and is {now[key]!r}" for key in edited)
                + "; put it back, or begin another run with the new settings"
            )

    def _tell(self, note: str) -> None:
        """Something the user should know, whoever follows the run and however."""
        if self.writes:
            warnings.warn(note, stacklevel=2)
            for callback in self.callbacks:
                callback.note(note)

    def _done(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those up to the checkpoint. One is forced when a phase ends, so earlier phases are whole; a later phase is in
        the history when the checkpoint is not the newest."""
        order = ("select", "refit")
        later = order[order.index(self.phase) + 1 :] if self.phase in order else ()
        done = self.federated.round_number - (self.unevaluated is not None)
        return [r for r in records if r["phase"] not in later and (r["phase"] != self.phase or r["round"] <= done)]

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.phase, self.rounds, self.chosen = facts["phase"], facts["rounds"], facts["chosen"]
        self.stale, self.spent = facts["stale"], self.spent | facts["spent"]
        self.unevaluated = facts.get("unevaluated")
        if self.phase == "refit":
            self.federated = self._begin(self.dataset.train)
        self.federated.restore(tensors, facts["federated"])
        # Copies: what was read is a map of the file, which the next checkpoint takes away.
        self.chosen_tensors = {name: tensor.clone() for name, tensor in tensors.items() if name.startswith("chosen.")}
        if self.chosen_tensors:
            last = f"chosen.{len(self.chosen_tensors) - 1}"
            self.chosen_tensors[last] = self.federated.model.own_rows(self.chosen_tensors[last]).clone()
