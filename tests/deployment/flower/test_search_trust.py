"""Attacks on a search under secure sums: a server that wants the hits of one party out of the sum of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedalc.deployment.flower import client_app
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.ranking import OF_ALL, RANK, PartyHits
from fedalc.deployment.flower.secure_engine import SecureRanking
from fedalc.deployment.flower.sum_messages import POWERS, WEIGHTS
from fedalc.deployment.flower.wire import pack, pack_all_rows
from fedalc.deployment.flower.work import Work
from fedalc.models.model import Model
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import Nodes, fails, notes, places, run
from tests.deployment.flower.test_search import ASKED, parties, small_search, train  # noqa: F401

VICTIM = [1, 2, 3]  # the labels of party 7


class Done(Exception):
    """The server has what it wants."""


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
    parties: Nodes,  # noqa: F811
    tmp_path: Path,
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


@pytest.mark.long
def test_what_remains_a_server_that_makes_up_theta(
    parties: Nodes,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """docs/secure-sums.md, what remains: no party can tell whether θ comes from a training. With one that scores the
    labels of one party highest, P@1 of the sum is that party's."""
    victim, hits = places(str(parties[7]["key"]), VICTIM), dict[str, np.ndarray]()
    found, ranked, compare = list[float](), client_app.ranked, SecureRanking.compare

    def watching(work: Work) -> np.ndarray | None:
        hits[work.party.name] = counted = ranked(work)
        return counted

    def with_its_theta(self: SecureRanking, model: Model, *more: Any) -> list[PartyHits]:
        columns = model.W[torch.from_numpy(victim)].argmax(1)  # rows are axes
        with torch.no_grad():
            model.theta[0].zero_()
            model.theta[0][:, columns[:2]] += torch.tensor([1.0, -1.0])  # one of these two scores is above 0
        found.extend(one.of[OF_ALL][0] for one in compare(self, model, *more))
        raise Done

    monkeypatch.setattr(client_app, "ranked", watching)
    monkeypatch.setattr(SecureRanking, "compare", with_its_theta)
    with pytest.raises(Done):
        run(LocalGrid(parties), tmp_path / "run", ASKED | {"secure-sums": "on"})
    assert found[0] == hits["party 7"][0] > 0 and all(hits[name][0] == 0 for name in hits if name != "party 7")
