"""What an engine is: it carries a round's work to the clients and brings back their averaged change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from fedalc.encoders import Dropout
from fedalc.model import Model


@dataclass(frozen=True)
class RoundResult:
    """`change` is Σ p_u (θ - θ_u), one tensor per parameter; `rows` is W̃, absent clients' rows as they were."""

    change: list[Tensor]
    rows: Tensor
    loss: float  # Σ p_u R_u, as met during the clients' first epoch


class Engine(Protocol):
    """Runs the clients of one round on the model as it stands, and leaves the model as it was."""

    def run(
        self, model: Model, participants: np.ndarray, dropout: Dropout | None, round_number: int
    ) -> RoundResult: ...
