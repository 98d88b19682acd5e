"""Probabilities from scores: a rising curve for all labels, and an offset for each (docs/predictions.md).

log-odds of label u at score s = curve(s) + offset_u. The curve is piecewise linear with positive slopes, so that a
label's records keep their order. `evaluation/calibrate.py` fits it. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedalc.models.thresholds import LevelCounts, Rule, as_rule
from fedalc.models.verification import TrialCounts

PREFIX = "calibration."  # of its tensors in a model folder


@dataclass(frozen=True, eq=False)
class Calibration:
    """What turns scores into probabilities and thresholds, for a model with as many labels as `offsets`."""

    knots: np.ndarray
    """Scores where the slope changes, ascending."""
    slopes: np.ndarray
    """Before, between and after the knots."""
    offsets: np.ndarray
    counts: LevelCounts
    records: int
    """Held-out records that it was fitted on."""
    trials: TrialCounts | None = None
    """Of a model for verification: what its thresholds follow from."""

    @property
    def label_count(self) -> int:
        return len(self.offsets)

    def log_odds(self, scores: np.ndarray, labels: Any = slice(None)) -> np.ndarray:
        """Return the log-odds of scores. `labels`: the label numbers of the last axis, or of each score."""
        return rising_curve(np.asarray(scores, dtype=np.float64), self.knots, self.slopes) + self.offsets[labels]

    def probabilities(self, scores: np.ndarray, labels: Any = slice(None)) -> np.ndarray:
        """Return probabilities for scores; 0 where a score is -inf (a label without a client)."""
        return sigmoid(self.log_odds(scores, labels))

    def thresholds(self, threshold: str | float | Rule = "f1") -> np.ndarray:
        """Return the probability from which on each label is given. 1 or more: never (docs/predictions.md)."""
        levels = self.counts.thresholds(as_rule(threshold), self.label_count)
        return np.where(np.isinf(levels), np.inf, sigmoid(levels))

    def score_thresholds(self, threshold: str | float | Rule = "f1") -> np.ndarray:
        """Return the same thresholds as scores: the curve rises, so that each log-odds has one score."""
        wanted = self.counts.thresholds(as_rule(threshold), self.label_count) - self.offsets
        heights = _heights(self.knots, self.slopes)
        scores = np.interp(wanted, heights, self.knots)
        scores += np.minimum(wanted - heights[0], 0) / self.slopes[0]
        return scores + np.maximum(wanted - heights[-1], 0) / self.slopes[-1]

    def without(self, label: int) -> Calibration:
        """Return the calibration of the model without one of its labels: the numbers of those after it are 1 less."""
        trials = None if self.trials is None else self.trials.without(label)
        return replace(self, offsets=np.delete(self.offsets, label), counts=self.counts.without(label), trials=trials)

    def parts(self) -> dict[str, np.ndarray]:
        """Return what to save in a model folder, by names that begin with `PREFIX`."""
        own = {"knots": self.knots, "slopes": self.slopes, "offsets": self.offsets}
        own["records"] = np.array([self.records], dtype=np.int64)
        own |= self.counts.parts() | ({} if self.trials is None else self.trials.parts())
        return {PREFIX + name: part for name, part in own.items()}

    @classmethod
    def from_parts(cls, parts: Mapping[str, np.ndarray], label_count: int) -> Calibration | None:
        """Return what `parts` saved; None if there is nothing. Raise ValueError or KeyError if it is damaged."""
        own = {name.removeprefix(PREFIX): part for name, part in parts.items() if name.startswith(PREFIX)}
        if not own:
            return None
        knots, slopes, offsets, records = (own[name] for name in ("knots", "slopes", "offsets", "records"))
        count = len(knots)
        for name, part, size, kind in (
            ("knots", knots, count, np.float64),
            ("slopes", slopes, count + 1, np.float64),
            ("offsets", offsets, label_count, np.float32),
            ("records", records, 1, np.int64),
        ):
            if part.shape != (size,) or part.dtype != kind or not np.isfinite(part).all():
                raise ValueError(f"calibration: {name} is {part.shape} of {part.dtype}")
        if not count or (np.diff(knots) <= 0).any() or (slopes <= 0).any():
            raise ValueError("calibration: its curve does not rise")
        counts, trials = LevelCounts.from_parts(own, label_count), TrialCounts.from_parts(own, label_count)
        return cls(knots, slopes, offsets, counts, int(records[0]), trials)


def _heights(knots: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return the curve at the knots; 0 at the first."""
    return np.concatenate([[0.0], np.cumsum(slopes[1:-1] * np.diff(knots))])


def rising_curve(scores: np.ndarray, knots: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return the piecewise linear curve at these scores. It is 0 at the first knot.

    >>> rising_curve(np.array([-1.0, 1.0, 3.0]), np.array([0.0, 2.0]), np.array([10.0, 1.0, 5.0])).tolist()
    [-10.0, 1.0, 7.0]
    """
    curve = np.interp(scores, knots, _heights(knots, slopes))
    curve += slopes[0] * np.minimum(scores - knots[0], 0)
    curve += slopes[-1] * np.maximum(scores - knots[-1], 0)
    return np.asarray(curve)


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    """Return probabilities. Does not overflow.

    >>> sigmoid(np.array([-np.inf, 0.0, 800.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(log_odds))
    return np.asarray(np.where(log_odds >= 0, 1 / (1 + small), small / (1 + small)))
