"""A training with real parties: the same loop over rounds, evaluated at the server or at the parties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from fedalc.config.experiment import Experiment
from fedalc.core.interrupt import Interrupt
from fedalc.data.dataset import Split
from fedalc.deployment.flower.calibrating import PartyScores, why_not
from fedalc.deployment.flower.census import AnyHeldOut, Census, who_is_in
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.engine import FlowerEngine
from fedalc.deployment.flower.held_out import ServerData
from fedalc.deployment.flower.held_out_records import ranked_by
from fedalc.deployment.flower.masked_sums import sums_of_census
from fedalc.deployment.flower.measuring import PartyEvaluation
from fedalc.deployment.flower.ranking import BestAtParties, PartyRanking
from fedalc.deployment.flower.secure_engine import SecureFlowerEngine, SecureRanking
from fedalc.engines.traffic import Ledger
from fedalc.labels.privacy.accounts import deployment_account
from fedalc.labels.privacy.ledger import Account
from fedalc.methods import Method
from fedalc.models.calibration import Calibration
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from fedalc.runs import history
from fedalc.runs.folder import CENSUS
from fedalc.runs.result import Result, versions
from fedalc.training.base import Callback
from fedalc.training.calibration import summary
from fedalc.training.federated import FederatedTraining, begin_training
from fedalc.training.reasons import AT_PARTIES, why_round
from fedalc.training.selection import Training

VALIDATION = "validation "


class PartyTraining(Training):
    """Saves a checkpoint after every round, so that no finished round is lost."""

    checkpoint_seconds = 0.0
    has_key = False

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
        super().__init__(settings, data, folder, callbacks)
        self.census = census
        self.account = account
        self.parties = parties
        self.max_norm = max_norm
        self._at_parties = PartyEvaluation(parties, census, settings)
        self._sums = sums_of_census(parties, census, settings)
        self._ranking = None if census.ranking is None else self._make_ranking(census.ranking)
        self._last: tuple[int, dict[str, float]] | None = None  # the last evaluation at the parties, and its round

    def prepare(self) -> Self:
        """If parties rank labels, the best round is kept, as in phase `select` of a simulation. There is no refit: that
        would need the held-out records, and as many rounds again."""
        super().prepare()
        if self._ranking is None:
            return self
        metric, wanted = ranked_by(self.settings), self.settings.selection.metric
        if metric is None:
            self.parties.say(f"parties cannot measure selection.metric = {wanted}: the last round is kept")
        elif metric != wanted:
            self.parties.say(f"parties do not know set sizes (client.set_size), so {metric} stands for {wanted}")
        if metric is not None and self.settings.selection.keep == "best":
            self.phase, self.best = "select", BestAtParties(self.settings.selection, metric)
        return self

    def _why_no_thresholds(self) -> str | None:
        return why_not(self.settings, self.census)

    def _run_phase(self, interrupt: Interrupt) -> None:
        is_new = self.folder is None or not (self.folder / CENSUS).exists()
        if self.folder is not None:
            self.parties.write_to(self.folder)
            self.census.save(self.folder)
        if is_new and self._draws_noise:
            self.parties.say(who_is_in(self.census.roster))
        if self.folder is not None:
            self._catch_up(self.folder)
        super()._run_phase(interrupt)

    def _catch_up(self, folder: Path) -> None:
        """Evaluate the last round if the run was stopped after saving it and before its evaluation was written."""
        done = self.federated.round_number
        due = done > 0 and (done % self.settings.selection.every == 0 or done == self.rounds)
        if due and not any(record["round"] == done for record in history.read(folder / "history.jsonl")):
            strategy = self.federated.engine
            assert isinstance(strategy, FlowerEngine)
            loss = strategy.loss / len(self.federated.method.parts)
            self._evaluate(loss if self.unevaluated is None else self.unevaluated)

    def _account(self) -> Account:
        return self.account or deployment_account(None, self.folder or Path())

    def _begin_phase(self, train: Split) -> FederatedTraining:
        federated = begin_training(self.settings, self.census.roster, self._strategy, self.census.knowledge)
        federated.ledger.up += 0 if self.census.ranking is None else self.census.ranking.bytes_up
        if (text := self.census.text) is not None:
            federated.ledger.add(Ledger(up=text.bytes_up, down=text.bytes_down))
        return federated

    def _strategy(self, method: Method) -> FlowerEngine:
        arguments = self.parties, self.census, method, self.settings, self.max_norm
        return FlowerEngine(*arguments) if self._sums is None else SecureFlowerEngine(*arguments).using(self._sums)

    def _make_ranking(self, records: AnyHeldOut) -> PartyRanking:
        arguments = self.parties, self.census, self.settings, records
        return PartyRanking(*arguments) if self._sums is None else SecureRanking(*arguments).using(self._sums)

    def _evaluate(self, loss: float) -> None:
        if self.phase == "select":
            self.unevaluated = loss  # a run that stops before the next checkpoint compares this round again
        self._save_if_due(force=True)  # parties may fail during the evaluation, and the round is done
        metrics = self._measured_now(with_map=self._with_map)
        if len(self.dataset.test):
            metrics = {f"test {name}": value for name, value in metrics.items()}
        self._record(loss, metrics, self.federated.averaged_model())

    def _calibrated(self, interrupt: Interrupt) -> Calibration | None:
        """Return what turns scores into probabilities, from the parties' held-out records."""
        if (reason := why_not(self.settings, self.census)) is not None:
            self.calibration = {"left_out": reason}
            return None
        assert self.census.ranking is not None
        scores = PartyScores(self.parties, self.census, self.settings, self.census.ranking)
        calibration = scores.calibration(self._kept_model(), self.kept_round)
        self.federated.ledger.add(scores.traffic)
        self.calibration = summary(calibration)
        return calibration

    def result(self, trained: TrainedModel) -> Result:
        result = super().result(trained)
        result.parties = len(self.census.roster.parties)
        result.versions = versions("flwr")
        return result

    def why_kept(self) -> str:
        metric = self.best.metric if isinstance(self.best, BestAtParties) else None
        chosen = None if metric is None else self.chosen
        rounds = self.federated.round_number, self.planned
        return why_round(self.settings.selection, chosen, rounds, AT_PARTIES, False, metric)

    @property
    def _judged_on(self) -> str:
        return AT_PARTIES

    def _kept_model(self) -> Model:
        return super()._kept_model() if self.chosen else self.federated.averaged_model()

    def test(self, trained: TrainedModel) -> dict[str, float]:
        """Return the metrics of the round that is kept. Those that parties measured, for the best round, chose it."""
        if self.phase == "select" and self.chosen:
            return _as_of_parties(self.chosen["metrics"])
        return _as_of_parties(self._measured_now(with_map=True))

    def _measured_now(self, with_map: bool) -> dict[str, float]:
        """Evaluate at the server if it has test data, else at the parties."""
        model = self.federated.averaged_model()
        if len(self.dataset.test):
            return self._evaluated_on_test(model, self.federated.held, None, with_map)
        return self._measured_at_parties(model, self.federated.round_number)

    def _measured_at_parties(self, model: Model, t: int) -> dict[str, float]:
        """Evaluate each round's model once: the result reuses the evaluation of the last round."""
        if self._sums is not None and self._ranking is None:
            return {}  # parties tell nothing of themselves alone
        if self._last is None or self._last[0] != t:
            self._last = t, self._ranked(model, t) if self._ranking else self._at_parties.evaluate(model, t)
            self.federated.ledger.add((self._ranking or self._at_parties).traffic)
        return self._last[1]

    def _ranked(self, model: Model, t: int) -> dict[str, float]:
        """Have the parties rank labels, and keep the round if it is the best."""
        assert self._ranking is not None
        hits = self._ranking.evaluate(model, t)
        metrics = {f"{VALIDATION}{name}": value for name, value in hits.figures.items()}
        if isinstance(self.best, BestAtParties) and metrics:
            self.best.consider_hits(t, hits, metrics, model)
            self.parties.say(f"round {t}: {self._standing()}")
        return metrics

    def _standing(self) -> str:
        assert isinstance(self.best, BestAtParties) and self.best.chosen is not None
        return (
            f"best so far is round {self.best.chosen['round']}, by {self.best.metric} {self.best.chosen['value']:.4g}"
        )


def _as_of_parties(metrics: dict[str, float]) -> dict[str, float]:
    """Name figures on validation data for result.json, where a plain name would be one of the test set."""
    return {name.replace(VALIDATION, "party ", 1): value for name, value in metrics.items()}
