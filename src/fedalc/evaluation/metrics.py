"""Metrics in percent: P@k, nDCG@k, PSP@k, R@k and mAP of rankings, F1 of label sets, and `register_metric`.

Checked against scikit-learn and cases worked by hand. An instance without true labels counts as 0 in every
per-instance mean, as in the field's own scripts. This module does not import torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.core.registry import METRICS
from fedalc.errors import ConfigError, FedalcError

CUTS = (1, 3, 5)
DEEPEST = max(CUTS)
GAIN = 1 / np.log2(np.arange(2, DEEPEST + 2))

F = TypeVar("F", bound=Callable[[np.ndarray, csr_matrix], float])


@dataclass(frozen=True, eq=False)
class Ranked:
    """Instances with their best labels and their true ones. What several metrics use is computed once."""

    top: np.ndarray
    """Instances × 5 label numbers, best first; fewer columns if there are fewer labels."""
    truth: csr_matrix
    """Instances × labels, with ones."""
    inverse_propensity: np.ndarray | None = None
    scores: Any = None
    """A `Ranking` (evaluate.py), for metrics that need more than the top 5."""
    budget: int = DEFAULT_BUDGET
    sets: csr_matrix | None = None
    """Instances × labels, with ones: the labels that each instance gets, if the model has thresholds."""
    trials: Any = None
    """The `Trials` (verification.py) of a run of the task verification."""

    def hits(self, k: int) -> np.ndarray:
        """Return which of the k best labels are true."""
        return self._top_hits[:, :k] if k <= DEEPEST else self._are_true(self.best_labels(k))

    @cached_property
    def _top_hits(self) -> np.ndarray:
        return self._are_true(self.top[:, :DEEPEST])

    def _are_true(self, labels: np.ndarray) -> np.ndarray:
        rows = np.repeat(np.arange(len(labels)), labels.shape[1])
        return np.asarray(self.truth[rows, labels.ravel()]).reshape(labels.shape) > 0

    @cached_property
    def best_weights(self) -> np.ndarray:
        """Return the largest inverse propensities among each instance's true labels."""
        assert self.inverse_propensity is not None
        return _best_weights(self.truth, self.inverse_propensity, DEEPEST)

    def best_labels(self, k: int) -> np.ndarray:
        if k <= DEEPEST or self.scores is None:
            return self.top[:, :k]
        best: np.ndarray = self.scores.top(k)[0].numpy()
        return best


@dataclass(frozen=True)
class Metric:
    """A figure in percent, and what it needs: the top labels, propensities (the test set has them), the scores of all
    labels (computed where mAP is affordable), label sets (if the model has thresholds), or trials of claimed labels (of
    the task verification; NaN: not measured). Add a built-in one here and in `core/registry.py`."""

    help: str
    compute: Callable[..., float]
    needs: Literal["top", "propensities", "scores", "sets", "trials"] = "top"
    larger_is_better: bool = True
    name: str = ""
    function: Callable[..., Any] | None = None
    """A registered metric's own function."""

    @property
    def origin(self) -> Any:
        """What tells two metrics of one name apart, for the registry."""
        return self.function

    def value(self, ranked: Ranked) -> float:
        return float(self.compute(ranked) if self.function is None else self.compute(ranked, self.name))

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.larger_is_better else value < than


def find_metric(name: str) -> Metric:
    """Return the metric of this name, built in or registered."""
    metric: Metric = METRICS[name]
    return metric if metric.name else replace(metric, name=name)


def as_metric(item: Any) -> Metric:
    """Return a metric for a function of (top, truth), as an installed package may have it. Refuse anything else."""
    if isinstance(item, Metric):
        return item
    if not callable(item):
        raise ConfigError(f"{item!r:.60} is not a function of (top, truth)", "register_metric")
    return _metric_of(item)


def _metric_of(function: Callable[..., Any], k: int = DEEPEST, larger_is_better: bool = True) -> Metric:
    help_ = (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
    return Metric(help_, partial(_computed, function, k), larger_is_better=larger_is_better, function=function)


def register_metric(name: str, *, k: int = DEEPEST, larger_is_better: bool = True) -> Callable[[F], F]:
    """Register a function of (top, truth) as a metric, and return it unchanged. Its docstring is the help text.

    `top` has the numbers of each instance's `k` best labels, best first (fewer if there are fewer labels); `truth` is a
    csr_matrix of instances × labels with ones. The function returns percent.
    """
    METRICS.check_name(name)
    if type(k) is not int or k < 1:
        raise ConfigError(f"k is a whole number from 1 on, not {k!r:.60}", "register_metric")

    def register(function: F) -> F:
        as_metric(function)  # refuses what is not a function
        METRICS.register(name, _metric_of(function, k, larger_is_better))
        return function

    return register


def all_metrics(ranked: Ranked, with_scores: bool = False) -> dict[str, float]:
    """Return every metric for which there is what it needs."""
    there = {"top": True, "propensities": ranked.inverse_propensity is not None, "scores": with_scores}
    there |= {"sets": ranked.sets is not None, "trials": ranked.trials is not None}
    metrics: dict[str, Metric] = {}
    for name in METRICS:
        try:
            metrics[name] = find_metric(name)
        except FedalcError as error:  # of an installed package: no reason to lose the others
            warnings.warn(str(error), stacklevel=2)
    values = {name: metric.value(ranked) for name, metric in metrics.items() if there[metric.needs]}
    return {
        name: value for name, value in values.items() if not (metrics[name].needs == "trials" and math.isnan(value))
    }


def ranking_metrics(
    top: np.ndarray, truth: csr_matrix, inverse_propensity: np.ndarray | None = None
) -> dict[str, float]:
    """Return the metrics of ranked labels: P, nDCG, R and (given propensities) PSP at 1, 3, 5, and registered ones.

    `top` holds at least the five best labels, or all there are.

    >>> round(ranking_metrics(np.array([[2, 0, 1]]), csr_matrix([[1, 1, 0]]))["P@3"], 2)
    66.67
    """
    return all_metrics(Ranked(top, truth, inverse_propensity))


def _computed(function: Callable[[np.ndarray, csr_matrix], float], k: int, ranked: Ranked, name: str) -> float:
    """Call a registered function and check its value. Several processes agree on the value of the first."""
    top, value, problem = ranked.best_labels(k), 0.0, None
    try:
        value = float(function(top, ranked.truth))
        if not math.isfinite(value):
            problem = FedalcError(f"the metric {name!r} returned {value}: it should return a finite number")
    except Exception as error:
        problem = FedalcError(f"the metric {name!r} failed: {type(error).__name__}: {error}")
        problem.__cause__ = error
    if distributed.any_of(problem is not None):
        raise problem or FedalcError(f"the metric {name!r} failed in another process")
    return distributed.sum_of(value if distributed.is_first() else 0.0)


def _precision(ranked: Ranked, k: int) -> float:
    return float(100 * ranked.hits(k).sum(1).mean() / k)


def _ndcg(ranked: Ranked, k: int) -> float:
    hits = ranked.hits(k)
    label_count = np.diff(ranked.truth.indptr)
    ideal = np.concatenate(([0.0], np.cumsum(GAIN[:k])))[np.minimum(label_count, k)]
    gained = hits @ GAIN[: hits.shape[1]]
    return float(100 * np.divide(gained, ideal, out=np.zeros(len(hits)), where=ideal > 0).mean())


def _propensity_scored_precision(ranked: Ranked, k: int) -> float:
    assert ranked.inverse_propensity is not None
    gained = (ranked.hits(k) * ranked.inverse_propensity[ranked.top[:, :k]]).sum()
    possible = ranked.best_weights[:, :k].sum()
    return float(100 * gained / possible) if possible > 0 else 0.0


def _recall(ranked: Ranked, k: int) -> float:
    label_count = np.diff(ranked.truth.indptr)
    return float(100 * (ranked.hits(k).sum(1) / np.maximum(label_count, 1)).mean())


def set_counts(sets: csr_matrix, truth: csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each label, the instances that rightly get it, those that get it, and those that have it."""
    right = sets.multiply(truth).tocsr()
    right.eliminate_zeros()
    return tuple(np.asarray(matrix.getnnz(axis=0)) for matrix in (right, sets, truth))  # type: ignore[return-value]


def f1_scores(right: np.ndarray, given: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return F1 from counts: 2 right / (given + true); 0 where both are 0."""
    return np.asarray(2 * right / np.maximum(given + true, 1))


def _micro_f1(ranked: Ranked) -> float:
    assert ranked.sets is not None
    totals = [counts.sum(keepdims=True) for counts in set_counts(ranked.sets, ranked.truth)]
    return float(100 * f1_scores(*totals)[0])


def _macro_f1(ranked: Ranked) -> float:
    assert ranked.sets is not None
    right, given, true = set_counts(ranked.sets, ranked.truth)
    return float(100 * f1_scores(right, given, true)[true > 0].mean()) if true.any() else 0.0


def _mean_average_precision(ranked: Ranked) -> float:
    from fedalc.evaluation.score_blocks import mean_average_precision

    return mean_average_precision(ranked.scores.of_labels, ranked.truth, ranked.budget)


P1, P3, P5 = (Metric(f"true labels among the top {k}", partial(_precision, k=k)) for k in CUTS)
NDCG1, NDCG3, NDCG5 = (Metric(f"normalised discounted gain of the top {k}", partial(_ndcg, k=k)) for k in CUTS)
PSP1, PSP3, PSP5 = (
    Metric(f"P@{k} weighted by inverse propensities", partial(_propensity_scored_precision, k=k), "propensities")
    for k in CUTS
)
R1, R3, R5 = (Metric(f"share of the true labels that are among the top {k}", partial(_recall, k=k)) for k in CUTS)
MICRO_F1 = Metric("F1 over all pairs of instance and label, with thresholds for F1", _micro_f1, "sets")
MACRO_F1 = Metric("mean F1 of the labels that occur, with thresholds for F1", _macro_f1, "sets")
MAP = Metric("mean over labels of the average precision", _mean_average_precision, "scores")


@dataclass(frozen=True)
class Propensity:
    """How likely a true label is seen: p_l = 1 / (1 + C·(n_l + B)^-A), C = (log N - 1)(B + 1)^A (Jain et al., 2016)."""

    A: float = 0.55
    B: float = 1.5

    def inverse(self, counts: np.ndarray, instances: int) -> np.ndarray:
        """Return 1 / p_l for each label, from how often it occurs in train."""
        C = max(np.log(instances) - 1, 0) * (self.B + 1) ** self.A  # not below 0: the model is meant for large N
        return 1 + C * (counts + self.B) ** -float(self.A)


def _best_weights(truth: csr_matrix, weight: np.ndarray, k: int) -> np.ndarray:
    """Return the k largest weights among each instance's true labels, largest first, zeros where there are fewer."""
    row = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr))
    values = weight[truth.indices]
    order = np.lexsort((-values, row))
    rank = np.arange(truth.nnz) - np.repeat(truth.indptr[:-1], np.diff(truth.indptr))
    best = np.zeros((truth.shape[0], k))
    among = rank < k
    best[row[among], rank[among]] = values[order][among]
    return best
