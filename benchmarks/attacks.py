"""Attacks by poisoned parties, for `benchmarks/poisoning.py`. The package does not use this module.

A poisoned party sends a wrong change of θ in every round, but the true row of its own label: a row has one owner, so it
reaches other parties only through the server's step on W.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.seeds import numpy_generator, torch_generator
from fedalc.data.federation import Federation
from fedalc.engines.aggregation.lengths import norm
from fedalc.engines.base import Engine, RoundResult
from fedalc.engines.by_party import PartyByParty
from fedalc.methods import Method
from fedalc.models.encoders import Chance
from fedalc.models.model import Model

ATTACKS = {
    "sign-flip": "sends -Δ",
    "scaling": "sends -10·Δ",
    "noise": "sends Gaussian noise, 10 times as long as Δ",
    "label-flip": "trains its records towards other parties' labels",
}
FACTOR = 10.0


class Poisoned(PartyByParty):
    """An engine in which the parties in `liars` carry out `attack`."""

    def __init__(
        self, inner: Engine, federation: Federation, method: Method, settings: Experiment,
        attack: str | None, liars: Collection[int],
    ) -> None:  # fmt: skip
        super().__init__(inner, federation, method, settings)
        self.attack = attack
        self.liars = liars

    def work_of(self, party: int, model: Model, clients: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        if party not in self.liars:
            return super().work_of(party, model, clients, chance, round_number)
        if self.attack == "label-flip":
            flipped = Model(model.encoder, self._others_rows(party, model.W, clients))
            sent = super().work_of(party, flipped, clients, chance, round_number)
            return replace(sent, rows=model.W[sent.labels])
        sent = super().work_of(party, model, clients, chance, round_number)
        if self.attack == "noise":
            return replace(sent, change=self._noise(party, sent.change, round_number))
        factor = {"sign-flip": -1.0, "scaling": -FACTOR}[str(self.attack)]
        return replace(sent, change=[tensor * factor for tensor in sent.change])

    def _others_rows(self, party: int, W: Tensor, clients: np.ndarray) -> Tensor:
        """Return W with the party's own rows replaced by rows of other parties' labels, the same in every round."""
        own = self.federation.label_of[clients]
        others = np.setdiff1d(self.federation.label_of, own)
        drawn = numpy_generator(self.settings.seed, "flipped labels", party).choice(others, len(own), replace=False)
        flipped = W.clone()
        flipped[torch.from_numpy(own)] = W[torch.from_numpy(drawn)]
        return flipped

    def _noise(self, party: int, change: list[Tensor], round_number: int) -> list[Tensor]:
        generator = torch_generator(self.settings.seed, "noise of a liar", party, round_number)
        drawn = [torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for tensor in change]
        scale = FACTOR * norm(change) / norm(drawn)
        return [tensor * scale for tensor in drawn]
