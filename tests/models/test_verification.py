"""Thresholds from counts of held-out trials, beside slow twins and cases by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student_t

from fedalc.errors import ConfigError
from fedalc.models.verification import (
    CONFIDENCE,
    EDGES,
    ENOUGH,
    HIGHEST,
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
def test_false_accepts_are_at_most_as_asked(far: float) -> None:
    """The quantile, and as much more as a jackknife over persons says: computed from the scores themselves."""
    scores, labels, truth = random_trials()
    threshold = counted(scores, labels, truth).thresholds(Rule("far", far), 5)
    assert len(set(threshold)) == 1  # there are too few for thresholds of their own
    impostors, of = scores[~truth], labels[~truth]
    tail = HIGHEST / len(impostors)

    def quantile(some: np.ndarray) -> float:
        found = float(np.sort(some)[::-1][int(far * len(some))])
        if far >= tail:
            return found
        start = np.sort(some)[::-1][int(tail * len(some) + 1e-9)]
        highest = some[some > start]
        return max(found, float(start + (highest - start).mean() * np.log(len(highest) / len(some) / far)))

    without = np.array([quantile(impostors[of != label]) for label in range(5)])
    more = student_t.ppf(CONFIDENCE, 4) * np.sqrt(2 * 4 / 5 * ((without - without.mean()) ** 2).sum())
    assert threshold[0] == pytest.approx(quantile(impostors) + more, rel=0.01)
    assert (impostors >= threshold[0]).mean() <= far


def test_a_rate_below_one_in_all_trials_is_extrapolated() -> None:
    """The threshold is beyond all scores, and rises as the rate falls."""
    scores, labels = RNG.normal(size=300), np.repeat(np.arange(10), 30)
    counts = counted(scores, labels, np.zeros(300, bool))
    found = [counts.thresholds(Rule("far", far), 10)[0] for far in (0.01, 0.001, 0.0001)]
    assert scores.max() < found[1] < found[2] < 10


def test_persons_who_differ_raise_the_threshold() -> None:
    """The same scores, dealt out to persons in another way: one of four gets all the high ones."""
    scores = np.sort(RNG.normal(size=4000))
    by_person, mixed = np.repeat(np.arange(4), 1000), np.tile(np.arange(4), 1000)
    nobody = np.zeros(4000, bool)
    apart, alike = (counted(scores, labels, nobody).thresholds(Rule(), 4)[0] for labels in (by_person, mixed))
    assert apart > alike + 1


def test_two_persons_say_nothing_about_impostors() -> None:
    counts = counted(RNG.normal(size=400), np.repeat([0, 1], 200), np.zeros(400, bool))
    assert (counts.thresholds(Rule("far", 0.05), 2) == EDGES[-1]).all()
    note = counts.note(Rule("far", 0.05))
    assert note is not None and "trials of 2 persons are too few to estimate a false accept rate" in note


def test_a_person_with_many_trials_has_its_own_threshold() -> None:
    many, few = RNG.normal(1, 1, 60 * ENOUGH), RNG.normal(0, 1, 1500)
    scores, labels = np.concatenate([many, few]), np.repeat([0, 1, 2, 3], [len(many), 500, 500, 500])
    own, *pooled = counted(scores, labels, np.zeros(len(scores), bool)).thresholds(Rule("far", 0.02), 4)
    assert (many >= own).mean() == pytest.approx(0.02, abs=0.002)
    assert (scores >= pooled[0]).mean() <= 0.02
    assert own != pooled[0] and len(set(pooled)) == 1


def late_counts() -> TrialCounts:
    """Persons 0 to 3, trained; trials against persons enrolled afterwards with one record, and with five."""
    labels, nobody = np.repeat(np.arange(4), 500), np.zeros(2000, bool)
    counts = replace(counted(RNG.normal(0, 1, 2000), labels, nobody), by_strangers=True)
    late = {records: counted(RNG.normal(mean, 1, 2000), labels, nobody) for records, mean in ((1, 5), (5, 2))}
    return replace(counts, late=late)


def test_persons_enrolled_afterwards_have_thresholds_of_their_own_trials() -> None:
    counts = late_counts().with_late(4, 1).with_late(5, 4).with_late(6, 30)
    found = counts.thresholds(Rule("far", 0.05), 7)
    assert len(set(found[:4])) == 1 and found[4] == found[5]  # four records are at least one
    np.testing.assert_allclose(found[[0, 4, 6]], [1.7, 6.7, 3.7], atol=0.4)
    again = TrialCounts.from_parts(counts.parts(), 7)
    assert again is not None
    np.testing.assert_array_equal(again.thresholds(Rule("far", 0.05), 7), found)
    less = counts.without(4)
    assert less.afterwards == {4: 4, 5: 30} and less.without(0).afterwards == {3: 4, 4: 30}
    assert len(less.without(0).late[1].labels) < len(less.late[1].labels)
    with pytest.raises(ValueError, match="a label that there is not"):
        TrialCounts.from_parts(counts.parts(), 6)


def test_persons_enrolled_afterwards_never_get_less_than_others() -> None:
    counts = late_counts()
    low = replace(
        counts, late={1: counted(RNG.normal(-5, 1, 2000), np.repeat(np.arange(4), 500), np.zeros(2000, bool))}
    )
    found = low.with_late(4, 1).thresholds(Rule(), 5)
    assert found[4] == found[0]


def test_without_trials_against_persons_enrolled_afterwards() -> None:
    nothing = counted(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool))
    refusing = replace(late_counts(), late={0: nothing}).with_late(4, 9)
    again = TrialCounts.from_parts(refusing.parts(), 5)
    assert again is not None
    for counts in (refusing, again):
        found = counts.thresholds(Rule("far", 0.05), 5)
        assert found[4] == EDGES[-1] > found[0]
        said = counts.note(Rule("far", 0.05), np.array([0, 4]))
        assert said is not None and "persons enrolled afterwards: trials of 0 persons are too few" in said
        assert counts.note(Rule("far", 0.05), np.array([0, 1])) is None
    unknown = replace(late_counts(), late={}).with_late(4, 9).note(Rule("far", 0.05), np.array([4]))
    assert unknown is not None and "no trials against persons enrolled afterwards" in unknown


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
    counts = counted(np.arange(100) / 100, np.arange(100) % 4, np.zeros(100, bool))
    note = counts.note(Rule("far", 0.001))
    assert note is not None and "100 impostors' trials against 4 persons cannot show a false accept rate of 0" in note
    assert "strangers may be accepted more often" in note
    by_strangers = replace(counts, by_strangers=True)
    assert by_strangers.note(Rule("far", 0.2)) is None and by_strangers.note(Rule("genuine", 0.001)) is None
    assert "may know" in str(counts.note(Rule("far", 0.2)))


def test_scores_beyond_the_bins() -> None:
    counts = counted(np.tile([-1e9, 1e9], 4), np.repeat(np.arange(4), 2), np.zeros(8, bool))
    assert counts.bins.tolist() == [0, len(EDGES)] * 4
    assert counts.thresholds(Rule("far", 0.5), 4)[0] == EDGES[0]
    assert counts.thresholds(Rule("far", 0.1), 4)[0] == EDGES[-1]
    assert np.abs(middles(counts.bins)).tolist() == [EDGES[-1]] * 8


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
