"""Which lists of parties may be unmasked one after another: together they never show what one or two of them sent."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from fedalc.secure_sums import Disclosures, Refused
from fedalc.secure_sums.disclosures import allowed_part, singled_out, together

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


class Rules:
    """The rules of `Disclosures` alone, with a memory for each party: what a server can unmask that chooses who gets
    which list, who is lost at which step, and which sums run at the same time."""

    def __init__(self) -> None:
        self.memory = {name: Disclosures({}) for name in NAMES}
        self.unmasked: list[list[str]] = []
        self.refused = 0

    def begin(self, roster: list[str]) -> tuple[list[str], Any]:
        """Steps 1 and 2: the parties of a sum, and what they know together."""
        return roster, together(self.memory[name].history() for name in roster)

    def masked(self, begun: tuple[list[str], Any], dealers: list[str]) -> list[str]:
        """Step 3: return those that send a vector."""
        return [name for name in dealers if self._does(name, "before_masking", dealers, begun[1], False)]

    def unmask(self, begun: tuple[list[str], Any], dealers: list[str], survivors: list[str], asked: list[str]) -> bool:
        """Steps 4 and 5, with these parties alone: return whether enough shares come."""
        needed = max(3, len(begun[0]) // 2 + 1)
        if len(survivors) < needed:
            return False
        good = [name for name in asked if self._does(name, "before_unmasking", dealers, survivors, begun[1])]
        shares = [name for name in good if self.memory[name].enough_know("training", survivors, good)]
        if len(good) >= needed and len(shares) >= needed and survivors not in self.unmasked:
            self.unmasked.append(survivors)
        return len(good) >= needed and len(shares) >= needed

    def _does(self, name: str, step: str, *arguments: Any) -> bool:
        try:
            getattr(self.memory[name], step)("training", *arguments)
        except Refused:
            self.refused += 1
            return False
        return True

    def sum_over(self, names: list[str]) -> bool:
        """A sum as an honest server does it."""
        begun = self.begin(names)
        survivors = self.masked(begun, names)
        return self.unmask(begun, names, survivors, survivors)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(20))
def test_no_combination_of_unmasked_sums_is_about_fewer_than_three(seed: int) -> None:
    """Against servers that do everything at random: rosters, lists, losses at each step, sums at the same time."""
    draw = np.random.default_rng(seed)

    def some(names: list[str], share: float) -> list[str]:
        return [name for name in names if draw.random() < share]

    refused = unmasked = 0
    for _ in range(12):
        rules = Rules()
        if draw.random() < 0.5:
            rules.sum_over(NAMES)
        for _ in range(8):
            begun = [rules.begin(some(NAMES, draw.choice([0.5, 0.8, 1.0]))) for _ in range(2)]
            share = draw.choice([0.7, 1.0])
            dealt = [some(each[0], share) for each in begun]
            sent = [rules.masked(*both) for both in zip(begun, dealt, strict=True)]
            for one, dealers, names in zip(begun, dealt, sent, strict=True):
                survivors = allowed_part(rules.unmasked, names) if draw.random() < 0.5 else some(names, share)
                rules.unmask(one, dealers, survivors, some(survivors, draw.choice([0.7, 1.0])))
        assert not rules.unmasked or not shows_few(rules.unmasked)
        refused, unmasked = refused + rules.refused, unmasked + len(rules.unmasked)
    assert refused > 100 and unmasked > 5  # and the twin finds something where the rules refuse
    assert shows_few([NAMES, NAMES[1:]]) and not shows_few([NAMES, NAMES[3:]])


def test_lists_that_no_party_has_seen_both_of() -> None:
    """All of seven, then {1, 2, 3}, then {4, 5, 6}: what is left is party 0."""
    rules, seven = Rules(), NAMES[:7]
    assert shows_few([seven, seven[1:4], seven[4:7]])
    assert rules.sum_over(seven)
    assert not rules.sum_over(seven[1:4]) and not rules.sum_over(seven[4:7])
    assert rules.sum_over(seven[:4]) and rules.unmasked == [seven, seven[:4]]  # three stay out together


def test_parties_that_were_in_no_list_before_do_not_outvote_others() -> None:
    """Of ten, ABC, ADE, B to J and F to J together show A."""
    rules = Rules()
    A, B, C, D, E, *others = NAMES
    lists = [[A, B, C], [A, D, E], [B, C, D, E, *others], others]
    assert shows_few(lists)
    assert [rules.sum_over(each) for each in lists] == [True, False, False, True]
    assert not shows_few(rules.unmasked)


def test_what_a_party_was_not_part_of_it_hears_from_others() -> None:
    """{0, 1, 2}, {2, 3, 4} and {0, 1, 3, 4} left out of ten: the first and second minus the third is twice party 2."""
    left_out = [(0, 1, 2), (2, 3, 4), (0, 1, 3, 4)]
    lists = [[name for number, name in enumerate(NAMES) if number not in out] for out in left_out]
    assert shows_few([NAMES, *lists])
    rules = Rules()
    assert rules.sum_over(NAMES) and rules.sum_over(lists[0])
    assert not rules.sum_over(lists[1]) and not rules.sum_over(lists[2])
    assert lists[0] in rules.memory["party 2"].known["training"] or rules.sum_over(NAMES)
    assert lists[0] in rules.memory["party 2"].known["training"]


def test_a_sum_that_another_has_overtaken_is_refused() -> None:
    rules = Rules()
    first, second = rules.begin(NAMES), rules.begin(NAMES)
    assert rules.masked(first, NAMES) == NAMES
    assert rules.masked(second, NAMES) == []


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

    def note(kind: str, parties: str) -> None:
        others = disclosures.history()
        disclosures.before_masking(kind, list(parties), others, once=False)
        disclosures.before_unmasking(kind, list(parties), list(parties), others)

    note("training", "abcd")
    note("training", "abc")
    note("training", "abcd")  # one of the two
    note("ranking", "abd")  # vectors of another kind
    with pytest.raises(Refused, match=r"show what a and b and c sent\. .* --allow sum_lists=3"):
        note("training", "abd")


def test_what_a_refusal_says_helps() -> None:
    """Also after a sum that was masked and never unmasked."""
    known: dict[str, list[list[str]]] = {"masked training": [["a", "b", "c"]]}
    with pytest.raises(Refused, match=r"1 of 3 parties .* --allow sum_lists=2$"):
        Disclosures(known).before_masking(
            "training", ["a", "d", "e"], {"masked training": [["a", "b", "c"]]}, once=False
        )
    allowing = Disclosures(known, most_lists=2)
    allowing.before_masking("training", ["a", "d", "e"], {"masked training": [["a", "b", "c"]]}, once=False)
    assert known["masked training"] == [["a", "b", "c"], ["a", "d", "e"]]


def test_a_noised_question_is_masked_for_one_list() -> None:
    """Before any vector leaves the party: others could unmask it without it."""
    disclosures = Disclosures({}, most_lists=9)
    disclosures.before_masking("noised 1", list("abcdef"), {}, once=True)
    disclosures.before_masking("noised 1", list("fedcba"), {}, once=True)
    with pytest.raises(Refused, match="with other noise"):
        disclosures.before_masking("noised 1", list("abc"), {}, once=True)
    assert disclosures.history() == {}
