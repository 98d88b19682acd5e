"""Each aggregation rule against a case by hand, a naive version, and Flower's own if the definition is the same."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from torch import Tensor

from fedalc.config.resolve import experiment
from fedalc.engines import aggregation
from fedalc.engines.aggregation.base import capped
from fedalc.engines.aggregation.held import HeldChanges
from fedalc.engines.aggregation.lengths import Lengths, norm
from fedalc.errors import FedalcError

THETA = [torch.zeros(2, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)]
NUMBERS = 10


def settings(rule: str, **server: Any) -> Any:
    return experiment({"server": {"aggregation": rule, **server}})


def shaped(row: np.ndarray | list[float]) -> list[Tensor]:
    numbers = torch.as_tensor(np.asarray(row, dtype=np.float64))
    return [numbers[:6].view(2, 3), numbers[6:]]


def flat(change: list[Tensor]) -> np.ndarray:
    return torch.cat([tensor.flatten() for tensor in change]).numpy()


def combined(
    rule: str,
    rows: Mapping[int, np.ndarray],
    weights: Mapping[int, float] | None = None,
    usual: float = 0.0,
    **server: Any,
) -> np.ndarray:
    lengths = Lengths()
    lengths.usual = usual
    gathered = aggregation.begin(THETA, weights or dict.fromkeys(rows, 1.0), lengths, settings(rule, **server))
    for party, row in rows.items():
        gathered.add(party, shaped(row), norm(shaped(row)))
    return flat(gathered.result())


def along(*values: float) -> dict[int, np.ndarray]:
    """Return changes with these first coordinates, and zeros."""
    return {party: np.array([value, *[0.0] * (NUMBERS - 1)]) for party, value in enumerate(values)}


def random_rows(parties: int, seed: int = 0) -> dict[int, np.ndarray]:
    return dict(enumerate(np.random.default_rng(seed).normal(size=(parties, NUMBERS))))


# --- worked out by hand ---


def test_the_mean_is_weighted() -> None:
    assert combined("mean", along(1.0, 4.0), {0: 0.25, 1: 0.5})[0] == pytest.approx(3.0)


def test_clip_cuts_to_the_median_of_earlier_rounds() -> None:
    """C = 2: 1 stays, -8 becomes -2, 4 becomes 2. Weights 1/2, 1/4, 1/4: 0.5 - 0.5 + 0.5."""
    weights = {0: 0.5, 1: 0.25, 2: 0.25}
    assert combined("clip", along(1.0, -8.0, 4.0), weights, usual=2.0)[0] == pytest.approx(0.5)


def test_clip_in_the_first_round_cuts_to_its_own_median() -> None:
    """Lengths 1, 8, 4, 3: the lower median is 3. (1 - 3 + 3 + 3) / 4."""
    assert combined("clip", along(1.0, -8.0, 4.0, 3.0))[0] == pytest.approx(1.0)
    # One alone moves, so nothing is known of its length: it is not cut.
    assert combined("clip", along(0.0, 0.0, 6.0))[0] == pytest.approx(2.0)


def test_clip_cuts_also_where_most_stand_still() -> None:
    """Lengths 2 and 2e9 among five zeros: both become 2."""
    assert combined("clip", along(0.0, 0.0, 0.0, 0.0, 0.0, 2.0, -2e9))[0] == pytest.approx(0.0)
    assert combined("clip", along(0.0, 0.0, 0.0, 2.0, 3.0, -2e9))[0] == pytest.approx((2 + 3 - 3) / 6)


def test_clip_keeps_directions() -> None:
    row = np.random.default_rng(1).normal(size=NUMBERS)
    found = combined("clip", {0: row}, usual=0.5)
    assert np.linalg.norm(found) == pytest.approx(0.5)
    assert found / 0.5 == pytest.approx(row / np.linalg.norm(row))


def test_nobody_counts_more_than_ten_times_the_median_party() -> None:
    """Weights 1, 1, 98 become 1, 1, 10, so (1 + 1 - 10) / 12; with two parties it is unclear which is too large."""
    assert capped({0: 1.0, 1: 1.0, 2: 98.0}) == {0: 1.0, 1: 1.0, 2: 10.0}
    assert capped({0: 1.0, 1: 98.0}) == {0: 1.0, 1: 98.0}
    weights = {0: 0.01, 1: 0.01, 2: 0.98}
    assert combined("clip", along(1.0, 1.0, -1.0), weights, usual=1.0)[0] == pytest.approx(-8 / 12)


def test_the_median_of_an_even_number_is_between_the_two_in_the_middle() -> None:
    assert combined("median", along(7.0, -100.0, 1.0))[0] == 1.0
    assert combined("median", along(7.0, -100.0, 1.0, 2.0))[0] == 1.5
    assert combined("median", along(7.0, 3.0), {0: 0.99, 1: 0.01})[0] == 5.0  # unweighted


def test_the_trimmed_mean_leaves_out_at_either_end() -> None:
    """A fifth of five is one at each end: (1 + 2 + 6) / 3."""
    assert combined("trimmed-mean", along(1.0, 900.0, 6.0, -900.0, 2.0), trim=0.2)[0] == pytest.approx(3.0)
    assert combined("trimmed-mean", along(1.0, 5.0, 6.0), trim=0.3)[0] == pytest.approx(4.0)  # of three none


def test_multi_krum_leaves_out_who_is_far_from_the_others() -> None:
    """Five parties, one may lie: the score is of the two nearest others. Squared distances of 0, 1, 3, 4, 50 to these:
    1+9=10, 1+4=5, 1+4=5, 1+9=10, and far more. The mean of 0, 1, 3, 4 is 2."""
    rows = along(0.0, 1.0, 3.0, 4.0, 50.0)
    assert combined("multi-krum", rows, byzantine=0.2)[0] == pytest.approx(2.0)
    weights = {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.5, 4: 0.2}  # of those that are chosen: (0.1 + 0.3 + 2) / 0.8
    assert combined("multi-krum", rows, weights, byzantine=0.2)[0] == pytest.approx(3.0)
    # Of four parties none can be left out (2f + 2 < n), so it is their mean.
    assert combined("multi-krum", along(0.0, 1.0, 3.0, 48.0), byzantine=0.4)[0] == pytest.approx(13.0)


@pytest.mark.parametrize("rule", aggregation.RULES)
def test_nobody_heard_is_no_change_and_one_alone_is_its_own(rule: str) -> None:
    assert (combined(rule, {}, {0: 1.0}) == 0).all()
    assert combined(rule, random_rows(1), {0: 0.3, 1: 0.7}) == pytest.approx(random_rows(1)[0])


# --- literal twins ---


def literal(rule: str, rows: np.ndarray, weights: np.ndarray, usual: float) -> np.ndarray:
    count, out = len(rows), np.zeros(NUMBERS)
    if rule == "mean":
        return np.average(rows, axis=0, weights=weights)
    if rule == "clip":
        for row, weight in zip(rows, weights, strict=True):
            length = math.sqrt(sum(number**2 for number in row))
            out += weight * row * (usual / length if length > usual else 1.0)
        return out / weights.sum()
    if rule in ("median", "trimmed-mean"):
        for at in range(NUMBERS):
            values = sorted(rows[:, at])
            while rule == "median" and len(values) > 2:
                values = values[1:-1]
            out[at] = np.mean(values if rule == "median" else values[3:-3])
        return out
    scores = [sorted(sum((a - b) ** 2) for b in rows)[1 : count - 3 - 2 + 1] for a in rows]
    chosen = sorted(range(count), key=lambda k: sum(scores[k]))[: count - 3]
    return np.average(rows[chosen], axis=0, weights=weights[chosen])


@pytest.mark.parametrize("count", [10, 11])
@pytest.mark.parametrize("rule", aggregation.RULES)
def test_a_literal_twin_in_any_order_of_arrival(rule: str, count: int) -> None:
    rows = random_rows(count, seed=3)
    weights = dict(enumerate(np.random.default_rng(4).uniform(0.5, 2.0, count)))
    wanted = literal(rule, np.array(list(rows.values())), np.array(list(weights.values())), 2.5)
    found = combined(rule, rows, weights, usual=2.5)
    assert found == pytest.approx(wanted, rel=1e-12)
    backwards = dict(reversed(rows.items()))
    assert combined(rule, backwards, weights, usual=2.5) == pytest.approx(wanted, rel=1e-12)
    if rule not in ("mean", "clip"):  # these are added up as they come
        assert (combined(rule, backwards, weights) == combined(rule, rows, weights)).all()


@pytest.mark.parametrize("rule", ["clip", "median", "trimmed-mean", "multi-krum"])
def test_a_minority_cannot_move_it_far(rule: str) -> None:
    """Three of ten send arbitrary changes, a million times as long, which would ruin the mean."""
    rows = {party: np.ones(NUMBERS) + 0.01 * row for party, row in random_rows(10).items()}
    poisoned = rows | {party: -1e6 * np.ones(NUMBERS) for party in range(3)}
    found = combined(rule, poisoned)
    assert found @ np.ones(NUMBERS) / NUMBERS > 0.39  # clip: 0.7 - 0.3
    assert combined("mean", poisoned) @ np.ones(NUMBERS) < -1e5


# --- Flower's ---


def test_flowers_trimmed_mean_and_median() -> None:
    rows = random_rows(9, seed=5)
    stacked = np.array(list(rows.values()))
    assert combined("trimmed-mean", rows, trim=0.25) == pytest.approx(trim_mean(stacked, 0.25), rel=1e-12)
    assert combined("median", rows) == pytest.approx(np.median(stacked, axis=0), rel=1e-12)  # as in its FedMedian


@pytest.mark.parametrize("lying", [1, 2, 3])
def test_flowers_multi_krum_chooses_the_same(lying: int) -> None:
    rows = random_rows(10, seed=lying)
    contents = [RecordDict({"arrays": ArrayRecord([row])}) for row in rows.values()]
    chosen = select_multikrum(contents, num_malicious_nodes=lying, num_nodes_to_select=10 - lying)
    theirs = np.mean([content["arrays"].to_numpy_ndarrays()[0] for content in chosen], axis=0)  # type: ignore[union-attr]
    assert combined("multi-krum", rows, byzantine=lying / 10) == pytest.approx(theirs, rel=1e-12)


# --- lengths ---


def test_the_usual_length_is_the_median_over_parties_of_their_last() -> None:
    lengths = Lengths()
    lengths.note({4: 9.0})
    assert lengths.usual == 0.0  # one party alone
    lengths.note({0: 1.0, 1: 2.0})
    assert lengths.usual == 2.0
    lengths.note({4: 1e9})  # heard alone
    assert lengths.usual == 2.0
    lengths.note({0: 0.0, 1: 0.0})  # most have nothing left to learn
    assert lengths.usual == 2.0
    again = Lengths()
    again.restore(lengths.tensors())
    assert (again.last, again.usual) == (lengths.last, lengths.usual)
    lengths.largest = 7.0
    again.restore(lengths.tensors())
    assert again.largest == 7.0
    again = Lengths()
    again.restore({})
    assert again.usual == 0.0


def test_where_most_stand_still_the_others_say_what_is_usual() -> None:
    lengths = Lengths()
    lengths.note(dict.fromkeys(range(5), 0.0) | {5: 2e9})
    assert (lengths.usual, lengths.largest) == (0.0, 0.0)  # one alone would set its own bound
    lengths.note({6: 2.0})
    assert (lengths.usual, lengths.largest) == (2.0, 0.0)  # of two one could put it as low as it likes, for good
    lengths.note({5: 2.0, 6: 1e-9, 7: 3.0})
    assert (lengths.usual, lengths.largest) == (2.0, 2.0)


def test_the_length_of_a_sparse_change() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([[1.0, 2.0], [2.0, 2.0]]), (3, 2))
    assert norm([sparse, torch.tensor([12.0])]) == 13.0  # the row is 3, 4


# --- memory ---


@pytest.mark.parametrize("rule", ["clip", "median", "trimmed-mean", "multi-krum"])
def test_on_disk_and_some_coordinates_at_a_time_it_is_the_same(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(9)
    wanted = combined(rule, rows)
    files: list[Any] = []
    make = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: files.append(make()) or files[-1])
    init = HeldChanges.__init__
    monkeypatch.setattr(HeldChanges, "__init__", lambda held, theta, budget: init(held, theta, 3 * NUMBERS * 8))
    assert combined(rule, rows) == pytest.approx(wanted, rel=1e-12)
    (file,) = files
    assert file.closed


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        return Path("/dev/full").open("wb")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    held = HeldChanges(THETA, 100)
    held.add(0, shaped(np.zeros(NUMBERS)))
    with pytest.raises(FedalcError, match=r"the changes of 2 parties.*No space left.*memory_budget.*clip"):
        held.add(1, shaped(np.zeros(NUMBERS)))


# --- what is said ---


@pytest.mark.parametrize(
    ("rule", "parties", "said"),
    [
        ("mean", 5, "a lying party is held back only where its answer is of absurd length"),
        ("clip", 5, "cut to the median length of the 5 parties'"),
        ("clip", 1, "nothing is cut"),
        ("median", 5, "withstands 2 lying of 5"),
        ("trimmed-mean", 10, "withstands 3 lying of 10"),
        ("trimmed-mean", 3, "withstands 0 lying of 3 parties, so it is a plain mean"),
        ("multi-krum", 10, "withstands 3 lying of 10"),
        ("multi-krum", 4, "withstands 0 lying of 4 parties, so it is a plain mean"),
    ],
)
def test_the_log_says_what_the_rule_can_do(rule: str, parties: int, said: str) -> None:
    assert said in aggregation.described(settings(rule), parties)
