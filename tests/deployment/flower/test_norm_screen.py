"""Which changes are rejected as far too long."""

from __future__ import annotations

import math

import torch

from fedalc.deployment.flower.norm_screen import FACTOR, Change, NormScreen, bad_rows
from fedalc.engines.aggregation.lengths import Lengths, norm


def screening(limit: float | None = None) -> NormScreen:
    return NormScreen(Lengths(), limit)


def sifted(screen: NormScreen, *norms: float, parties: list[int] | None = None) -> list[int]:
    """Run a round and return the positions (or `parties`) of the accepted changes."""
    changes = [Change(who, [], None, 0.0, norms[at]) for at, who in enumerate(parties or range(len(norms)))]
    screen = NormScreen(screen.lengths, screen.limit)
    verdicts = [verdict for change in changes for verdict in screen.judge(change)] + screen.judge_waiting()
    assert {change.party for change, _ in verdicts} == {change.party for change in changes}
    taken = [change for change, problem in verdicts if not problem]
    screen.lengths.note({one.party: one.norm for one in taken})
    return [one.party for one in taken]


def test_the_first_three_are_judged_together() -> None:
    assert sifted(screening(), 1e6, 1.0, 1.0, 1.0) == [1, 2, 3]
    assert sifted(screening(), 1.0, 1.0, 1e6) == [0, 1]
    assert sifted(screening(), 1.0, 1.0, 1.0, FACTOR * 1.01, FACTOR) == [0, 1, 2, 4]


def test_of_two_nobody_can_say_whose_is_absurd_but_a_limit_helps() -> None:
    assert sifted(screening(), 1.0, 1e6) == [0, 1]
    assert sifted(screening(10.0), 1.0, 1e6) == [0]
    assert sifted(screening(10.0), 10.1, 10.0) == [1]


def test_the_limit_alone_counts_where_there_is_one() -> None:
    assert sifted(screening(1e9), 1.0, 1.0, 1.0, 1e8) == [0, 1, 2, 3]


def test_the_usual_length_does_not_fall() -> None:
    screen = screening()
    sifted(screen, 10.0, 10.0, 10.0)
    sifted(screen, 0.01, 0.01, 0.01)
    assert screen.lengths.largest == 10.0
    assert sifted(screen, 0.01, FACTOR * 10, FACTOR * 10.1) == [0, 1]
    sifted(screen, 30.0, 30.0, 30.0)
    assert screen.lengths.largest == 30.0


def test_one_of_two_cannot_raise_the_usual_length_step_by_step() -> None:
    screen = screening()
    sifted(screen, 1.0, 1.0, 1.0)
    for _ in range(3):
        assert sifted(screen, 1.0, FACTOR) == [0, 1]
        assert screen.lengths.largest == 1.0


def test_one_party_heard_alone_cannot_raise_its_own_bound() -> None:
    """For example if it is the only one drawn, or the others are late: the median is over all parties."""
    screen = screening()
    sifted(screen, 1.0, 1.0, 1.0)
    for _ in range(3):
        assert sifted(screen, FACTOR, parties=[2]) == [2]
        assert sifted(screen, FACTOR * 1.01, parties=[2]) == []
    assert screen.lengths.largest == 1.0


def test_one_party_alone_from_the_start_sets_no_bound_for_others() -> None:
    screen = screening()
    assert sifted(screen, 1e-9, parties=[2]) == [2]
    assert screen.lengths.largest == 0.0
    assert sifted(screen, 1.0, 1.0, 1.0, 1e-9, parties=[0, 1, 3, 2]) == [0, 1, 3, 2]


def test_fewer_than_half_cannot_raise_it_together() -> None:
    screen = screening()
    sifted(screen, 1.0, 2.0, 3.0, 3.0, 3.0)
    for _ in range(3):
        assert sifted(screen, 2.0, 3.0, 3.0, 99.0, 99.0) == [0, 1, 2, 3, 4]
        assert screen.lengths.largest == 3.0


def test_what_was_refused_does_not_move_the_usual_length() -> None:
    screen = screening()
    sifted(screen, 1.0, 1.0, 1.0, 1e9, 1e9, 1e9, 1e9)
    assert screen.lengths.largest == 1.0


def test_from_the_second_round_on_nobody_waits_for_others() -> None:
    screen = screening()
    sifted(screen, 1.0, 1.0, 1.0)
    assert screen.lengths.largest == 1.0
    change = Change(0, [], None, 0.0, 1.0)
    assert NormScreen(screen.lengths).judge(change) == [(change, "")]


def test_where_most_stand_still_the_first_three_others_are_judged_together() -> None:
    assert sorted(sifted(screening(), 0.0, 0.0, 2e9, 0.0, 0.0, 5.0, 7.0)) == [0, 1, 3, 4, 5, 6]
    assert sorted(sifted(screening(), 0.0, 5.0, 0.0, 2e9, 0.0, 0.0, 0.0, 7.0, 1e9)) == [0, 1, 2, 4, 5, 6, 7]
    assert sorted(sifted(screening(), 0.0, 0.0, 5.0, 7e9)) == [0, 1, 2, 3]  # two: nobody can say whose is absurd


def test_one_that_moves_beside_another_cannot_have_all_others_refused() -> None:
    screen = screening()
    for _ in range(2):
        assert sorted(sifted(screen, 0.0, 0.0, 0.0, 2.0, 1e-9)) == [0, 1, 2, 3, 4]
    assert sorted(sifted(screen, 2.0, 2.0, 2.0, 2.0, 1e-9)) == [0, 1, 2, 3, 4]


def test_while_most_stand_still_later_rounds_are_judged_too() -> None:
    screen = screening()
    sifted(screen, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 7.0)
    assert sifted(screen, 2e9, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0) == [1, 2, 3, 4, 5, 6]


def test_a_length_that_is_no_number_is_refused_also_without_a_bound() -> None:
    assert sifted(screening(), math.inf, 1.0) == [1]
    assert sifted(screening(), math.nan, 1.0) == [1]
    huge = [torch.full((2,), 1e300, dtype=torch.float64)]
    assert norm(huge) == math.inf
    assert norm([torch.tensor([3.0]), torch.tensor([[4.0]])]) == 5.0


def test_rows_have_length_1() -> None:
    row = torch.tensor([[0.6, 0.8]])
    assert not bad_rows(row) and bad_rows(row * 1.01) and bad_rows(row * 0) and bad_rows(row * math.nan)
