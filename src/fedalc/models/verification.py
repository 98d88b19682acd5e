"""From which score on a claimed identity is accepted: thresholds from counts of held-out scores (docs/verification.md).

The counts are sums over persons: each counts, in bins, the scores of its own held-out records against its own row
(genuine) and against the rows of others (there it is an impostor). So nobody needs another person's records. Two rules:

    genuine   a share of the genuine claims may be refused: a person's mean score, and a quantile of how far the scores
              of all persons are from their means
    far       a share of the impostors' claims may be accepted: a quantile of the impostors' scores of all persons, or
              of one person alone if there are enough for it. The quantile of all is an upper bound: with few persons
              it is raised by how much it depends on each, and beyond the highest scores it is extrapolated

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from fedalc.errors import ConfigError

UNIT, STEP, HALF = 0.02, 0.0025, 4800
EDGES = UNIT * np.sinh(STEP * np.arange(-HALF, HALF + 1))
"""Scores between bins: 0.00005 apart near 0, 0.25 % of the score far from it, up to ±1,600."""
ENOUGH = 50  # false accepts of one person to expect at its threshold, for a threshold from its own counts
FEWEST = 3  # genuine scores of a person, for a mean of its own
DEFAULT_FAR = 0.001
HIGHEST, LARGEST_TAIL = (
    20,
    0.1,
)  # impostors' scores that a tail is fitted to: as many, or the share of all if that is less
CONFIDENCE = (
    0.8  # of the bound, over persons. This and HIGHEST were chosen on train of speakers60 (docs/verification.md)
)
FEWEST_PERSONS = 3  # for a bound
MOST_GROUPS = 100  # of persons, that are left out in turn
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
    late: Mapping[int, TrialCounts] = field(default_factory=dict)
    """Impostors' trials against persons who were enrolled afterwards, by the records that they were enrolled with. If
    there are none but should be: of 0 records, without counts, so that all their claims are refused."""
    afterwards: Mapping[int, int] = field(default_factory=dict)
    """The labels that were enrolled afterwards, with rows that training would not have given, and how many records."""

    @property
    def impostor_trials(self) -> float:
        return float(self.impostors.sum())

    @property
    def persons(self) -> int:
        """How many persons have impostors' trials."""
        return len(np.unique(self.labels[self.impostors > 0]))

    def thresholds(self, rule: Rule, label_count: int) -> np.ndarray:
        """Return the score from which on a claim of each label is accepted."""
        return (
            self._by_false_accepts(rule.value, label_count)
            if rule.kind == "far"
            else self._by_genuine(rule.value, label_count)
        )

    def note(self, rule: Rule, claimed: np.ndarray | None = None) -> str | None:
        """Return what a user should know about a rule: what cannot be estimated from these trials. `claimed`: the
        labels that it is used for."""
        if rule.kind != "far":
            return None
        late = set(self.afterwards).intersection([] if claimed is None else claimed.tolist())
        notes = (_unresolved(self, rule.value, "held-out"), self._by_whom(), self._of_late(late, rule.value))
        return "; ".join(filter(None, notes)) or None

    def _by_whom(self) -> str | None:
        if self.by_strangers:
            return None
        return "impostors were other enrolled persons, whom the model may know: strangers may be accepted more often"

    def _of_late(self, late: set[int], far: float) -> str | None:
        if not late:
            return None
        if not self.late:
            return "there are no trials against persons enrolled afterwards: strangers may be accepted more often"
        counts = self._late_counts(min(self.afterwards[label] for label in late))
        return _unresolved(counts, far, "persons enrolled afterwards:")

    def _late_counts(self, records: int) -> TrialCounts:
        """Return the trials against persons enrolled with as many records, or fewer."""
        return self.late[max((count for count in self.late if count <= records), default=min(self.late))]

    def _by_false_accepts(self, far: float, label_count: int) -> np.ndarray:
        thresholds = np.full(label_count, self._bound(far))
        each = np.bincount(self.labels, self.impostors, label_count)
        for label in np.flatnonzero(each * far >= ENOUGH):
            own = self.labels == label
            thresholds[label] = EDGES[_edge_above(_in_bins(self.bins[own], self.impostors[own]), far)]
        for late, records in self.afterwards.items():
            if self.late:
                thresholds[late] = max(thresholds[late], self._late_counts(records)._bound(far))
        return thresholds

    def _bound(self, far: float) -> float:
        """Return the score that at most a share of impostors' claims reaches, whoever the persons are: the quantile,
        and as much more as it varies over persons.

        The variation is that of a jackknife over claimed persons. Impostors are persons too, and as many: their part
        is taken to be the same.
        """
        persons, index = np.unique(self.labels[self.impostors > 0], return_inverse=True)
        groups = min(len(persons), MOST_GROUPS)
        if groups < FEWEST_PERSONS:  # accept nobody
            return float(EDGES[-1])
        bins, weights = self.bins[self.impostors > 0], self.impostors[self.impostors > 0]
        whole = _in_bins(bins, weights)
        tail = min(LARGEST_TAIL, HIGHEST / whole.sum())
        without = np.empty(groups)
        for group in range(groups):
            own = index % groups == group
            without[group] = _quantile((whole - _in_bins(bins[own], weights[own])).clip(0), far, tail)
        variance = (groups - 1) * without.var()
        more = stdtrit(groups - 1, CONFIDENCE) * np.sqrt(2 * variance)
        return float(min(_quantile(whole, far, tail) + more, EDGES[-1]))

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

    def rows(self, which: np.ndarray) -> TrialCounts:
        """Return some of the counts."""
        return replace(self, **{name: getattr(self, name)[which] for name in _NAMES})

    def without(self, label: int) -> TrialCounts:
        """Return the counts after a label is removed: those after it move up."""
        kept = self.rows(self.labels != label)
        late = {records: counts.without(label) for records, counts in self.late.items()}
        afterwards = {at - (at > label): records for at, records in self.afterwards.items() if at != label}
        return replace(kept, labels=kept.labels - (kept.labels > label), late=late, afterwards=afterwards)

    def with_late(self, label: int, records: int) -> TrialCounts:
        """Return the counts with a label that was enrolled afterwards."""
        return replace(self, afterwards={**self.afterwards, label: records})

    def parts(self) -> dict[str, np.ndarray]:
        """Return what to save in a model folder."""
        own = {f"trials-{name}": getattr(self, name) for name in _NAMES}
        own |= {"trials-by-strangers": np.array([self.by_strangers])}
        if self.late:
            sizes = [len(counts.labels) for counts in self.late.values()]
            own["trials-late-records"] = np.repeat(np.array(list(self.late), dtype=np.int64), sizes)
            for name in _NAMES:
                own[f"trials-late-{name}"] = np.concatenate([getattr(counts, name) for counts in self.late.values()])
        if self.afterwards:
            own["trials-afterwards"] = np.array(list(self.afterwards.items()), dtype=np.int64)
        return own

    @classmethod
    def from_parts(cls, parts: Mapping[str, np.ndarray], label_count: int) -> TrialCounts | None:
        """Return what `parts` saved; None if there is nothing. Raise ValueError or KeyError if it is damaged."""
        if "trials-labels" not in parts:
            return None
        found = _checked(parts, "trials-", label_count)
        late, afterwards = {}, parts.get("trials-afterwards", np.zeros((0, 2), dtype=np.int64))
        if "trials-late-records" in parts:
            every, records = _checked(parts, "trials-late-", label_count), parts["trials-late-records"]
            if records.shape != every.labels.shape or records.dtype != np.int64:
                raise ValueError("trials: numbers of records that do not fit")
            for count in np.unique(records).tolist() or [0]:
                late[count] = every.rows(records == count)
        if afterwards.ndim != 2 or afterwards.shape[1] != 2 or afterwards.dtype != np.int64:
            raise ValueError("trials: persons enrolled afterwards that are not")
        if len(afterwards) and not 0 <= afterwards[:, 0].min() <= afterwards[:, 0].max() < label_count:
            raise ValueError("trials: a label that there is not")
        by_strangers = bool(parts["trials-by-strangers"][0])
        return replace(found, by_strangers=by_strangers, late=late, afterwards=dict(afterwards.tolist()))


def _checked(parts: Mapping[str, np.ndarray], prefix: str, label_count: int) -> TrialCounts:
    """Return counts that were saved. Raise ValueError if they are damaged."""
    labels, bins, impostors, genuine = (parts[f"{prefix}{name}"] for name in _NAMES)
    for part, kind, most in ((labels, np.int64, label_count), (bins, np.int64, len(EDGES) + 1)):
        if part.shape != labels.shape or part.ndim != 1 or part.dtype != kind:
            raise ValueError("trials: labels and bins do not fit together")
        if len(part) and not 0 <= part.min() <= part.max() < most:
            raise ValueError("trials: a label or bin that there is not")
    for part in (impostors, genuine):
        if part.shape != labels.shape or part.dtype != np.float64 or not (np.isfinite(part) & (part >= 0)).all():
            raise ValueError("trials: counts that are not")
    return TrialCounts(labels, bins, impostors, genuine)


def _unresolved(counts: TrialCounts, far: float, whose: str) -> str | None:
    """Return, in words, that a false accept rate cannot be seen in these trials; None if it can."""
    trials, persons = counts.impostor_trials, counts.persons
    if persons < FEWEST_PERSONS:
        return (
            f"{whose} trials of {persons} persons are too few to estimate a false accept rate: claims are refused "
            "(the rule `genuine` needs no impostors)"
        )
    if far * trials < HIGHEST:
        return (
            f"{whose} {trials:.0f} impostors' trials against {persons} persons cannot show a false accept rate of "
            f"{far:g}: the threshold is extrapolated from the highest scores, and raised to be safe"
        )
    return None


def _in_bins(bins: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.bincount(bins, weights, len(EDGES) + 1)


def _quantile(at: np.ndarray, far: float, tail: float) -> float:
    """Return the score that at most the share `far` of the weights `at` bins reaches. If `far` is below `tail`, the
    scores above that share are taken to fall off exponentially; impostors' scores fall off faster."""
    found = float(EDGES[_edge_above(at, far)])
    if far >= tail:
        return found
    edge = _edge_above(at, tail)
    above, start = at[edge + 1 :], float(EDGES[edge])
    if (count := above.sum()) <= 0:
        return found
    excess = float(above @ (_MIDDLES[edge + 1 :] - start)) / count
    return max(found, start + excess * float(np.log(max(count / (at.sum() * far), 1))))


def _edge_above(at: np.ndarray, far: float) -> int:
    """Return the lowest edge with at most the share `far` of the weights in the bins above it."""
    if at.sum() <= 0:  # nothing is known of impostors: accept nobody
        return len(EDGES) - 1
    beyond = at[::-1].cumsum()[::-1][1:]  # of edge e: what is in bins above it
    return int(np.argmax(beyond <= far * at.sum() * (1 + 1e-12))) if beyond[-1] <= far * at.sum() else len(EDGES) - 1


def middles(bins: np.ndarray) -> np.ndarray:
    """Return the scores in the middle of bins; of the first and last, the edge."""
    return np.asarray(UNIT * np.sinh(STEP * (np.clip(bins - 0.5, 0, 2 * HALF) - HALF)))


_MIDDLES = middles(np.arange(len(EDGES) + 1))


def count_trials(
    scores: np.ndarray, labels: np.ndarray, truth: np.ndarray, weights: np.ndarray, by_strangers: bool = False
) -> TrialCounts:
    """Count pairs of a held-out record and a label, as their owners would. All arrays are of pairs."""
    width = len(EDGES) + 1
    place = labels.astype(np.int64) * width + np.searchsorted(EDGES, scores, side="right")
    places, index = np.unique(place, return_inverse=True)
    impostors, genuine = (np.bincount(index, weights * kind, len(places)) for kind in (~truth, truth))
    return TrialCounts(places // width, places % width, impostors * 1.0, genuine * 1.0, by_strangers)


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
