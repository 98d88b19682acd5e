"""A training whose clients are parties: the same loop over rounds, with other ways to measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.interrupt import Interrupt
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census, who_is_in
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.engine import FlowerStrategy
from fedalc.deployment.flower.held_out import ServerData
from fedalc.deployment.flower.measuring import PartyEvaluation
from fedalc.evaluation.evaluate import evaluate
from fedalc.labels.privacy.accounts import deployment_account
from fedalc.labels.privacy.ledger import Account
from fedalc.methods import Method
from fedalc.models.class_embeddings import collapse_of
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from fedalc.runs import history
from fedalc.runs.folder import CENSUS
from fedalc.training.base import Callback
from fedalc.training.federated import FederatedTraining
from fedalc.training.selection import Training


class PartyTraining(Training):
    """Its checkpoint is written after every round, so that none that is finished is ever lost."""

    checkpoint_seconds = 0.0

    def __init__(
        self,
        settings: Experiment,
        data: ServerData,
        census: Census,
        parties: Parties,
        max_norm: float | None,
        folder: Path | None,
        callbacks: Sequence[Callback] = (),
        account: Account | None = None,
    ) -> None:
        self.census = census
        self.account = account
        self.parties = parties
        self.max_norm = max_norm
        self._at_parties = PartyEvaluation(parties, census, settings)
        self._last: tuple[int, dict[str, float]] | None = None  # the last evaluation at the parties, and its round
        super().__init__(settings, data, folder, callbacks)

    def _run_phase(self, interrupt: Interrupt) -> None:
        is_new = self.folder is None or not (self.folder / CENSUS).exists()
        if self.folder is not None:
            self.parties.write_to(self.folder)
            self.census.save(self.folder)
        if is_new and self._spends:
            self.parties.say(who_is_in(self.census.roster))
        if self.folder is not None:
            self._catch_up(self.folder)
        super()._run_phase(interrupt)

    def _catch_up(self, folder: Path) -> None:
        """A run that was stopped while the last round was measured has saved the round, but not what was measured."""
        done = self.federated.round_number
        due = done > 0 and (done % self.settings.selection.every == 0 or done == self.rounds)
        if due and not any(record["round"] == done for record in history.read(folder / "history.jsonl")):
            strategy = self.federated.engine
            assert isinstance(strategy, FlowerStrategy)
            self._evaluate(strategy.loss / len(self.federated.method.parts))

    def _account(self) -> Account:
        return self.account or deployment_account(None, self.folder or Path())

    def _begin(self, train: Split) -> FederatedTraining:
        return ScreenedTraining(self.settings, self.census.roster, self._strategy, self.census.knowledge)

    def _strategy(self, method: Method) -> FlowerStrategy:
        return FlowerStrategy(self.parties, self.census, method, self.settings, self.max_norm)

    def _evaluate(self, loss: float) -> None:
        self._save_if_due(force=True)  # parties may fail us in what follows, and the round is done
        model = self.federated.averaged_model()
        metrics = self._measured(with_map=self._maps)
        if len(self.dataset.test):
            metrics = {f"test {name}": value for name, value in metrics.items()}
        record: dict[str, Any] = {"phase": self.phase, "round": self.federated.round_number, "loss": loss}
        record |= {"metrics": metrics, "collapse": collapse_of(model, self.federated.held, self._budget)}
        self._evaluated(record | self.cost())

    def finish(self, interrupt: Interrupt) -> tuple[TrainedModel, dict[str, Any]]:
        trained, own = super().finish(interrupt)
        return trained, own | {"parties": len(self.census.roster.parties)}

    def test(self, trained: TrainedModel) -> dict[str, float]:
        """Of the last round, which is the one that is kept."""
        return self._measured(with_map=True)

    def _measured(self, with_map: bool) -> dict[str, float]:
        """At the server if it has data, else at the parties."""
        model = self.federated.averaged_model()
        if len(self.dataset.test):
            return evaluate(model, self._scaled_test, self.federated.held, with_map=with_map, budget=self._budget)
        return self._measured_at_parties(model, self.federated.round_number)

    def _measured_at_parties(self, model: Model, t: int) -> dict[str, float]:
        """Each round's model once: the result is that of the last round."""
        if self._last is None or self._last[0] != t:
            self._last = t, self._at_parties.evaluate(model, t)
            self.federated.ledger.add(self._at_parties.traffic)
        return self._last[1]


class ScreenedTraining(FederatedTraining):
    """What was sent before goes into the checkpoint too: a resumed run must not judge otherwise."""

    def tensors(self) -> dict[str, Tensor]:
        assert isinstance(self.engine, FlowerStrategy)
        return super().tensors() | self.engine.repeats.tensors()

    def facts(self) -> dict[str, Any]:
        assert isinstance(self.engine, FlowerStrategy)
        return super().facts() | {"loss": self.engine.loss}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        super().restore(tensors, facts)
        assert isinstance(self.engine, FlowerStrategy)
        self.engine.loss = float(facts["loss"])
        self.engine.repeats.restore(tensors)
        if "usual_length" in facts:  # of an earlier version
            self.engine.lengths.largest = float(facts["usual_length"])
