"""How well a model ranks labels."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.data.dataset import Split
from fedalc.errors import ConfigError
from fedalc.evaluation.metrics import DEEPEST, Ranked, all_metrics
from fedalc.models.model import Model
from fedalc.models.scoring import Scorer, ShardedScorer, SharedScorer

MAP_LIMIT = 100_000_000  # instances × labels; beyond it mAP, which ranks every instance for every label, is left out


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
) -> dict[str, float]:
    """Return all metrics of a model on a split, in percent; mAP if `with_map` and affordable (`MAP_LIMIT`).

    `held` marks the labels that have a client: only these are ranked.
    """
    scorer: type[Scorer | SharedScorer | ShardedScorer] = Scorer
    if distributed.here().count > 1:
        scorer = SharedScorer if model.shard is None else ShardedScorer
    return measure(scorer(model, split.features, held, budget), split.labels, inverse_propensity, with_map, budget)


def measure(
    scores: Ranking,
    truth: csr_matrix,
    inverse_propensity: np.ndarray | None = None,
    with_map: bool = False,
    budget: int = DEFAULT_BUDGET,
) -> dict[str, float]:
    """Return the same metrics for any scoring of the instances whose labels are `truth`."""
    ranked = Ranked(scores.top(DEEPEST)[0].numpy(), truth, inverse_propensity, scores, budget)
    return all_metrics(ranked, with_scores=with_map and truth.shape[0] * truth.shape[1] <= MAP_LIMIT)
