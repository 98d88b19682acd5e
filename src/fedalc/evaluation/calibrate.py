"""Fit probabilities and thresholds to the scores of held-out records (docs/predictions.md).

The scores must come from a model that was not trained on these records. Memory is bounded: of each record, the labels
that it has, the `LARGEST` scores and `DRAWN` others are kept, which stand for the rest. With at most `KEEP_ALL` labels,
all are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Split
from fedalc.models.calibration import Calibration, rising_curve, sigmoid
from fedalc.models.thresholds import count_at_levels
from fedalc.models.verification import count_trials

LARGEST, DRAWN, KEEP_ALL = 50, 50, 256
MOST_RECORDS, MOST_SCORES = 10_000, 2 * 10**9  # of the held-out records that are scored
FEWEST_POSITIVES = 20  # held-out pairs of a record and a label that it has
KNOTS = (0.2, 0.4, 0.6, 0.8)  # quantiles of the positives' scores
SMALLEST_RISE = 0.01  # of the curve in log-odds, over the range of the scores
TIGHT = 10.0  # 1 / variance of the prior of a label's own offset, in log-odds


class InstanceScores(Protocol):
    def of_instances(self, rows: slice) -> Tensor:
        """Return instances × labels; -inf for labels without a client."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Pairs of a held-out record and a label."""

    scores: np.ndarray
    labels: np.ndarray
    truth: np.ndarray  # whether the record has the label
    weights: np.ndarray  # how many pairs one stands for
    log_share: np.ndarray  # of each pair's label: the log of its share of the training records; zeros if unknown
    records: int


def some_records(split: Split, seed: int) -> Split:
    """Return the records to calibrate on: all, or as many at random as is affordable."""
    most = min(MOST_RECORDS, max(1, MOST_SCORES // split.labels.shape[1]))
    if len(split) <= most:
        return split
    return split.rows(np.sort(numpy_generator(seed, "calibration").permutation(len(split))[:most]))


def log_shares(train: csr_matrix) -> np.ndarray:
    """Return the log of each label's share of the training records, a little more than it is: none is 0."""
    return np.asarray(np.log((train.getnnz(axis=0) + 1) / (train.shape[0] + 1)))


@torch.no_grad()
def held_out_scores(
    scorer: InstanceScores,
    truth: csr_matrix,
    held: np.ndarray,
    log_share: np.ndarray | None = None,
    seed: int = 0,
    budget: int = DEFAULT_BUDGET,
) -> HeldOut:
    """Score held-out records and keep some pairs of each. `held`: the labels that have a client."""
    labels_of, scores_of, truth_of, weights_of = [], [], [], []
    present, generator = torch.from_numpy(held), numpy_generator(seed, "negatives")
    count, label_count = truth.shape
    for rows in blocks(count, 24 * label_count, budget):
        scores = scorer.of_instances(rows).cpu()
        true = torch.from_numpy(truth[rows].toarray() > 0) & present
        kept, weight = _kept_pairs(scores, true, present, generator)
        row, label = kept.nonzero(as_tuple=True)
        labels_of.append(label.numpy())
        scores_of.append(scores[row, label].double().numpy())
        truth_of.append(true[row, label].numpy())
        weights_of.append(weight[row, label].double().numpy())
    labels = np.concatenate(labels_of)
    shares = np.zeros(len(labels)) if log_share is None else log_share[labels]
    return HeldOut(
        np.concatenate(scores_of), labels, np.concatenate(truth_of), np.concatenate(weights_of), shares, count
    )


def _kept_pairs(scores: Tensor, true: Tensor, present: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return which pairs are kept, and their weights."""
    count, label_count = scores.shape
    if label_count <= KEEP_ALL:
        return present.expand(count, -1), torch.ones_like(scores)
    kept = true.clone().scatter_(1, scores.topk(LARGEST, dim=1).indices, True) & present
    others = int(present.sum()) - kept.sum(1)
    drawn = torch.from_numpy(generator.integers(label_count, size=(count, DRAWN)))
    sampled = torch.zeros_like(kept).scatter_(1, drawn, True) & present & ~kept
    stands_for = others / sampled.sum(1).clamp(min=1)
    weight = torch.where(sampled, stands_for[:, None], 1.0)
    return kept | sampled, weight


def fit_calibration(
    parts: Sequence[HeldOut], label_count: int, log_share: np.ndarray | None = None, verifies: bool = False
) -> Calibration | None:
    """Fit the curve, the offsets and the thresholds' counts. None if there are too few positives.

    `log_share`: of the labels of the model that it is for (see `log_shares`), if the parts have theirs. `verifies`:
    also count what thresholds of verification follow from.
    """
    scores, labels, truth, weights, shares = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("scores", "labels", "truth", "weights", "log_share")
    )
    if weights[truth].sum() < FEWEST_POSITIVES or truth.all():
        return None
    knots = np.unique(_quantiles(scores[truth], weights[truth]))
    slopes, intercept, by_share = _fit_curve(scores, truth, weights, shares, knots)
    base = intercept + (by_share * log_share if log_share is not None else np.zeros(label_count))
    without = rising_curve(scores, knots, slopes)
    known = without + intercept + by_share * shares
    offsets = (base + _fit_offsets(known, labels, truth, weights, label_count)).astype(np.float32)
    counts = count_at_levels(without + offsets[labels], labels, truth, weights, label_count)
    trials = count_trials(scores, labels, truth, weights) if verifies else None
    return Calibration(knots, slopes, offsets, counts, sum(part.records for part in parts), trials)


def _quantiles(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the scores at `KNOTS`. A score of weight 3 is three scores.

    >>> scores, weights = np.array([2.0, 1.0, 5.0]), np.array([3.0, 1.0, 2.0])
    >>> bool((_quantiles(scores, weights) == np.quantile([1.0, 2.0, 2.0, 2.0, 5.0, 5.0], KNOTS)).all())
    True
    """
    if (weights == 1).all():
        return np.asarray(np.quantile(scores, KNOTS))
    order = np.argsort(scores)
    ends = np.cumsum(weights[order])
    place = np.array(KNOTS) * (ends[-1] - 1)
    low, high = (
        scores[order][np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)]
        for at in (np.floor(place), np.ceil(place))
    )
    return np.asarray(low + (high - low) * (place - np.floor(place)))


def _fit_curve(
    scores: np.ndarray, truth: np.ndarray, weights: np.ndarray, shares: np.ndarray, knots: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """Fit a logistic regression on the pieces of the curve and the labels' shares. Slopes stay positive."""
    from scipy.optimize import minimize

    ends = [-np.inf, *knots, np.inf]
    pieces = [np.clip(scores, low, high) for low, high in pairwise(ends)]
    pieces[0] -= knots[0]
    pieces[1:] = [piece - low for piece, low in zip(pieces[1:], knots, strict=True)]
    scale = np.array([max(float(piece.std()), 1e-9) for piece in pieces])
    design = np.stack([*pieces, np.ones_like(scores), shares], axis=1)
    design[:, : len(pieces)] /= scale
    target = truth.astype(np.float64)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        z = design @ x
        loss = float(weights @ (np.logaddexp(0, z) - target * z)) + 1e-3 * float(x @ x)
        return loss, design.T @ (weights * (sigmoid(z) - target)) + 2e-3 * x

    count = len(pieces)
    least = SMALLEST_RISE / max(float(np.ptp(scores)), 1e-9)
    bounds = [(least * each, None) for each in scale] + [(None, None), (None, None) if shares.any() else (0, 0)]
    start = np.array([1.0] * count + [0.0, 0.0])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500}).x
    return found[:count] / scale, float(found[count]), float(found[count + 1])


def _fit_offsets(
    log_odds: np.ndarray, labels: np.ndarray, truth: np.ndarray, weights: np.ndarray, label_count: int
) -> np.ndarray:
    """Return each label's own offset: Newton steps on its log loss and a Gaussian prior around 0."""
    offsets = np.zeros(label_count)
    for _ in range(20):
        p = sigmoid(log_odds + offsets[labels])
        slope = np.bincount(labels, weights * (p - truth), label_count) + TIGHT * offsets
        curvature = np.bincount(labels, weights * p * (1 - p), label_count) + TIGHT
        step = np.clip(slope / curvature, -1, 1)
        offsets -= step
        if np.abs(step).max() < 1e-6:
            break
    return offsets
