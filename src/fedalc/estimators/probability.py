"""Log-odds from the scores of the training itself, if there were too few records to hold any out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import log_softmax


@dataclass(frozen=True)
class Line:
    """log-odds = slope · score + offset, for all labels. Too confident: it was fitted on the training's own records."""

    slope: float
    offset: float

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        return self.slope * scores + self.offset

    def score_thresholds(self, threshold: Any = 0.5) -> np.ndarray:
        """Return the score from which on a label is given: that of probability 1/2."""
        return np.asarray(-self.offset / self.slope)


def fit_line(scores: np.ndarray, labels: csr_matrix, one_label: bool) -> Line:
    """Fit by maximum likelihood. `one_label`: the softmax of the log-odds counts, otherwise the sigmoid of each."""
    truth = labels.toarray()
    scale = float(np.std(scores)) or 1.0

    def loss(values: np.ndarray) -> float:
        logits = np.exp(values[0]) / scale * scores
        if one_label:
            return -float((log_softmax(logits, axis=1) * truth).sum())
        logits = logits + values[1]
        return float(np.logaddexp(0, logits).sum() - (logits * truth).sum())

    start = np.zeros(1 if one_label else 2)
    found = minimize(loss, start, method="L-BFGS-B", bounds=[(-10, 10)] * len(start)).x
    return Line(float(np.exp(found[0])) / scale, 0.0 if one_label else float(found[1]))
