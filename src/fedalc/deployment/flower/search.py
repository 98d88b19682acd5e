"""The search for settings with real parties: they train on some records, and rank labels for those that they hold out.

The rules are those of a simulation (`training.tuning`). Parties are asked what they are asked in a training. Settings
are compared by the same records, so every party is needed in every trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import RESUME, Parties, TooFew
from fedalc.deployment.flower.engine import ATTEMPTS, FlowerEngine
from fedalc.deployment.flower.exchange import Exchange, Reply
from fedalc.deployment.flower.masked_sums import sums_of_census
from fedalc.deployment.flower.ranking import PartyHits, PartyRanking
from fedalc.deployment.flower.secure_engine import SecureFlowerEngine, SecureRanking
from fedalc.deployment.flower.sum_messages import POWERS, RAREST
from fedalc.deployment.flower.totals import LabelsOf
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.errors import FedalcError
from fedalc.labels.correlations import Correlations, LabelCounts
from fedalc.methods import Method
from fedalc.models.model import Model
from fedalc.training.callbacks import Callback
from fedalc.training.federated import FederatedTraining, begin_training
from fedalc.training.search_parts import Part

BECAUSE = " (a search compares settings by the same records, so it needs every party)"


class PartyPart(Part):
    """The only part of a search with real parties. The label sets were collected before it (`census`)."""

    def __init__(self, parties: Parties, census: Census, max_norm: float | None, settings: Experiment) -> None:
        super().__init__()
        self._masked = sums_of_census(parties, census, settings)
        if census.ranking is None:
            raise FedalcError("no party holds out records that could be used, so no search can judge settings")
        self.parties = parties
        self.census = census
        self.records = census.ranking
        self.max_norm = max_norm
        self._first_steps: dict[str, Sums] = {}

    @property
    def counts(self) -> np.ndarray:
        assert self.census.knowledge is not None
        assert isinstance(self.census.knowledge.labels, Correlations | LabelCounts)
        return self.census.knowledge.labels.counts

    def begin(self, settings: Experiment, traffic: Ledger) -> FederatedTraining:
        def engine(method: Method) -> TrialEngine:
            arguments, masked = (self.parties, self.census, method, settings, self.max_norm), self._masked
            trial = TrialEngine(*arguments) if masked is None else SecureTrialEngine(*arguments).using(masked)
            trial.first_steps = self._first_steps
            return trial

        training = begin_training(settings, self.census.roster, engine, self.census.knowledge)
        training.ledger = Ledger()  # the final training counts the label sets
        return training

    def judge(
        self, training: FederatedTraining, powers: Sequence[float] | None, traffic: Ledger
    ) -> list[dict[str, float]]:
        arguments, masked = (self.parties, self.census, training.settings, self.records), self._masked
        ranking = TrialRanking(*arguments) if masked is None else SecureTrialRanking(*arguments).using(masked)
        weights = None
        if powers is not None:
            weightings = self.weightings(powers, training.settings.client.label_offset)
            weights = np.stack([weight.numpy() for weight in weightings])
            ranking.said = self._said(powers)
        hits = ranking.of_all(training.model, max(training.round_number, 1), weights, traffic)
        if not all(each.of for each in hits):
            raise FedalcError("no party has enough held-out records to count hits (--held-out-share, --fewest)")
        return [each.figures for each in hits]

    def _said(self, powers: Sequence[float]) -> dict[str, Any]:
        """Return what parties check the weights by, under secure sums."""
        if self._masked is None:
            return {}
        return {POWERS: list(powers), RAREST: float(np.maximum(self.counts, 1).min())}


class TrialEngine(FlowerEngine):
    """An engine of one trial, which needs every party."""

    first_steps: dict[str, Sums]
    """The sums for first Newton steps. They are the same for all losses and penalties, and sent once."""

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        if self.method.one_round:
            return super().sums(model, participants)
        key = self.settings.encoder.model_dump_json()
        if key not in self.first_steps:
            self.first_steps[key] = super().sums(model, participants)
            return self.first_steps[key]
        return replace(self.first_steps[key], traffic=Ledger())

    def _needs_everyone(self, round_number: int) -> bool:
        return True

    def _needed(self, round_number: int) -> tuple[int, str]:
        return len(self.roster.parties), BECAUSE


class TrialRanking(PartyRanking):
    """Ranking by every party that has held-out records."""

    def of_all(self, model: Model, round_number: int, weights: np.ndarray | None, traffic: Ledger) -> list[PartyHits]:
        for _ in range(ATTEMPTS):
            hits = self.compare(model, round_number, weights)
            traffic.add(self.traffic)
            if not self.silent:
                return hits
        names = ", ".join(self.roster.parties[party] for party in sorted(self.silent))
        raise TooFew(f"no usable count of hits from {names} in {ATTEMPTS} attempts{BECAUSE}. {RESUME}")

    def _choose(self, round_number: int) -> LabelsOf:
        self.parties.present(self.roster, round_number, len(self.roster.parties), BECAUSE)
        clients = np.flatnonzero(self.roster.held_out)
        return {party: self.roster.labels_of(party, clients) for party in self.records.parties}

    def _replies(self, exchange: Exchange) -> Iterator[Reply]:
        return exchange.replies()


class SecureTrialEngine(TrialEngine, SecureFlowerEngine):
    """The same with masked sums."""


class SecureTrialRanking(TrialRanking, SecureRanking):
    """The same, with the hits of all weightings in one masked sum over all parties that have enough records."""

    needs_all = True


class CensusKeeper(Callback):
    """Saves the census when a search begins: a resumed search does not ask again."""

    def __init__(self, parties: Parties, census: Census, folder: Path) -> None:
        self.parties, self.census, self.folder = parties, census, folder

    def started(self, settings: Experiment) -> None:
        self.parties.write_to(self.folder)
        self.census.save(self.folder)
