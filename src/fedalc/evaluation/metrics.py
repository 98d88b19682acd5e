"""Ranking metrics in percent: P@k, nDCG@k, PSP@k and mAP. Checked against scikit-learn and cases worked by hand.

Test instances are scored in blocks, so memory is bounded by `budget` bytes for a block of scores, however many labels.
An instance without true labels counts as 0 in every per-instance mean, as in the field's own scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.nearest import largest

CUTS = (1, 3, 5)


@dataclass(frozen=True)
class Propensity:
    """p_l = 1 / (1 + C·(n_l + B)^-A), C = (log N - 1)(B + 1)^A (Jain et al., 2016): how likely a true label is seen."""

    A: float = 0.55
    B: float = 1.5

    def inverse(self, counts: np.ndarray, instances: int) -> np.ndarray:
        """1 / p_l for each label, from how often it occurs in train."""
        C = max(np.log(instances) - 1, 0) * (self.B + 1) ** self.A  # not below 0: it is meant for large N
        return 1 + C * (counts + self.B) ** -float(self.A)


def top_labels(
    scores: Callable[[slice], Tensor], rows: int, labels: int, k: int, budget: int = DEFAULT_BUDGET
) -> tuple[Tensor, Tensor]:
    """The k best labels of each instance, best first, and their scores. `scores(block of rows)` is rows × labels."""
    k = min(k, labels)
    index, value = torch.zeros(rows, k, dtype=torch.int64), torch.zeros(rows, k, dtype=torch.float64)
    for block in blocks(rows, 8 * labels, budget):
        value[block], index[block] = largest(scores(block), k)
    return index, value


def hits(top: np.ndarray, truth: csr_matrix) -> np.ndarray:
    """Which of the ranked labels are true: a boolean array of the shape of `top`."""
    rows = np.repeat(np.arange(len(top)), top.shape[1])
    return np.asarray(truth[rows, top.ravel()]).reshape(top.shape) > 0


def ranking_metrics(
    top: np.ndarray, truth: csr_matrix, inverse_propensity: np.ndarray | None = None
) -> dict[str, float]:
    """P, nDCG and (given propensities) PSP at 1, 3, 5. `top` holds at least the five best labels, or all there are.

    >>> round(ranking_metrics(np.array([[2, 0, 1]]), csr_matrix([[1, 1, 0]]))["P@3"], 2)
    66.67
    """
    hit = hits(top, truth)
    label_count = np.diff(truth.indptr)
    gain = 1 / np.log2(np.arange(2, max(CUTS) + 2))
    result = {f"P@{k}": 100 * hit[:, :k].sum(1).mean() / k for k in CUTS}
    for k in CUTS:
        ideal = np.concatenate(([0.0], np.cumsum(gain[:k])))[np.minimum(label_count, k)]
        found = hit[:, :k] @ gain[: hit[:, :k].shape[1]]
        result[f"nDCG@{k}"] = 100 * np.divide(found, ideal, out=np.zeros(len(hit)), where=ideal > 0).mean()
    if inverse_propensity is not None:
        best = _best_weights(truth, inverse_propensity, max(CUTS))
        for k in CUTS:
            found = (hit[:, :k] * inverse_propensity[top[:, :k]]).sum()
            possible = best[:, :k].sum()
            result[f"PSP@{k}"] = 100 * found / possible if possible > 0 else 0.0
    return {name: float(value) for name, value in result.items()}


def _best_weights(truth: csr_matrix, weight: np.ndarray, k: int) -> np.ndarray:
    """The k largest weights among each instance's true labels, largest first, zeros where there are fewer."""
    row = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr))
    values = weight[truth.indices]
    order = np.lexsort((-values, row))
    place = np.arange(truth.nnz) - np.repeat(truth.indptr[:-1], np.diff(truth.indptr))
    best = np.zeros((truth.shape[0], k))
    kept = place < k
    best[row[kept], place[kept]] = values[order][kept]
    return best


def mean_average_precision(scores: Callable[[slice], Tensor], truth: csr_matrix, budget: int = DEFAULT_BUDGET) -> float:
    """Macro mean over the labels with a true test instance of the average precision of their ranking of instances.

    `scores(block of labels)` gives instances × labels. Equal scores share one threshold, as in scikit-learn. Of several
    processes each takes its share of the labels.
    """
    by_label = truth.tocsc()
    instances, labels = truth.shape
    total, counted = 0.0, 0
    # Scores in double, their transpose, sorted, their order and its inverse live at once.
    for block in blocks(labels, 40 * instances, budget, within=distributed.own_range(labels)):
        if by_label.indptr[block.start] == by_label.indptr[block.stop]:
            continue
        ascending, order = scores(block).cpu().double().T.contiguous().sort(dim=1)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(instances).expand_as(order))
        for column in range(block.stop - block.start):
            start, stop = by_label.indptr[block.start + column], by_label.indptr[block.start + column + 1]
            if start == stop:
                continue
            true = torch.from_numpy(by_label.indices[start:stop].astype(np.int64))
            mine = ascending[column][rank[column][true]].sort().values
            at_least = instances - torch.searchsorted(ascending[column], mine)
            true_at_least = len(mine) - torch.searchsorted(mine, mine)
            total += (true_at_least.double() / at_least).mean().item()
            counted += 1
    total, counted = distributed.sum_of(total), round(distributed.sum_of(counted))
    return 100 * total / counted if counted else 0.0
