"""The server's side of θ: sampling of clients, optimisers for the averaged change, averaged weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import ServerSettings
from fedalc.core.seeds import numpy_generator
from fedalc.training.newton import NewtonCG

SHORTCUT = 1  # index of an encoder's shortcut among its parameters: after the embedding, before the layers


def sample_clients(
    clients: np.ndarray, user_of: np.ndarray, participation: float, seed: int, round_number: int
) -> np.ndarray:
    """Return the clients of a round, sorted: all of them, or those of a random share of the users (at least one)."""
    if participation >= 1:
        return clients
    owner = user_of[clients]
    users = np.unique(owner)
    size = max(1, round(participation * len(users)))
    drawn = numpy_generator(seed, "participants", round_number).choice(users, size, replace=False)
    return clients[np.isin(owner, drawn)]


class ServerOptimizer:
    """Uses the averaged change of θ as a gradient (FedOpt, Reddi et al., 2021). `sgd` with rate 1 is averaging."""

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

    def aim(self) -> None:
        """Move θ to where the clients compute the gradient: here, θ itself."""

    @torch.no_grad()
    def apply(self, change: list[Tensor], loss: float) -> float:
        """Take a step. Return the loss to report."""
        shrink = 1 - self.settings.learning_rate * self.settings.weight_decay
        few_rows = self.settings.optimizer == "sgd"  # the others move every row in every round
        for parameter, gradient in zip(self.theta, change, strict=True):
            if shrink != 1:
                parameter.mul_(shrink)
            parameter.grad = gradient.to_dense() if gradient.is_sparse and not few_rows else gradient
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimiser's state for a checkpoint."""
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


class ConjugateGradients:
    """Minimises a quadratic objective by conjugate gradients: one gradient and one exact step per round.

    The objective's gradient is H θ - b. Round 1 computes it at the start θ₀; later rounds at θ₀ + kp, where p is the
    direction of the next step, as H p = (∇(θ₀ + kp) - ∇(θ₀)) / k. The factor k keeps the two gradients of similar size,
    so that their difference does not lose its digits. θ is the iterate between rounds, so it moves from round 2 on. The
    server adds the penalty. Memory: θ eight times.
    """

    def __init__(self, theta: list[Tensor], settings: ServerSettings, pairs: int, client_rate: float) -> None:
        (self.theta,) = theta  # one matrix: the linear encoder's
        self.penalty = settings.ridge / pairs  # the objective is a mean over (instance, label) pairs, not a sum
        self.client_rate = client_rate
        self.pairs = pairs
        self._state: dict[str, Tensor] = {}
        self._taken = 1.0  # the factor k of this round

    @torch.no_grad()
    def aim(self) -> None:
        if self._state:
            self._state["iterate"] = self.theta.detach().clone()
            self._taken = self._factor
            self.theta.copy_(self._state["start"] + self._taken * self._state["direction"])

    @torch.no_grad()
    def moved(self, at: list[Tensor]) -> None:
        """Go along the direction that the clients got, if θ was rounded on its way to them."""
        self.theta.copy_(at[0])
        if self._state:
            self._state["direction"] = (self.theta - self._state["start"]) / self._taken

    @torch.no_grad()
    def apply(self, change: list[Tensor], loss: float) -> float:
        """Take a step. Return the objective at the new θ, penalty included. `loss` is the clients' at the old point."""
        gradient = change[0] / self.client_rate + 2 * self.penalty * self.theta
        s = self._state
        if not s:
            s["start"], s["first"] = self.theta.detach().clone(), gradient
            s["residual"], s["direction"] = -gradient, -gradient
            s["objective"] = torch.tensor(loss + self.penalty * _dot(self.theta, self.theta), dtype=torch.float64)
            return s["objective"].item()
        curved = (gradient - s["first"]) / self._taken
        before, curvature = _dot(s["residual"], s["residual"]), _dot(s["direction"], curved)
        self.theta.copy_(s.pop("iterate"))
        if before > 0 and curvature > 0:  # otherwise it is solved to the precision of these numbers
            length = before / curvature
            self.theta.add_(s["direction"], alpha=length)
            s["residual"] = s["residual"] - length * curved
            s["direction"] = s["residual"] + (_dot(s["residual"], s["residual"]) / before) * s["direction"]
        # A quadratic changes by the mean of its gradients at both ends.
        return s["objective"].item() + 0.5 * _dot(self.theta - s["start"], s["first"] - s["residual"])

    @property
    def _factor(self) -> float:
        """The k of θ₀ + kp: gradients of a mean over pairs are small beside θ, and directions shrink over time."""
        length = self._state["direction"].norm().item()
        return self.pairs / 2 * self._state["first"].norm().item() / length if length else 1.0

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._state)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._state = {name: tensor.to(self.theta.device) for name, tensor in tensors.items()}


def _dot(a: Tensor, b: Tensor) -> float:
    """Return the inner product in double precision, a few rows at a time to avoid copies."""
    parts = zip(a.split(4096), b.split(4096), strict=True)
    return sum((x.double() * y.double()).sum().item() for x, y in parts)


class SolveThenTrain:
    """Trains an mlp with a linear shortcut. First cg solves for the shortcut, a quadratic problem as long as the mlp
    returns zero; then the shortcut stays fixed, and adam trains the mlp on the residual."""

    def __init__(self, shortcut: Tensor, rest: list[Tensor], settings: Experiment, pairs: int) -> None:
        self.cg = ConjugateGradients([shortcut], settings.server, pairs, settings.client.learning_rate)
        self.adam = ServerOptimizer(rest, settings.server.model_copy(update={"optimizer": "adam"}))
        self.rounds_left = torch.tensor(settings.server.solve_rounds)

    def aim(self) -> None:
        if self.rounds_left > 0:
            self.cg.aim()

    def apply(self, change: list[Tensor], loss: float) -> float:
        self.rounds_left = self.rounds_left - 1
        if self.rounds_left >= 0:
            return self.cg.apply([change[SHORTCUT]], loss)
        return self.adam.apply([part for index, part in enumerate(change) if index != SHORTCUT], loss)

    def tensors(self) -> dict[str, Tensor]:
        parts = {"cg": self.cg.tensors(), "adam": self.adam.tensors()}
        named = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return {"rounds_left": self.rounds_left, **named}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.rounds_left = tensors["rounds_left"]
        for part, optimizer in (("cg.", self.cg), ("adam.", self.adam)):
            optimizer.load_tensors({k.removeprefix(part): v for k, v in tensors.items() if k.startswith(part)})


def needs_everyone(settings: Experiment, round_number: int) -> bool:
    """Whether the round needs every client: cg needs gradients of one objective, so all clients in every round."""
    solving = not settings.encoder.shortcut or round_number <= settings.server.solve_rounds
    return settings.server.optimizer in ("cg", "newton") and solving


AnyOptimizer = ServerOptimizer | ConjugateGradients | SolveThenTrain | NewtonCG


def make_optimizer(theta: list[Tensor], settings: Experiment, pairs: int, columns: bool = False) -> AnyOptimizer:
    """Build the optimiser of the settings. `pairs`: (instance, label) pairs that the clients hold together, Σ n_u.
    `columns`: whether the objective is a sum over the columns of θ."""
    if settings.server.optimizer == "newton":
        return NewtonCG(theta, settings.server, pairs, settings.client.learning_rate, columns)
    if settings.server.optimizer != "cg":
        return ServerOptimizer(theta, settings.server)
    if settings.encoder.shortcut:
        rest = [parameter for index, parameter in enumerate(theta) if index != SHORTCUT]
        return SolveThenTrain(theta[SHORTCUT], rest, settings, pairs)
    return ConjugateGradients(theta, settings.server, pairs, settings.client.learning_rate)


class AveragedWeights:
    """An exponential moving average. Its decay grows with the rounds, so that the first ones are forgotten quickly."""

    def __init__(self, tensors: list[Tensor], decay: float) -> None:
        self.decay = decay
        self.values = [tensor.detach().clone() for tensor in tensors]

    @torch.no_grad()
    def update(self, tensors: list[Tensor], round_number: int) -> None:
        decay = min(self.decay, round_number / (round_number + 9))
        for mean, tensor in zip(self.values, tensors, strict=True):
            mean.lerp_(tensor, 1 - decay)
