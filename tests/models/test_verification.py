"""Thresholds from counts of held-out trials, beside slow twins and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedalc.errors import ConfigError
from fedalc.models.verification import (
    EDGES,
    ENOUGH,
    Rule,
    TrialCounts,
    Verdicts,
    as_rule,
    claimed_labels,
    count_trials,
    middles,
)

RNG = np.random.default_rng(2)


def counted(scores: np.ndarray, labels: np.ndarray, truth: np.ndarray) -> TrialCounts:
    return count_trials(scores, labels, truth, np.ones(len(scores)))


def random_trials(count: int = 4000, labels: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    truth = RNG.random(count) < 0.2
    return RNG.normal(size=count) + 2 * truth, RNG.integers(labels, size=count), truth


def test_counts_of_one_place_are_the_sum_of_those_of_owners() -> None:
    scores, labels, truth = random_trials()
    whole, owner = counted(scores, labels, truth), RNG.integers(3, size=len(scores))
    parts = [counted(scores[owner == at], labels[owner == at], truth[owner == at]) for at in range(3)]
    width = len(EDGES) + 1
    for kind in ("impostors", "genuine"):
        ours, theirs = np.zeros((2, 5 * width))
        ours[whole.labels * width + whole.bins] = getattr(whole, kind)
        for part in parts:
            theirs[part.labels * width + part.bins] += getattr(part, kind)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("far", [0.05, 0.01, 0.001])
def test_false_accepts_are_as_asked(far: float) -> None:
    """At most the share, and one bin lower would be more."""
    scores, labels, truth = random_trials()
    threshold = counted(scores, labels, truth).thresholds(Rule("far", far), 5)
    assert len(set(threshold)) == 1  # there are too few for thresholds of their own
    impostors, at = scores[~truth], np.searchsorted(EDGES, threshold[0])
    assert (impostors >= threshold[0]).mean() <= far < (impostors >= EDGES[at - 1]).mean()


def test_a_person_with_many_trials_has_its_own_threshold() -> None:
    many, few = RNG.normal(1, 1, 60 * ENOUGH), RNG.normal(0, 1, 500)
    scores, labels = np.concatenate([many, few]), np.repeat([0, 1], [len(many), len(few)])
    own, pooled = counted(scores, labels, np.zeros(len(scores), bool)).thresholds(Rule("far", 0.02), 2)
    assert (many >= own).mean() == pytest.approx(0.02, abs=0.002)
    assert (scores >= pooled).mean() == pytest.approx(0.02, abs=0.002)
    assert own != pooled


def test_genuine_scores_alone_give_thresholds() -> None:
    """A person's mean, and a quantile of what is left: as computed from the scores themselves."""
    labels = np.repeat(np.arange(4), 200)
    scores = np.array([0.2, 0.4, 0.6, 0.8])[labels] + 0.05 * RNG.normal(size=800)
    found = counted(scores, labels, np.ones(800, bool)).thresholds(Rule("genuine", 0.05), 5)
    means = np.array([scores[labels == label].mean() for label in range(4)])
    wanted = means + np.quantile(scores - means[labels], 0.05)
    np.testing.assert_allclose(found[:4], wanted, atol=2e-3)
    assert found[4] == pytest.approx(scores.mean() + np.quantile(scores - means[labels], 0.05), abs=2e-3)
    assert (scores < found[labels]).mean() == pytest.approx(0.05, abs=0.01)


def test_too_few_trials_are_said() -> None:
    counts = counted(np.arange(100) / 100, np.zeros(100, np.int64), np.zeros(100, bool))
    note = counts.note(Rule("far", 0.001))
    assert note is not None and "100 impostors' trials cannot show a false accept rate of 0.001" in note
    assert counts.note(Rule("far", 0.01)) is None
    assert 0.99 < counts.thresholds(Rule("far", 0.001), 1)[0] < 1


def test_scores_beyond_the_bins() -> None:
    counts = counted(np.array([-1e9, 1e9]), np.zeros(2, np.int64), np.zeros(2, bool))
    assert counts.bins.tolist() == [0, len(EDGES)]
    assert counts.thresholds(Rule("far", 0.5), 1)[0] == EDGES[0]
    assert counts.thresholds(Rule("far", 0.1), 1)[0] == EDGES[-1]
    assert np.abs(middles(counts.bins)).tolist() == [EDGES[-1]] * 2


def test_saved_and_read() -> None:
    counts = counted(*random_trials(300))
    again = TrialCounts.from_parts(counts.parts(), 5)
    assert again is not None
    np.testing.assert_array_equal(again.thresholds(Rule(), 5), counts.thresholds(Rule(), 5))
    assert TrialCounts.from_parts({}, 5) is None
    for name, wrong in (("labels", 5), ("bins", -1), ("genuine", np.nan), ("impostors", -1.0)):
        parts = {key: part.copy() for key, part in counts.parts().items()}
        parts[f"trials-{name}"][0] = wrong
        with pytest.raises(ValueError, match="trials"):
            TrialCounts.from_parts(parts, 5)


def test_without_a_label() -> None:
    scores, labels, truth = random_trials(500)
    kept = labels != 2
    ours = counted(scores, labels, truth).without(2)
    theirs = counted(scores[kept], labels[kept] - (labels[kept] > 2), truth[kept])
    for name in ("labels", "bins", "impostors", "genuine"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_verdicts() -> None:
    verdicts = Verdicts(("ann", "bob"), np.array([0.5, 0.5]), np.array([0.5, 0.6]), Rule())
    assert [one.accepted for one in verdicts] == [True, False] == verdicts.accepted.tolist()
    assert (verdicts[1].claim, verdicts[1].threshold, len(verdicts), len(verdicts[:1])) == ("bob", 0.6, 2, 1)


def test_wrong_claims() -> None:
    held = np.array([True, False])
    assert claimed_labels("Ann", 3, ("Ann", "Bob"), held).tolist() == [0, 0, 0]
    with pytest.raises(ConfigError, match=r"nobody is enrolled as 'ann' \(did you mean 'Ann'\?\)"):
        claimed_labels("ann", 1, ("Ann", "Bob"), held)
    with pytest.raises(ConfigError, match="nobody is enrolled as 'Bob'"):
        claimed_labels(["Ann", "Bob"], 2, ("Ann", "Bob"), held)
    with pytest.raises(ConfigError, match="2 claims for 3 records"):
        claimed_labels(["Ann", "Ann"], 3, ("Ann", "Bob"), held)


def test_rules() -> None:
    assert (as_rule(), as_rule(0.01), as_rule(genuine=0.1)) == (Rule(), Rule("far", 0.01), Rule("genuine", 0.1))
    for wrong in ({"far": 0}, {"far": 1.0}, {"genuine": "x"}, {"far": True}, {"far": 0.1, "genuine": 0.1}):
        with pytest.raises(ConfigError):
            as_rule(**wrong)  # type: ignore[arg-type]
