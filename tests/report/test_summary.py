from __future__ import annotations

import math

import pytest

from fedalc.report.summary import Statistic, merge, number, per_client, text, total_bytes
from tests.report.results import result

P1 = number("metrics", "P@1")


def test_three_seeds_by_hand() -> None:
    (row,) = merge([result(seed=seed, precision=value) for seed, value in ((0, 50.0), (1, 52.0), (2, 57.0))])
    value = row.statistic(P1)
    assert value is not None and value.mean == pytest.approx(53.0)
    assert value.deviation == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert row.seeds == 3


def test_one_seed_has_no_deviation() -> None:
    (row,) = merge([result(precision=50.0)])
    assert row.statistic(P1) == Statistic(50.0, None)


def test_other_dataset_method_or_preset_is_another_row() -> None:
    rows = merge([result(), result("fedaws"), result(dataset="bibtex"), result(preset="paper"), result(seed=1)])
    assert [(row.dataset, row.method, row.preset, row.seeds) for row in rows] == [
        ("demo", "fedavg", "strong", 2),
        ("demo", "fedaws", "strong", 1),
        ("bibtex", "fedavg", "strong", 1),
        ("demo", "fedavg", "paper", 1),
    ]


def test_same_seed_twice_is_not_averaged() -> None:
    rows = merge([result(precision=50.0), result(precision=90.0)])
    assert [(row.method, row.seeds) for row in rows] == [("fedavg", 1), ("fedavg #2", 1)]


def test_a_name_stands_for_the_method() -> None:
    assert [row.method for row in merge([result(name="lambda 10"), result(name="lambda 100")])] == [
        "lambda 10",
        "lambda 100",
    ]


def test_a_value_that_a_seed_lacks_has_no_mean() -> None:
    (row,) = merge([result(seed=0), result(seed=1, metrics={"P@3": 1.0})])
    assert row.statistic(P1) is None


def test_nan_in_one_seed_is_nan() -> None:
    (row,) = merge([result(seed=0), result(seed=1, precision=math.nan)])
    value = row.statistic(P1)
    assert value is not None and math.isnan(value.mean) and value.deviation is None


@pytest.mark.parametrize(
    ("largest", "collapsed"),
    [(1.0, True), (0.99, True), (0.9899, False), (0.5, False), (math.nan, False), (None, False)],
)
def test_collapsed_from_099(largest: float | None, collapsed: bool) -> None:
    (row,) = merge([result(collapse={"max_cosine": largest})])
    assert row.collapsed is collapsed


def test_bytes() -> None:
    assert per_client("bytes_up")(result()) == 2_000_000
    assert per_client("bytes_up")(result(users=4)) == 5_000_000  # a user has several clients, and sends for all at once
    assert total_bytes(result()) == 50_000_000
    assert per_client("bytes_up")(result(clients=0)) is None
    assert total_bytes({"bytes_up": 1}) is None


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert text("a\x1b[31mb\nc") == "a\ufffd[31mb\ufffdc"
