"""What a curious server of a deployment gets: the answer of a label alone, of a party, and the sum over all parties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from fedalc.audit.targets import Target
from fedalc.config.experiment import Experiment
from fedalc.data.federation import Federation
from fedalc.data.records import record_numbers
from fedalc.engines.base import Engine, RoundResult
from fedalc.engines.fused import FusedEngine
from fedalc.engines.noised_sums import NoisedSums
from fedalc.engines.per_client import ClientsEngine
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.methods import Method
from fedalc.models.encoders import Chance
from fedalc.models.model import Model

ALONE, RULE, PARTY, SUM = "alone", "rule", "party", "sum"
VIEWS = (ALONE, RULE, PARTY, SUM)


def known_views() -> tuple[str, ...]:
    """Return the views that can be tried here: the parties' rule comes with Flower."""
    return VIEWS if find_spec("flwr") else tuple(view for view in VIEWS if view != RULE)


def summed(answers: Sequence[Tensor]) -> Tensor:
    """Return what secure sums leave to the server of the parties' answers: their sum, and nothing else of them."""
    return torch.stack(list(answers)).sum(0)


def from_words(words: np.ndarray, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers that a server reads from a vector modulo 2⁶⁴, in fixed point with `bits` bits after the point:
    the answer itself, if the vector is not masked.

    >>> from_words(np.array([2**63 + 2**62, 3 << 15], dtype=np.uint64), 16, (2,)).tolist()
    [-70368744177664.0, 1.5]
    """
    return words.astype(np.uint64).view(np.int64).astype(np.float64).reshape(shape) / 2.0**bits


def deal(labels: np.ndarray, parties: int, seed: int) -> list[np.ndarray]:
    """Deal the labels to parties at random, each as many as the others."""
    dealt = np.random.default_rng(seed).permutation(labels)
    return [np.sort(dealt[place::parties]) for place in range(min(parties, len(labels)))]


class Notes(ABC):
    """What the server keeps of the answers about each target, in each view, to guess the target's records from."""

    @abstractmethod
    def add(self, target: Target, view: str, answers: Sequence[Tensor], model: Model) -> None:
        """Take down matrices of features × D. In the views of several labels, they are mixed with those of others."""

    @abstractmethod
    def guess(self, target: Target, view: str) -> np.ndarray:
        """Return as many guesses as the target has records, guesses × features."""


Ask = Callable[[Engine, np.ndarray], Sequence[Tensor]]
"""Asks an engine about some clients, and returns the answer's matrices. The first has a row per feature, and columns
that are multiplied with W."""


class CuriousServer(Engine):
    """The engine of a simulated deployment that notes, while `listens`, what the server sees of each target.

    `parties` are the labels of each party. A party's answer is weighted as in the sum over all parties.
    """

    def __init__(
        self,
        federation: Federation,
        method: Method,
        settings: Experiment,
        targets: Sequence[Target],
        parties: Sequence[np.ndarray],
        fewest: int,
        notes: Notes,
    ) -> None:
        self.federation, self.method, self.targets, self.notes = federation, method, targets, notes
        self.parties = [np.intersect1d(party, federation.clients) for party in parties]
        self.parties = [party for party in self.parties if len(party)]
        self.listens = True
        self._clients, self._fused = (kind(federation, method, settings) for kind in (ClientsEngine, FusedEngine))
        self._careful = careful_engine(federation, method, settings, fewest)

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        self._listen(model, lambda engine, clients: engine.run(model, clients, chance, round_number).change[:1])
        return self._fused.run(model, participants, chance, round_number)

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        def ask(engine: Engine, clients: np.ndarray) -> Sequence[Tensor]:
            answer = engine.sums(model, clients)
            return (answer.cross,) if engine is self._fused else (answer.cross, answer.gram)

        self._listen(model, ask, plain=True)
        return self._fused.sums(model, participants)

    def private_sums(self, model: Model) -> NoisedSums:
        found = self._fused.private_sums(model)
        for target in self.targets if self.listens else ():
            self.notes.add(target, SUM, [found.cross.to(model.W)], model)
        return found

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        self._listen(model, lambda engine, clients: engine.curvature(model, direction, clients, round_number)[:1])
        return self._fused.curvature(model, direction, participants, round_number)

    def _listen(self, model: Model, ask: Ask, plain: bool = False) -> None:
        """`plain`: the answers are sums over records; otherwise means over clients."""
        if not self.listens:
            return
        for target in self.targets:
            client = np.array([target.label])
            self.notes.add(target, ALONE, ask(self._clients, client), model)
            if self._careful is not None:
                self.notes.add(target, RULE, ask(self._careful, client), model)
        answers = [ask(self._fused, party)[0].to_dense() for party in self.parties]
        if not plain:
            answers = [answer * self._weight(party) for answer, party in zip(answers, self.parties, strict=True)]
        total = summed(answers)
        for target in self.targets:
            (party,) = (number for number, labels in enumerate(self.parties) if target.label in labels)
            self.notes.add(target, PARTY, answers[party : party + 1], model)
            self.notes.add(target, SUM, [total], model)

    def _weight(self, party: np.ndarray) -> float:
        """Return the part of the mean over all clients that these have."""
        clients = self.federation.clients
        counts = torch.from_numpy(self.federation.counts[clients]).double()
        return float(self.method.weights(counts, self.federation.label_of[clients])[np.isin(clients, party)].sum())


def careful_engine(federation: Federation, method: Method, settings: Experiment, fewest: int) -> ClientsEngine | None:
    """Return the engine of a party with its rule of `fewest` contributing records. None without Flower."""
    if RULE not in known_views():
        return None
    from fedalc.deployment.flower.contributions import CarefulEngine
    from fedalc.deployment.flower.limits import Limits

    return CarefulEngine(federation, method, settings, Limits(fewest=fewest), record_numbers(federation.features))
