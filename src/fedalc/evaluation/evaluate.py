"""How well a model ranks labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.data.dataset import Split
from fedalc.errors import ConfigError
from fedalc.evaluation.metrics import DEEPEST, Ranked, all_metrics
from fedalc.evaluation.verification import Trials
from fedalc.models.calibration import Calibration
from fedalc.models.column_scoring import make_scorer
from fedalc.models.model import Model
from fedalc.models.predicting import Scores, decide
from fedalc.models.scoring import ShardedScorer, SharedScorer

MAP_LIMIT = 100_000_000  # instances × labels; beyond it mAP, which ranks every instance for every label, is left out

SETS_LIMIT = 10**10  # instances × labels; beyond it micro-F1 and macro-F1, which compare every score, are left out


class Ranking(Protocol):
    """Scores of some instances for all labels."""

    def of_labels(self, labels: slice) -> Tensor: ...

    def top(self, k: int) -> tuple[Tensor, Tensor]: ...


def check_map_affordable(truth: csr_matrix) -> None:
    if truth.shape[0] * truth.shape[1] > MAP_LIMIT:
        raise ConfigError(
            f"mAP ranks each instance for each label, and {truth.shape[0]} × {truth.shape[1]} are more than "
            f"{MAP_LIMIT:,}; choose another metric",
            "selection.metric",
        )


def evaluate(
    model: Model,
    split: Split,
    held: np.ndarray,
    inverse_propensity: np.ndarray | None = None,
    with_map: bool = False,
    budget: int = DEFAULT_BUDGET,
    calibration: Calibration | None = None,
    trials: Trials | None = None,
) -> dict[str, float]:
    """Return all metrics of a model on a split, in percent; mAP if `with_map` and affordable (`MAP_LIMIT`).

    `held` marks the labels that have a client: only these are ranked.
    """
    scorer = scorer_for(model, split, held, budget)
    return measure(scorer, split.labels, inverse_propensity, with_map, budget, calibration, trials)


def scorer_for(model: Model, split: Split, held: np.ndarray, budget: int = DEFAULT_BUDGET) -> Ranking:
    """Return what scores a split, in one process or shared by several."""
    scorer: Callable[..., Ranking] = make_scorer
    if distributed.here().count > 1:
        scorer = SharedScorer if model.shard is None else ShardedScorer
    return scorer(model, split.features, held, budget)


def measure(
    scores: Ranking,
    truth: csr_matrix,
    inverse_propensity: np.ndarray | None = None,
    with_map: bool = False,
    budget: int = DEFAULT_BUDGET,
    calibration: Calibration | None = None,
    trials: Trials | None = None,
) -> dict[str, float]:
    """Return the same metrics for any scoring of the instances whose labels are `truth`. With a calibration, also
    those of label sets, by thresholds for F1, if that is affordable (`SETS_LIMIT`) and this is the only process; with
    trials those of verification."""
    size = truth.shape[0] * truth.shape[1]
    sets = None
    if calibration is not None and size <= SETS_LIMIT and distributed.here().count == 1:
        decided = decide(calibration, cast(Scores, scores), truth.shape[0], budget=budget)
        sets = decided.matrix(truth.shape[1])
    ranked = Ranked(scores.top(DEEPEST)[0].numpy(), truth, inverse_propensity, scores, budget, sets, trials)
    return all_metrics(ranked, with_scores=with_map and size <= MAP_LIMIT)
