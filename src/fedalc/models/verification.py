"""From which score on a claimed identity is accepted: thresholds from counts of held-out scores (docs/verification.md).

The counts are sums over persons: each counts, in bins, the scores of its own held-out records against its own row
(genuine) and against the rows of others (there it is an impostor). So nobody needs another person's records. Two rules:

    genuine   a share of the genuine claims may be refused: a person's mean score, and a quantile of how far the scores
              of all persons are from their means
    far       a share of the impostors' claims may be accepted: a quantile of the impostors' scores of all persons, or
              of one person alone if there are enough for it

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedalc.errors import ConfigError

UNIT, STEP, HALF = 0.02, 0.0025, 4800
EDGES = UNIT * np.sinh(STEP * np.arange(-HALF, HALF + 1))
"""Scores between bins: 0.00005 apart near 0, 0.25 % of the score far from it, up to ±1,600."""
ENOUGH = 50  # false accepts of one person to expect at its threshold, for a threshold from its own counts
FEWEST = 3  # genuine scores of a person, for a mean of its own
DEFAULT_FAR = 0.001
_NAMES = ("labels", "bins", "impostors", "genuine")


@dataclass(frozen=True)
class Rule:
    """An operating point: the share of impostors' claims to accept (far), or of genuine claims to refuse (genuine)."""

    kind: Literal["far", "genuine"] = "far"
    value: float = DEFAULT_FAR

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"


def as_rule(far: float | None = None, genuine: float | None = None) -> Rule:
    """Return the rule that a user means. At most one of the two is given."""
    if far is not None and genuine is not None:
        raise ConfigError("give a share of false accepts or of false rejects, not both", "far")
    for kind, value in (("far", far), ("genuine", genuine)):
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise ConfigError(f"expected a share between 0 and 1, found {value!r:.60}", kind)
            return Rule("far" if kind == "far" else "genuine", float(value))
    return Rule()


@dataclass(frozen=True, eq=False)
class TrialCounts:
    """How many held-out trials of a label have their score in a bin: impostors' and genuine ones."""

    labels: np.ndarray
    bins: np.ndarray
    impostors: np.ndarray
    genuine: np.ndarray
    by_strangers: bool = False
    """Whether the impostors' trials are of persons whom the scoring model was not trained on."""

    @property
    def impostor_trials(self) -> float:
        return float(self.impostors.sum())

    def thresholds(self, rule: Rule, label_count: int) -> np.ndarray:
        """Return the score from which on a claim of each label is accepted."""
        return (
            self._by_false_accepts(rule.value, label_count)
            if rule.kind == "far"
            else self._by_genuine(rule.value, label_count)
        )

    def note(self, rule: Rule) -> str | None:
        """Return what a user should know about a rule: too few trials to check it."""
        trials = self.impostor_trials
        if rule.kind == "far" and rule.value * trials < 1:
            return (
                f"{trials:.0f} impostors' trials cannot show a false accept rate of {rule.value:g}: the threshold is "
                f"above all of them, and the rate may be anything up to about {min(1, 3 / max(trials, 1)):.2g}"
            )
        return None

    def _by_false_accepts(self, far: float, label_count: int) -> np.ndarray:
        thresholds = np.full(label_count, EDGES[_edge_above(self.bins, self.impostors, far)])
        each = np.bincount(self.labels, self.impostors, label_count)
        for label in np.flatnonzero(each * far >= ENOUGH):
            own = self.labels == label
            thresholds[label] = EDGES[_edge_above(self.bins[own], self.impostors[own], far)]
        return thresholds

    def _by_genuine(self, share: float, label_count: int) -> np.ndarray:
        if not len(self.bins):  # nothing is known of anybody: accept nobody
            return np.full(label_count, EDGES[-1])
        scores, weights = middles(self.bins), self.genuine
        total = max(float(weights.sum()), 1e-9)
        mean = float(scores @ weights) / total
        counts = np.bincount(self.labels, weights, label_count)
        own = np.bincount(self.labels, weights * scores, label_count) / np.maximum(counts, 1e-9)
        means = np.where(counts >= FEWEST, own, mean)
        apart = scores - means[self.labels]
        order = np.argsort(apart)
        place = int(np.searchsorted(np.cumsum(weights[order]), share * total, side="right"))
        return np.asarray(means + apart[order[min(place, len(order) - 1)]])

    def without(self, label: int) -> TrialCounts:
        """Return the counts after a label is removed: those after it move up."""
        keep = self.labels != label
        labels, bins, impostors, genuine = (getattr(self, name)[keep] for name in _NAMES)
        return TrialCounts(labels - (labels > label), bins, impostors, genuine, self.by_strangers)

    def parts(self) -> dict[str, np.ndarray]:
        """Return what to save in a model folder."""
        own = {f"trials-{name}": getattr(self, name) for name in _NAMES}
        return own | {"trials-by-strangers": np.array([self.by_strangers])}

    @classmethod
    def from_parts(cls, parts: Mapping[str, np.ndarray], label_count: int) -> TrialCounts | None:
        """Return what `parts` saved; None if there is nothing. Raise ValueError or KeyError if it is damaged."""
        if "trials-labels" not in parts:
            return None
        labels, bins, impostors, genuine = (parts[f"trials-{name}"] for name in _NAMES)
        for part, kind, most in ((labels, np.int64, label_count), (bins, np.int64, len(EDGES) + 1)):
            if part.shape != labels.shape or part.ndim != 1 or part.dtype != kind:
                raise ValueError("trials: labels and bins do not fit together")
            if len(part) and not 0 <= part.min() <= part.max() < most:
                raise ValueError("trials: a label or bin that there is not")
        for part in (impostors, genuine):
            if part.shape != labels.shape or part.dtype != np.float64 or not (np.isfinite(part) & (part >= 0)).all():
                raise ValueError("trials: counts that are not")
        return cls(labels, bins, impostors, genuine, bool(parts["trials-by-strangers"][0]))


def _edge_above(bins: np.ndarray, weights: np.ndarray, far: float) -> int:
    """Return the lowest edge with at most the share `far` of the weights in the bins above it."""
    at = np.bincount(bins, weights, len(EDGES) + 1)
    if at.sum() == 0:  # nothing is known of impostors: accept nobody
        return len(EDGES) - 1
    beyond = at[::-1].cumsum()[::-1][1:]  # of edge e: what is in bins above it
    return int(np.argmax(beyond <= far * at.sum() * (1 + 1e-12))) if beyond[-1] <= far * at.sum() else len(EDGES) - 1


def middles(bins: np.ndarray) -> np.ndarray:
    """Return the scores in the middle of bins; of the first and last, the edge."""
    return np.asarray(UNIT * np.sinh(STEP * (np.clip(bins - 0.5, 0, 2 * HALF) - HALF)))


def count_trials(
    scores: np.ndarray, labels: np.ndarray, truth: np.ndarray, weights: np.ndarray, by_strangers: bool = False
) -> TrialCounts:
    """Count pairs of a held-out record and a label, as their owners would. All arrays are of pairs."""
    width = len(EDGES) + 1
    place = labels.astype(np.int64) * width + np.searchsorted(EDGES, scores, side="right")
    places, index = np.unique(place, return_inverse=True)
    impostors, genuine = (np.bincount(index, weights * kind, len(places)) for kind in (~truth, truth))
    return TrialCounts(places // width, places % width, impostors, genuine, by_strangers)


@dataclass(frozen=True)
class Verdict:
    """What became of one claim."""

    claim: str
    score: float
    threshold: float

    @property
    def accepted(self) -> bool:
        return self.score >= self.threshold


@dataclass(frozen=True)
class Verdicts(Sequence[Verdict]):
    """The verdicts of records, in their order."""

    claims: tuple[str, ...]
    scores: np.ndarray
    thresholds: np.ndarray
    rule: Rule
    note: str | None = None

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        return Verdict(self.claims[at], float(self.scores[at]), float(self.thresholds[at]))

    def __iter__(self) -> Iterator[Verdict]:
        return (self[at] for at in range(len(self)))

    @cached_property
    def accepted(self) -> np.ndarray:
        """Which claims are accepted."""
        return np.asarray(self.scores >= self.thresholds)


def claimed_labels(claim: str | Sequence[str], records: int, names: Sequence[str], held: np.ndarray) -> np.ndarray:
    """Return the number of the label that each record claims. Refuse names that nobody is enrolled under."""
    claims = [claim] * records if isinstance(claim, str) else list(map(str, claim))
    if len(claims) != records:
        raise ConfigError(f"{len(claims)} claims for {records} records: give one for each, or one for all", "claim")
    number = {name: at for at, name in enumerate(names) if held[at]}
    for name in claims:
        if name not in number:
            close = next((known for known in number if known.lower() == name.lower()), None)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise ConfigError(f"nobody is enrolled as {name!r:.60}{hint}", "claim")
    return np.array([number[name] for name in claims], dtype=np.int64)
