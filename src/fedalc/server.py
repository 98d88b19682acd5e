"""The server's side of θ: who takes part in a round, the optimiser for the averaged change, averaged weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedalc.config import ServerSettings
from fedalc.seeds import numpy_generator


def sample_clients(clients: np.ndarray, participation: float, seed: int, round_number: int) -> np.ndarray:
    """The clients of a round, sorted: all of them, or a share drawn afresh (at least one)."""
    if participation >= 1:
        return clients
    size = max(1, round(participation * len(clients)))
    return np.sort(numpy_generator(seed, "participants", round_number).choice(clients, size, replace=False))


class ServerOptimizer:
    """Takes the averaged change of θ for a gradient (FedOpt, Reddi et al., 2021). `sgd` with rate 1 is averaging."""

    def __init__(self, theta: list[Tensor], settings: ServerSettings) -> None:
        self.settings = settings
        self.theta = theta
        s = settings
        self._optimizer: torch.optim.Optimizer
        if s.optimizer == "adam":
            self._optimizer = torch.optim.Adam(theta, lr=s.learning_rate, betas=(s.momentum, s.beta2), eps=s.epsilon)
        elif s.optimizer == "adagrad":
            self._optimizer = torch.optim.Adagrad(theta, lr=s.learning_rate, eps=s.epsilon)
        else:
            momentum = s.momentum if s.optimizer == "momentum" else 0.0
            self._optimizer = torch.optim.SGD(theta, lr=s.learning_rate, momentum=momentum)

    @torch.no_grad()
    def apply(self, change: list[Tensor]) -> None:
        shrink = 1 - self.settings.learning_rate * self.settings.weight_decay
        for parameter, gradient in zip(self.theta, change, strict=True):
            if shrink != 1:
                parameter.mul_(shrink)
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's memory, flat, for a checkpoint."""
        state = self._optimizer.state_dict()["state"]
        return {
            f"{index}.{key}": torch.as_tensor(value)
            for index, entries in state.items()
            for key, value in entries.items()
            if value is not None
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        whole = self._optimizer.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
        self._optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})


class AveragedWeights:
    """An exponential moving average, warmed up so that the first rounds do not linger. Decay 0 follows exactly."""

    def __init__(self, tensors: list[Tensor], decay: float) -> None:
        self.decay = decay
        self.values = [tensor.detach().clone() for tensor in tensors]

    @torch.no_grad()
    def update(self, tensors: list[Tensor], round_number: int) -> None:
        decay = min(self.decay, round_number / (round_number + 9))
        for mean, tensor in zip(self.values, tensors, strict=True):
            mean.lerp_(tensor, 1 - decay)
