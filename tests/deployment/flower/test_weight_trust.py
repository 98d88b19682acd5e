"""A server that makes up label weights, against parties that have the same labels and insist on secure sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedalc.deployment.flower.bucket_census import BucketCensus
from fedalc.deployment.flower.bucket_sums import RECORDS, Counting, SealedTables
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.sum_messages import LABEL_WEIGHTS
from fedalc.deployment.flower.table_seals import SEALED
from fedalc.deployment.flower.wire import pack, unpack
from fedalc.methods.base import weights_of
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    LINEAR,
    Nodes,
    all_different,
    asked,
    fails,
    notes,
    places,
    run,
    write_parties,
)
from tests.deployment.flower.test_secure_sums import ON

OWNED = {101: [0, 4], 7: [1, 2, 3], 55: [5], 9: [6]}
POWER = 0.5
SETTINGS = LINEAR | {"clients": "parties", "client.label_power": POWER}
ARRAYS: dict[str, Any] = {"weights": ("float64", (7,)), "labels": ("uint64", (7, 1))}
ARRAYS |= {"labels seals": ("uint64", (SEALED,))}
Cheat = Callable[[dict[str, np.ndarray], np.ndarray], None]


@pytest.fixture
def strict(tmp_path: Path) -> Nodes:
    nodes = write_parties(tmp_path, all_different(), OWNED)
    more = {"require-secure-sums": True, "fewest": 1}
    return {node: config | more | {"state": str(tmp_path / f"state {node}")} for node, config in nodes.items()}


def train(grid: LocalGrid, folder: Path, **config: Any) -> None:
    run(grid, folder, asked("fedalc-oneshot", SETTINGS, **(ON | {"num-server-rounds": 1} | config)))


def weights_alone(arrays: dict[str, np.ndarray], victim: np.ndarray) -> None:
    """All labels but those of one party count for next to nothing."""
    arrays["weights"][:] = 1e-4
    arrays["weights"][victim] = 1.0


def weights_and_numbers(arrays: dict[str, np.ndarray], victim: np.ndarray) -> None:
    """The same, by numbers of records from which such weights follow."""
    arrays["labels"][:] = 10**9 * arrays["labels"].max()
    arrays["labels"][victim] = 1
    arrays["weights"] = weights_of(arrays["labels"][:, 0].astype(np.float64), POWER, 30.0)


@pytest.mark.parametrize(
    ("cheat", "problem"),
    [
        (weights_alone, "do not follow from the labels' numbers of records"),
        (weights_and_numbers, "other numbers of records of the labels than the parties counted"),
    ],
)
def test_made_up_weights_are_refused_by_all(cheat: Cheat, problem: str, strict: Nodes, tmp_path: Path) -> None:
    """Otherwise the sum would be one party's: an outside tester had a cosine of 0.999999998."""
    grid, victim = LocalGrid(strict), places(str(strict[9]["key"]), OWNED[9])

    def change(message: Message) -> None:
        if LABEL_WEIGHTS in message.content:
            arrays = {name: array.copy() for name, array in unpack(message.content, LABEL_WEIGHTS, ARRAYS).items()}
            cheat(arrays, victim)
            message.content[LABEL_WEIGHTS] = pack(arrays)
            told = {"weights": ("float64", (None,)), "shares": ("float64", (None,))}
            own = unpack(message.content, "told", told)
            numbers = list(message.content["task"]["numbers"])  # type: ignore[index,arg-type]
            message.content["told"] = pack({**own, "weights": arrays["weights"][numbers]})

    grid.before_push = change
    with fails(TooFew):
        train(grid, tmp_path / "run")
    assert {party for _, party, why in notes(tmp_path / "run") if problem in why} == {
        "party 7", "party 9", "party 55", "party 101",
    }  # fmt: skip


def test_honest_weights_are_taken(strict: Nodes, tmp_path: Path) -> None:
    for size in ("exact", "expected", "ignored"):
        nodes = {node: config | {"allow": "sum_settings=3"} for node, config in strict.items()}
        settings = SETTINGS | {"client.set_size": size}
        config = ON | {"num-server-rounds": 1, "run-id": size}
        found = run(LocalGrid(nodes), tmp_path / size, asked("fedalc-oneshot", settings, **config))
        assert found.model.theta[0].abs().max() > 1e-3


def test_weights_that_no_party_can_check_are_refused(strict: Nodes, tmp_path: Path) -> None:
    with fails(TooFew):
        train(LocalGrid(strict), tmp_path / "run", collection="join")
    assert all("can check with --collection sums only" in why for _, _, why in notes(tmp_path / "run"))


def test_a_second_count_with_other_numbers_is_refused(
    strict: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From two sums under the same seals the server could compute seals of any n, and with them weights by which the
    sum is one party's: an outside tester had a cosine of 1.0."""
    grid, swapped = LocalGrid(strict), []
    honest = BucketCensus._total

    def twice(
        self: BucketCensus, counting: Counting, holders: SealedTables | None = None
    ) -> tuple[SealedTables, SealedTables]:
        first = honest(self, counting, holders)
        if counting.what != RECORDS:
            return first
        swapped.append(True)
        return honest(self, counting, holders)

    def change(message: Message) -> None:
        task = message.content.get("task")
        if swapped and task is not None and "numbers" in task:
            count = int(task["label-count"])  # type: ignore[index,arg-type]
            numbers = [(number + 1) % count for number in task["numbers"]]  # type: ignore[index,union-attr,operator]
            task["numbers"] = numbers  # type: ignore[index]

    monkeypatch.setattr(BucketCensus, "_total", twice)
    grid.before_push = change
    with fails(TooFew):
        train(grid, tmp_path / "run")
    assert swapped and "other numbers than all parties' list of labels" in capsys.readouterr().out
