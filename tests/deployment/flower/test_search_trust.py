"""Attacks on a search under secure sums: a server that wants the hits of one party out of the sum of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.ranking import RANK
from fedalc.deployment.flower.sum_messages import POWERS, WEIGHTS
from fedalc.deployment.flower.wire import pack, pack_all_rows
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import Nodes, fails, notes, places, run
from tests.deployment.flower.test_search import ASKED, parties, small_search, train  # noqa: F401

VICTIM = [1, 2, 3]  # the labels of party 7
Cheat = Callable[[Message, np.ndarray], None]


def weights_of_others(message: Message, victim: np.ndarray) -> None:
    """The labels of all other parties come last in every ranking."""
    weights = np.full((3, 7), 1e-9)
    weights[:, victim] = weights[0] = 1.0
    message.content[WEIGHTS] = pack({WEIGHTS: weights})


def one_power(message: Message, victim: np.ndarray) -> None:
    """The same, and the power for which such weights would be due is 0."""
    weights_of_others(message, victim)
    message.content["task"][POWERS] = [0.0, 0.0, 0.0]  # type: ignore[index]


def other_powers(message: Message, victim: np.ndarray) -> None:
    """Honest weights; the powers are not theirs."""
    message.content["task"][POWERS] = [0.0, 0.4, 0.6]  # type: ignore[index]


def huge_power(message: Message, victim: np.ndarray) -> None:
    message.content["task"][POWERS] = [0.0, 0.3, 60.0]  # type: ignore[index]


def no_powers(message: Message, victim: np.ndarray) -> None:
    del message.content["task"][POWERS]  # type: ignore[union-attr]


def long_rows(message: Message, victim: np.ndarray) -> None:
    """What weights do, done by the rows of W."""
    rows = torch.eye(7, dtype=torch.float64) * 1e-9
    rows[torch.from_numpy(victim)] *= 1e9
    message.content["all-rows"] = pack_all_rows(rows)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("cheat", "problem"),
    [
        (weights_of_others, "do not follow from this party's own numbers of records"),
        (long_rows, "rows that are not of length 1"),
        (one_power, "other than 1 for label power 0"),
        (other_powers, "do not follow from this party's own numbers of records"),
        (huge_power, "from 0 to below 1"),
        (no_powers, "has no powers"),
    ],
)
def test_no_server_sees_the_hits_of_one_party(
    cheat: Cheat,
    problem: str,
    parties: Nodes,
    tmp_path: Path,  # noqa: F811
) -> None:
    """All parties get the same question; those whose labels are pushed aside refuse it."""
    victim = places(str(parties[7]["key"]), VICTIM)
    nodes = {node: config | {"state": str(tmp_path / str(node))} for node, config in parties.items()}
    grid = LocalGrid(nodes)
    grid.before_push = lambda message: (
        cheat(message, victim) if message.metadata.message_type == RANK and WEIGHTS in message.content else None
    )
    with fails(TooFew):
        run(grid, tmp_path / "run", ASKED | {"secure-sums": "on"})
    refused = {party for _, party, why in notes(tmp_path / "run") if problem in why}
    assert {"party 9", "party 55", "party 101"} <= refused
