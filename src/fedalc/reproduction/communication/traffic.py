"""Compute the bytes of a whole training from tensor shapes, without data or values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import EncoderSettings
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError
from fedalc.labels.collection.messages import PSEUDONYM_BYTES
from fedalc.methods import METHODS
from fedalc.models.encoders import make_encoder

PLACE_BYTES = 4  # index of a label among its client's pseudonyms
SET_SIZE_BYTES = 2  # the server's answer to a message, if clients learn m


@dataclass(frozen=True)
class Shape:
    """The data's counts that determine the bytes. A pair (instance, label) is one message of the label collection."""

    labels: int
    clients: int
    pairs: int


@dataclass(frozen=True)
class Traffic:
    """The bytes of a training with all clients in every round. The ledgers sum over all clients."""

    clients: int
    rounds: int
    once: Ledger  # before round 1: label collection, and the rows of a fixed W
    round: Ledger

    @property
    def training(self) -> Ledger:
        return Ledger(self.once.down + self.rounds * self.round.down, self.once.up + self.rounds * self.round.up)

    def with_round(self, each: Ledger) -> Traffic:
        """Return a copy with the round of one client replaced by a measured one."""
        return replace(self, round=Ledger(self.clients * each.down, self.clients * each.up))

    def each(self, ledger: Ledger) -> Ledger:
        """Return the mean per client. Label collection grows with a client's data; all else is equal for all."""
        return Ledger(round(ledger.down / self.clients), round(ledger.up / self.clients))


def encoder_traffic(settings: Experiment, features: int, shape: Shape) -> Traffic:
    """Return the traffic with the encoder of these settings. A ResNet ignores the number of features."""
    known = 0 if settings.encoder.is_image else features
    return traffic(settings, _shapes(known, settings.encoder, settings.dtype), shape)


@cache
def _shapes(features: int, settings: EncoderSettings, dtype: str) -> tuple[Tensor, ...]:
    """Return θ without values. A table has many cells of one encoder, and building a ResNet takes a while."""
    with torch.device("meta"):
        encoder = make_encoder(features, settings, torch.Generator("cpu"))
    return tuple(encoder.to(getattr(torch, dtype)).parameters())


def traffic(settings: Experiment, theta: Sequence[Tensor], shape: Shape) -> Traffic:
    """Return what `FederatedTraining` would count in all rounds; a test holds the two equal."""
    method, models = METHODS[settings.method], METHODS[settings.method].sub_models(settings)
    W = torch.empty(shape.labels, settings.encoder.dim, dtype=theta[0].dtype, device="meta")
    once = collection(settings, shape)
    if method.sums_by_cluster:
        raise ConfigError(
            f"the bytes of {settings.method} depend on which features each client's records have", "method"
        )
    if method.one_round:
        features, number = theta[0].shape[0], theta[0].element_size()
        each = Ledger.of_sums(features, number, shape.clients, sends_gram=method.sends_gram)
        return Traffic(shape.clients, 1, once, each)
    if not method.trains_rows:
        once.rows_once(W, models * shape.clients)
    each = Ledger.of_round([*theta] * models, W, shape.clients, method.trains_rows)
    return Traffic(shape.clients, settings.rounds, once, each)


def collection(settings: Experiment, shape: Shape) -> Ledger:
    """Return the bytes of label collection: a digest and an index per pair, a pseudonym per label; none if not used."""
    if not settings.uses_labels:
        return Ledger()
    told = settings.tells_shares
    up = shape.pairs * (settings.collection.digest_bytes + PLACE_BYTES) + shape.labels * PSEUDONYM_BYTES
    return Ledger(down=shape.pairs * SET_SIZE_BYTES if told else 0, up=up)
