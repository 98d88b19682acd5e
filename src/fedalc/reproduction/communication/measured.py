"""Run one round with a real network on a few random images, and compare the counted bytes with the packed arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Split
from fedalc.data.images.images import CHANNELS, Images
from fedalc.engines.traffic import Ledger
from fedalc.models.encoders import Chance
from fedalc.training.federated import knowledge_for, simulated

CLIENTS, PICTURES, SIZE = 3, 2, 32  # clients, images per client, and pixels per side


@dataclass(frozen=True)
class Round:
    """The bytes that one client receives (down) and sends (up) in a round."""

    parameters: int  # of θ
    counted: Ledger  # by the engine
    packed: Ledger | None  # the same arrays in Flower's records; None where the extra `flower` is missing

    @property
    def agrees(self) -> bool:
        return self.packed is None or self.packed == self.counted


def measured_round(settings: Experiment, labels: int) -> Round:
    """Run the round. All labels have a row in W, but only `CLIENTS` a client: its bytes do not depend on the others."""
    split = made_up_pictures(labels)
    training = simulated(settings, split, knowledge_for(settings, split))
    model, clients = training.model, training.federation.clients
    result = training.engine.run(model, clients, Chance(settings, 1, model.W), 1)
    rows = slice(1 if training.method.trains_rows else 0)
    return Round(
        sum(parameter.numel() for parameter in model.theta),
        Ledger(result.traffic.down // len(clients), result.traffic.up // len(clients)),
        _packed(
            [*model.theta, *model.statistics, *model.W[rows]], [*result.change, *result.statistics, *result.rows[rows]]
        ),
    )


def made_up_pictures(labels: int) -> Split:
    """Return random images. Image j belongs to client j mod `CLIENTS`."""
    count = CLIENTS * PICTURES
    pixels = np.random.default_rng(0).integers(0, 256, (count, SIZE, SIZE, CHANNELS), dtype=np.uint8)
    owners = (np.ones(count, np.float32), (np.arange(count), np.arange(count) % CLIENTS))
    return Split(Images(pixels, [str(number) for number in range(count)]), csr_matrix(owners, shape=(count, labels)))


def _packed(down: Sequence[Tensor], up: Sequence[Tensor]) -> Ledger | None:
    try:
        from fedalc.deployment.flower.wire import pack_theta
    except ImportError:
        return None
    sizes = [sum(len(array.data) for array in pack_theta(tensors).values()) for tensors in (down, up)]
    return Ledger(*sizes)
