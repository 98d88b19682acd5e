"""One-vs-rest, centralised: one regression per label on all instances, including the negatives that clients lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.saved_parts import numbers
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import ConfigError
from fedalc.oracles.base import Follow, Oracle, Scores, blocks
from fedalc.oracles.logistic import LogisticProblem


@dataclass(frozen=True)
class OneVsRest(Oracle):
    """The score of label u is xᵀv_u + b_u: a regression value (ridge, b = 0) or log-odds (logistic)."""

    weights: Tensor  # features × labels
    intercepts: Tensor
    unconverged: int = 0

    kind = "ovr"
    help = "one-vs-rest: a ridge or logistic regression per label"
    use_when = "To see what federated training loses: the centralised twin of fedalc-oneshot"
    colour = "#5B6B7F"  # slate
    sections = ("ovr",)

    @classmethod
    def check(cls, settings: Experiment) -> None:
        if len(settings.ovr.grid) > 1 and settings.selection.validation == 0:
            raise ConfigError(
                "several penalties need validation data to choose from them: give a single one, or set "
                "selection.validation",
                "ovr.penalties",
            )

    @staticmethod
    def candidates(settings: Experiment) -> tuple[float | None, ...]:
        """Return the penalties, largest first: logistic regressions start from the solution of the previous one."""
        return tuple(sorted(set(settings.ovr.grid), reverse=True))

    @staticmethod
    def steps(settings: Experiment, instances: int, labels: int, candidates: int) -> int:
        return candidates * len(list(blocks(labels, settings.ovr.block_labels)))

    @staticmethod
    def memory(settings: Experiment, data: Dataset) -> float:
        number = 8 if settings.dtype == "float64" else 4
        block = min(settings.ovr.block_labels, data.label_count)
        weights = 2 * number * data.feature_count * data.label_count  # the best solution and the next
        if settings.ovr.loss == "ridge":
            return weights + 28 * data.feature_count**2 + 16 * data.feature_count * block
        return weights + 8 * block * (8 * data.feature_count + 10 * len(data.train))

    @classmethod
    def fits(
        cls, settings: Experiment, train: Split, candidates: tuple[float | None, ...], follow: Follow
    ) -> Iterator[tuple[float | None, Oracle]]:
        penalties = [float(candidate) for candidate in candidates if candidate is not None]
        solve = ridge if settings.ovr.loss == "ridge" else logistic
        dtype = getattr(torch, settings.dtype)
        solutions = solve(train, penalties, settings.ovr.block_labels, dtype, follow)
        for penalty, (solution, unconverged) in zip(penalties, solutions, strict=True):
            yield penalty, cls(solution[:-1], solution[-1], unconverged)

    @property
    def feature_count(self) -> int:
        return int(self.weights.shape[0])

    def scores(self, features: csr_matrix) -> Scores:
        V, b = self.weights.numpy(), self.intercepts.numpy()

        def of(rows: slice, labels: slice) -> np.ndarray:
            return np.asarray(features[rows] @ V[:, labels]) + b[labels]

        return of

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"weights": self.weights, "intercepts": self.intercepts}, {}

    @classmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> OneVsRest:
        weights, intercepts = numbers(tensors, "weights", 2), numbers(tensors, "intercepts", 1)
        if intercepts.shape != weights.shape[1:] or len(facts["labels"]) != len(intercepts):
            raise ValueError(f"weights of {tuple(weights.shape)}, intercepts of {tuple(intercepts.shape)}")
        return cls(weights, intercepts)


Solutions = Iterator[tuple[Tensor, int]]  # (weights and intercepts, number of labels that have not converged)


def ridge(train: Split, penalties: list[float], block: int, dtype: torch.dtype, follow: Follow) -> Solutions:
    """Solve (XᵀX + λI) V = XᵀY in double precision. All penalties share XᵀX (features × features).

    The last row, the intercepts, is zero: an intercept did not help on validation data (docs/oracles.md).
    """
    X, Y = train.features.astype(np.float64), train.labels.astype(np.float64)
    gram, moments = (X.T @ X).toarray(), (X.T @ Y).tocsc()
    diagonal = np.diag_indices(len(gram))
    for penalty in penalties:
        follow.check()
        shifted = gram.copy()
        shifted[diagonal] += penalty
        factor = cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)
        V = torch.zeros(len(gram) + 1, Y.shape[1], dtype=dtype)
        for labels in blocks(Y.shape[1], block):
            solution = cho_solve(factor, moments[:, labels].toarray(), overwrite_b=True, check_finite=False)
            V[:-1, labels] = torch.from_numpy(solution).to(dtype)
            follow.done(f"penalty {penalty:g}")
        yield V, 0


def logistic(train: Split, penalties: list[float], block: int, dtype: torch.dtype, follow: Follow) -> Solutions:
    """Solve logistic regressions with intercepts, one block of labels at a time."""
    problem, Y = LogisticProblem(train.features, dtype), train.labels.tocsc()
    before: Tensor | None = None
    for penalty in penalties:
        V, unconverged = torch.zeros(problem.width, Y.shape[1], dtype=dtype), 0
        for labels in blocks(Y.shape[1], block):
            y = torch.from_numpy(Y[:, labels].toarray())
            start = None if before is None else before[:, labels]
            V[:, labels] = problem.solve(y, penalty, start, check=follow.check)
            unconverged += problem.unconverged
            follow.done(f"penalty {penalty:g}")
        before = V
        yield V, unconverged
