"""Scores of held-out records turned into probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import expit, log_softmax, softmax


@dataclass(frozen=True)
class Calibration:
    """probability = sigmoid(slope · score + offset), or softmax(slope · scores) if a record has exactly one label."""

    slope: float
    offset: float
    one_label: bool

    @classmethod
    def fit(cls, scores: np.ndarray, labels: csr_matrix, one_label: bool) -> Calibration:
        """Fit by maximum likelihood on records that the model was not trained on."""
        truth = labels.toarray()
        scale = float(np.std(scores)) or 1.0

        def loss(values: np.ndarray) -> float:
            logits = np.exp(values[0]) / scale * scores
            if one_label:
                return -float((log_softmax(logits, axis=1) * truth).sum())
            logits = logits + values[1]
            return float(np.logaddexp(0, logits).sum() - (logits * truth).sum())

        found = minimize(loss, np.zeros(1 if one_label else 2), method="L-BFGS-B", bounds=[(-10, 10)] * (2 - one_label))
        return cls(float(np.exp(found.x[0])) / scale, 0.0 if one_label else float(found.x[1]), one_label)

    def of(self, scores: np.ndarray) -> np.ndarray:
        logits = self.slope * scores + self.offset
        return softmax(logits, axis=1) if self.one_label else expit(logits)
