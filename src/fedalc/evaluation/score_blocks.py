"""What is computed from scores, block by block: the best labels of each instance, and mean average precision.

Memory is bounded by `budget` bytes for a block of scores, however many labels there are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.nearest import largest


def top_labels(
    scores: Callable[[slice], Tensor], rows: int, labels: int, k: int, budget: int = DEFAULT_BUDGET
) -> tuple[Tensor, Tensor]:
    """Return the k best labels of each instance, best first, and their scores.

    `scores(block of rows)` gives rows × labels.
    """
    k = min(k, labels)
    index, value = torch.zeros(rows, k, dtype=torch.int64), torch.zeros(rows, k, dtype=torch.float64)
    for block in blocks(rows, 8 * labels, budget):
        value[block], index[block] = largest(scores(block), k)
    return index, value


def mean_average_precision(scores: Callable[[slice], Tensor], truth: csr_matrix, budget: int = DEFAULT_BUDGET) -> float:
    """Return the mean, over labels with a true instance, of the average precision of the label's ranking of instances,
    in percent. With several processes, each takes its share of the labels."""
    found = average_precisions(scores, truth, budget)
    found = found[~np.isnan(found)]
    total, counted = distributed.sum_of(float(sum(found))), round(distributed.sum_of(len(found)))
    return 100 * total / counted if counted else 0.0


def average_precisions(
    scores: Callable[[slice], Tensor], truth: csr_matrix, budget: int = DEFAULT_BUDGET
) -> np.ndarray:
    """Return the average precision of each label's ranking of instances, from 0 to 1; NaN for labels without a true
    instance, and for those of other processes.

    `scores(block of labels)` gives instances × labels. Equal scores share one threshold, as in scikit-learn.
    """
    by_label = truth.tocsc()
    instances, labels = truth.shape
    found = np.full(labels, np.nan)
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
            found[block.start + column] = (true_at_least.double() / at_least).mean().item()
    return found
