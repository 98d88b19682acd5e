"""Replayed replies: an answer to an earlier question, and a change that was sent before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict

from fedalc.data.dataset import Split
from fedalc.deployment.flower.answers import Repeats
from fedalc.deployment.flower.wire import BadMessage
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import SETTINGS, Nodes, asked, assert_same, expected, in_round, notes, run

BAD = 7
THETA, OTHER = [torch.zeros(3)], [torch.ones(3)]
CHANGE, ROWS = [torch.tensor([0.0, 2.0, 0.0])], torch.eye(2)


@pytest.mark.few(1)
@pytest.mark.parametrize("names_the_question", [True, False])
def test_the_answer_of_an_earlier_round_is_refused(
    tmp_path: Path, train: Split, parties: Nodes, names_the_question: bool
) -> None:
    """Unchanged, or with the id of the new question."""
    grid, kept = LocalGrid(parties), []

    def keep(message: Message, reply: Message) -> Message:
        kept.append(RecordDict(dict(reply.content)))
        return reply

    def again(message: Message, reply: Message) -> Message:
        content = RecordDict({**kept[0], "answer": reply.content["answer"]} if names_the_question else dict(kept[0]))
        return Message(content, reply_to=message)

    first, second = in_round(1, keep), in_round(2, again)
    grid.tampering[BAD] = lambda message, reply: second(message, first(message, reply))
    found = run(grid, tmp_path / "run", asked("fedaws", SETTINGS))
    assert_same(found.model, expected("fedaws", SETTINGS, train, parties[BAD]["key"], {2: [BAD]}))
    ((t, party, why),) = notes(tmp_path / "run")
    assert (t, party) == (2, f"party {BAD}")
    assert ("sent in an earlier round" if names_the_question else "of round '1', and was asked") in why


def test_an_answer_that_names_no_question_is_refused(tmp_path: Path, train: Split, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    grid.signs_off = False

    def unnamed(message: Message, reply: Message) -> Message:
        return Message(RecordDict({k: v for k, v in reply.content.items() if k != "answer"}), reply_to=message)

    grid.tampering[BAD] = in_round(2, unnamed)
    run(grid, tmp_path / "run", asked("fedaws", SETTINGS))
    assert notes(tmp_path / "run") == [(2, f"party {BAD}", "does not say which question it answers")]


def test_a_change_of_nothing_may_come_again(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)

    def nothing(message: Message, reply: Message) -> Message:
        if "change" in reply.content:
            old = reply.content["change"]
            assert isinstance(old, ArrayRecord)
            for array in old.values():
                array.data = bytes(np.zeros(len(array.data), np.uint8))
        return reply

    for node in (7, 55):
        grid.tampering[node] = nothing
    run(grid, tmp_path / "run", asked("fedavg", SETTINGS))
    assert not (tmp_path / "run" / "parties.jsonl").exists()


def test_what_counts_as_sent_before() -> None:
    known = Repeats()
    known.about(THETA)
    known.check(0, CHANGE, ROWS, 0.5)
    known.check(0, CHANGE, ROWS, 0.5)  # the same question, asked again
    with pytest.raises(BadMessage, match="another party"):
        known.check(1, CHANGE, ROWS, 0.5)
    known.about(OTHER)
    known.check(0, CHANGE, ROWS, 0.25)  # the gradient of a linear encoder may stay the same; the loss does not
    known.check(0, [-CHANGE[0]], ROWS, 0.5)
    with pytest.raises(BadMessage, match="earlier round"):
        known.check(0, CHANGE, ROWS, 0.5)
    with pytest.raises(BadMessage, match="another party"):
        known.check(2, CHANGE, ROWS, 0.5)
    for party in (0, 1):
        known.check(party, THETA, None, 0.5)
