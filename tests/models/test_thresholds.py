"""Thresholds from counts at levels, against a search over all of a label's scores, and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedalc.errors import ConfigError
from fedalc.models.thresholds import FEWEST, LEVELS, PRIOR, LevelCounts, Rule, as_rule, count_at_levels


def pairs(log_odds: list[float], truth: list[int], label: int = 0) -> tuple[np.ndarray, ...]:
    count = len(truth)
    return np.array(log_odds), np.full(count, label), np.array(truth, bool), np.ones(count)


def test_counts_are_of_pairs_at_or_above_each_level() -> None:
    counts = count_at_levels(*pairs([-7, -1, -1, 0, 2, 7], [0, 1, 1, 1, 1, 1]), 1)
    at = {level: place for place, level in enumerate(LEVELS)}
    assert counts.labels.tolist() == [0] and counts.positives.tolist() == [5, 5]
    for level, predicted, hits in (
        (-6, 5, 5),
        (-1, 5, 5),
        (-0.75, 3, 3),
        (0, 3, 3),
        (0.25, 2, 2),
        (2, 2, 2),
        (6, 1, 1),
    ):
        assert (counts.predicted[1, at[level]], counts.hits[1, at[level]]) == (predicted, hits)


def test_a_label_with_few_positives_has_no_counts_of_its_own() -> None:
    parts = [pairs([1.0] * (FEWEST - 1), [1] * (FEWEST - 1), 0), pairs([2.0] * FEWEST, [1] * FEWEST, 2)]
    counts = count_at_levels(*(np.concatenate(each) for each in zip(*parts, strict=True)), 3)
    assert counts.labels.tolist() == [2]
    assert counts.positives.tolist() == [2 * FEWEST - 1, FEWEST]
    assert counts.predicted[0, 0] == 2 * FEWEST - 1


def best_by_hand(log_odds: np.ndarray, truth: np.ndarray, everything: tuple[np.ndarray, np.ndarray]) -> float:
    """The level with the best F1, when `PRIOR` positives' worth of all pairs are added to the label's own."""
    share, scored = PRIOR / everything[1].sum(), []
    for level in LEVELS:
        right = (truth & (log_odds >= level)).sum() + share * (everything[1] & (everything[0] >= level)).sum()
        given = (log_odds >= level).sum() + share * (everything[0] >= level).sum()
        scored.append(2 * right / (given + truth.sum() + PRIOR))
    return float(LEVELS[int(np.argmax(np.array(scored, np.float32)))])


def test_the_thresholds_for_f1_are_those_of_a_search() -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 200)
    truth = generator.random(800) < np.array([0.3, 0.1, 0.2, 0.0])[labels]
    log_odds = generator.normal(size=800) + 2 * truth - np.array([0, 1, -1, 0])[labels]
    counts = count_at_levels(log_odds, labels, truth, np.ones(800), 4)
    found = counts.thresholds(Rule("f1"), 4)
    for label in range(3):
        own = labels == label
        assert found[label] == best_by_hand(log_odds[own], truth[own], (log_odds, truth))
    f1 = [(2 * (truth & (log_odds >= level)).sum()) / ((log_odds >= level).sum() + truth.sum()) for level in LEVELS]
    assert found[3] == LEVELS[int(np.argmax(f1))]  # never true: the threshold of all labels together


def test_a_precision_is_reached_with_the_smallest_threshold() -> None:
    log_odds, truth = np.repeat([-1.0, 0.0, 1.0], 100), np.repeat([0, 1, 0, 1, 1], [50, 50, 20, 80, 100]).astype(bool)
    counts = count_at_levels(log_odds, np.zeros(300, np.int64), truth, np.ones(300), 1)
    # Precision from -1 on 230/300, from 0 on 180/200, from 1 on 100/100; the only label is all labels together too.
    for wanted, level in ((0.7, -6), (0.76, -6), (0.77, -0.75), (0.9, -0.75), (0.95, 0.25), (0.999, 0.25)):
        assert counts.thresholds(Rule("precision", wanted), 1).tolist() == [level]


def test_a_label_that_cannot_reach_the_precision_is_never_given() -> None:
    counts = count_at_levels(*pairs([0.0] * 40, [1, 0] * 20), 2)
    assert counts.thresholds(Rule("precision", 0.9), 2).tolist() == [np.inf, np.inf]


def test_one_probability_for_all_labels() -> None:
    counts = count_at_levels(*pairs([0.0] * 6, [1, 0] * 3), 2)
    np.testing.assert_allclose(counts.thresholds(Rule("probability", 0.75), 2), np.log(3))


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("f1", Rule("f1")),
        ("F1", Rule("f1")),
        ("precision=0.9", Rule("precision", 0.9)),
        ("0.5", Rule("probability", 0.5)),
        (0.25, Rule("probability", 0.25)),
        (Rule("f1"), Rule("f1")),
    ],
)
def test_rules(given: object, rule: Rule) -> None:
    assert as_rule(given) == rule
    assert as_rule(str(rule)) == rule


@pytest.mark.parametrize("given", ["f2", "precision", "precision=1.5", "recall=0.5", 0, 1, 2.0, True, "nan", None])
def test_wrong_rules(given: object) -> None:
    with pytest.raises(ConfigError, match="threshold"):
        as_rule(given)


def test_damaged_parts_are_refused() -> None:
    parts = count_at_levels(*pairs([0.0] * 12, [1, 0] * 6), 2).parts()
    assert LevelCounts.from_parts(parts, 2).labels.tolist() == [0]
    for damage in (
        {"labels": np.array([5])},
        {"labels": np.array([0, 1])},
        {"hits": parts["hits"] * np.nan},
        {"predicted": -parts["predicted"]},
        {"positives": parts["positives"].astype(np.float64)},
    ):
        with pytest.raises(ValueError, match=r"thresholds of labels|counts of"):
            LevelCounts.from_parts(parts | damage, 2)
