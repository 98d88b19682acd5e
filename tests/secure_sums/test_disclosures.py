"""Which lists of parties may be unmasked one after another: together they never show what one or two of them sent."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedalc.secure_sums import Disclosures, Refused
from fedalc.secure_sums.disclosures import allowed_part, singled_out

NAMES = [f"party {number}" for number in range(10)]


def shows_few(lists: list[list[str]]) -> bool:
    """The literal twin: whether some combination of the lists' sums is about one or two parties alone."""
    matrix = np.array([[name in each for name in NAMES] for each in lists], dtype=float)
    rank = np.linalg.matrix_rank(matrix)
    for few in [*combinations(range(len(NAMES)), 1), *combinations(range(len(NAMES)), 2)]:
        others = np.delete(matrix, few, axis=1)
        if np.linalg.matrix_rank(others) < rank:  # a combination that is zero on all others, and not on these
            return True
    return False


def test_no_combination_of_accepted_sums_is_about_fewer_than_three() -> None:
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        disclosures = Disclosures({})
        for _ in range(12):
            new = [name for name in NAMES if draw.random() < 0.7]
            if len(new) < 3:
                continue
            lists = disclosures.known.get("training", [])
            new = allowed_part(lists, new) if draw.random() < 0.5 else new
            if len(new) < 3:
                continue
            try:
                disclosures.note("training", new)
            except Refused:
                refused += 1
        assert not shows_few(disclosures.known["training"])
    assert refused > 100  # and the twin finds something where the rule refuses
    assert shows_few([NAMES, NAMES[1:]]) and not shows_few([NAMES, NAMES[3:]])


def test_three_lists_that_pairwise_differ_by_four_show_one_party() -> None:
    """{0, 1, 2}, {2, 3, 4} and {0, 1, 3, 4} left out of ten: the first and second minus the third is twice party 2."""
    left_out = [(0, 1, 2), (2, 3, 4), (0, 1, 3, 4)]
    lists = [[name for number, name in enumerate(NAMES) if number not in out] for out in left_out]
    assert shows_few([NAMES, *lists])
    disclosures = Disclosures({})
    for each in (NAMES, lists[0]):
        disclosures.note("training", each)
    with pytest.raises(Refused, match="show what party 0 and party 1 and party 2 and"):
        disclosures.note("training", lists[1])


@pytest.mark.parametrize(
    ("earlier", "new", "few"),
    [
        ([], "abc", ""),
        (["abcd"], "abcd", ""),
        (["abcd"], "abc", "d"),
        (["abc"], "abcd", "d"),
        (["abcdef"], "abc", ""),
        (["abcdef"], "abcg", "g"),
        (["abcdef"], "abcghi", ""),
        (["abcdef", "abc"], "abcef", "def"),
    ],
)
def test_lists_by_hand(earlier: list[str], new: str, few: str) -> None:
    assert singled_out(earlier, new) == list(few)


@pytest.mark.parametrize(
    ("earlier", "present", "part"),
    [
        ([], "abc", "abc"),
        (["abcd"], "abc", ""),  # d has to come back
        (["abcde"], "abcd", ""),
        (["abcdefg"], "abcdef", "abcd"),  # two more stay out with g
        (["abcdefghi", "abcdef"], "abdefghi", "ghi"),  # a group of six without c and two more would be three, a, b, d
        (["abc"], "abcd", "abc"),  # d came too late
        (["abc"], "abcdef", "abcdef"),
    ],
)
def test_the_largest_allowed_part(earlier: list[str], present: str, part: str) -> None:
    found = allowed_part(earlier, present)
    assert not singled_out(earlier, found)
    assert found == list(part) or set(part) <= set(found)


def test_a_party_may_allow_more_lists() -> None:
    disclosures = Disclosures({}, most_lists=2)
    disclosures.note("training", ["a", "b", "c", "d"])
    disclosures.note("training", ["a", "b", "c"])
    disclosures.note("training", ["d", "c", "b", "a"])  # one of the two
    disclosures.note("ranking", ["a", "b", "d"])  # vectors of another kind
    with pytest.raises(Refused, match=r"show what a and b and c sent\. .* --allow sum_lists=3"):
        disclosures.note("training", ["a", "b", "d"])


def test_noised_sums_are_unmasked_over_one_list() -> None:
    disclosures = Disclosures({}, most_lists=9)
    disclosures.note("noised 1", list("abcdef"), once=True)
    with pytest.raises(Refused, match="with other noise"):
        disclosures.note("noised 1", list("abc"), once=True)
