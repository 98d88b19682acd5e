"""From which probability on a record gets a label: rules, and the counts on held-out records that they choose by.

A threshold is a level of log-odds. For each level the counts say how many held-out records reach it (`predicted`) and
how many of these have the label (`hits`). That is enough for F1 and for any precision, and positive-only owners can
add it up (`evaluation/owner_scores.py`). This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedalc.errors import ConfigError

LEVELS = np.linspace(-6.0, 6.0, 49)
"""Log-odds: probabilities from 0.0025 to 0.9975."""
FEWEST = 5  # held-out positives from which a label has counts of its own
PRIOR = 10.0  # held-out positives that the counts of all labels together weigh, beside a label's own


@dataclass(frozen=True)
class Rule:
    """How thresholds are chosen: for F1, for a precision, or one probability for all labels."""

    kind: Literal["f1", "precision", "probability"]
    value: float = 0.0

    def __str__(self) -> str:
        return {"f1": "f1", "precision": f"precision={self.value:g}", "probability": f"{self.value:g}"}[self.kind]


def as_rule(threshold: Any) -> Rule:
    """Return the rule that a user means: "f1", "precision=0.9", or a probability such as 0.5.

    >>> as_rule("precision=0.9")
    Rule(kind='precision', value=0.9)
    """
    if isinstance(threshold, Rule):
        return threshold
    text = str(threshold).strip().lower()
    if text == "f1":
        return Rule("f1")
    kind, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if kind not in ("", "precision") or isinstance(threshold, bool) or not 0 < value < 1:
        raise ConfigError(
            f"expected f1, precision=0.9 or a probability between 0 and 1, found {threshold!r:.60}", "threshold"
        )
    return Rule("precision" if kind else "probability", value)


@dataclass(frozen=True, eq=False)
class LevelCounts:
    """Counts of held-out records at `LEVELS`. The first row is of all labels together, the others of `labels`: those
    with at least `FEWEST` positives. Counts are fractions where negatives were sampled."""

    labels: np.ndarray
    positives: np.ndarray  # rows
    predicted: np.ndarray  # rows × levels
    hits: np.ndarray  # rows × levels

    def thresholds(self, rule: Rule, label_count: int) -> np.ndarray:
        """Return the log-odds from which on each label is given; inf for a label that cannot reach the precision.

        A label's own counts are added to `PRIOR` positives' worth of all labels' counts, so that few positives decide
        little. Labels without counts of their own get the threshold of all labels together.
        """
        if rule.kind == "probability":
            return np.full(label_count, np.log(rule.value / (1 - rule.value)))
        share = PRIOR / max(float(self.positives[0]), 1.0)
        prior = np.array([0.0, *np.full(len(self.labels), share)])[:, None]
        hits, predicted = (counts + prior * counts[0] for counts in (self.hits, self.predicted))
        positives = self.positives[:, None] + prior * self.positives[0]
        if rule.kind == "f1":
            best = _f1(hits, predicted, positives).argmax(1)
            chosen = LEVELS[best]
        else:
            reached = (predicted > 0) & (hits >= rule.value * predicted)
            chosen = np.where(reached.any(1), LEVELS[reached.argmax(1)], np.inf)
        thresholds = np.full(label_count, chosen[0])
        thresholds[self.labels] = chosen[1:]
        return thresholds

    def without(self, label: int) -> LevelCounts:
        """Return the counts without a label, also in those of all labels together."""
        own = np.flatnonzero(self.labels == label) + 1  # its row, if it has one
        positives, predicted, hits = (
            np.delete(np.concatenate([part[:1] - part[own].sum(0, keepdims=True), part[1:]]), own, axis=0)
            for part in (self.positives, self.predicted, self.hits)
        )
        labels = np.delete(self.labels, own - 1)
        return LevelCounts(labels - (labels > label), positives, predicted, hits)

    def parts(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("labels", "positives", "predicted", "hits")}

    @classmethod
    def from_parts(cls, parts: Mapping[str, np.ndarray], label_count: int) -> LevelCounts:
        """Return the counts that `parts` saved. Raise ValueError if they do not fit together."""
        labels, rows = parts["labels"], len(parts["labels"]) + 1
        if (
            labels.dtype != np.int64
            or labels.ndim != 1
            or (rows > 1 and not 0 <= labels.min() <= labels.max() < label_count)
        ):
            raise ValueError("thresholds of labels that the model does not have")
        shapes = {"positives": (rows,), "predicted": (rows, len(LEVELS)), "hits": (rows, len(LEVELS))}
        for name, shape in shapes.items():
            counts = parts[name]
            if (
                counts.shape != shape
                or counts.dtype != np.float32
                or not (np.isfinite(counts).all() and (counts >= 0).all())
            ):
                raise ValueError(f"counts of {name}: {counts.shape} of {counts.dtype} where {shape} are expected")
        return cls(labels, parts["positives"], parts["predicted"], parts["hits"])


def _f1(hits: np.ndarray, predicted: np.ndarray, positives: np.ndarray) -> np.ndarray:
    return 2 * hits / np.maximum(predicted + positives, 1e-9)


def count_at_levels(
    log_odds: np.ndarray, labels: np.ndarray, truth: np.ndarray, weights: np.ndarray, label_count: int
) -> LevelCounts:
    """Count pairs of a record and a label: at or above each level, and those of them that are true.

    All four are of pairs; `weights` say how many pairs one stands for.
    """
    positives = np.bincount(labels[truth], weights[truth], label_count)
    own = np.flatnonzero(positives >= FEWEST)
    row_of = np.full(label_count, -1)
    row_of[own] = np.arange(1, len(own) + 1)
    reached = np.searchsorted(LEVELS, log_odds, side="right")  # levels at or below: 0 to all
    predicted, hits = (_counts(row_of[labels], reached, weights * kind, len(own) + 1) for kind in (1, truth))
    of_rows = np.concatenate([[positives.sum()], positives[own]])
    return LevelCounts(own, of_rows.astype(np.float32), predicted, hits)


def _counts(rows: np.ndarray, reached: np.ndarray, weights: np.ndarray, row_count: int) -> np.ndarray:
    width = len(LEVELS) + 1
    at = np.bincount(np.maximum(rows, 0) * width + reached, weights, row_count * width).reshape(row_count, width)
    at[0] += at[1:].sum(0)  # row 0 had the pairs of labels without a row
    return at[:, ::-1].cumsum(1)[:, ::-1][:, 1:].astype(np.float32)
