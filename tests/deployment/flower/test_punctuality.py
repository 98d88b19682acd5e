"""Late parties: how long the server waits for them, on a clock that only waiting advances."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedalc.deployment.flower import connections as parties_module
from fedalc.deployment.flower import exchange, run_config
from fedalc.deployment.flower.connections import Patience
from fedalc.deployment.flower.punctuality import LONGEST_REST, Punctuality
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, SETTINGS, Nodes, asked, notes, run

SLOW = 7
WHOLE = 600.0


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowGrid(LocalGrid):
    """Everyone answers after 5 seconds, and node SLOW, in rounds `slow`, after 1000: `before_late` times at most."""

    def __init__(self, nodes: Nodes, clock: Clock, slow: Iterable[int], kind: str = "train") -> None:
        super().__init__(nodes)
        self.clock, self.slow, self.kind = clock, set(slow), kind
        self.sent_at: dict[str, float] = {}
        self.before_late = 1000
        self._late: set[str] = set()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(super().push_messages(messages))
        self.sent_at |= dict.fromkeys(ids, self.clock.now)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([number for number in message_ids if self._ready(number)])

    def _ready(self, number: str) -> bool:
        said = self.sent[number].metadata
        slow = said.dst_node_id == SLOW and said.message_type == self.kind and int(said.group_id) in self.slow
        if slow and (number in self._late or len(self._late) < self.before_late):
            self._late.add(number)
            return self.clock.now - self.sent_at[number] >= 1000
        return self.clock.now - self.sent_at[number] >= 5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(exchange, "time", made)
    monkeypatch.setattr(parties_module, "time", made)
    monkeypatch.setattr(run_config, "Patience", lambda *seconds: Patience(*seconds, pause=1.0))
    return made


def rounds_waited(
    grid: SlowGrid, folder: Path, method: str, settings: dict[str, Any], rounds: int, **more: Any
) -> dict[int, float]:
    """Return, for each round, the seconds from its first question to the next round's."""
    began: dict[int, float] = {}
    grid.before_push = lambda message: began.setdefault(int(message.metadata.group_id), grid.clock.now) and None
    config = asked(method, settings, **{"num-server-rounds": rounds, "round-timeout": WHOLE, "wait": WHOLE}, **more)
    run(grid, folder, config)
    ends = [*list(began.values())[1:], grid.clock.now]
    return {t: round(end - begin) for (t, begin), end in zip(began.items(), ends, strict=True) if t}


def asked_in(grid: LocalGrid, kind: str = "train") -> list[int]:
    return [int(group) for node, what, group in grid.asked if node == SLOW and what == kind]


@pytest.mark.long
def test_a_slow_party_costs_one_whole_wait_and_then_little(tmp_path: Path, parties: Nodes, clock: Clock) -> None:
    grid = SlowGrid(parties, clock, slow=range(1, 9))
    waited = rounds_waited(grid, tmp_path / "run", "fedavg", SETTINGS, 8)
    assert asked_in(grid) == [1, 2, 4, 7], "it rests for 0, 1 and 2 rounds"
    assert waited[1] == WHOLE + 1
    assert all(WHOLE / 10 <= waited[t] <= WHOLE / 10 + 1 for t in (2, 4, 7))
    assert {waited[t] for t in (3, 5, 6, 8)} == {5}
    late = [(t, why) for t, _, why in notes(tmp_path / "run", "was late")]
    assert late[0] == (1, "the next wait for it is shorter")
    assert late[1] == (2, "2 times in a row; it is asked again in round 4")
    assert [t for t, _ in late] == [1, 2, 4, 7]
    skipped = [t for t, _, _ in notes(tmp_path / "run", "not asked")]
    assert skipped == [3, 5, 6, 8]


@pytest.mark.long
def test_an_answer_in_time_ends_it(tmp_path: Path, parties: Nodes, clock: Clock) -> None:
    grid = SlowGrid(parties, clock, slow=[1, 2, 6])
    waited = rounds_waited(grid, tmp_path / "run", "fedavg", SETTINGS, 7)
    assert asked_in(grid) == [1, 2, 4, 5, 6, 7]
    assert notes(tmp_path / "run", "answered in time again") == [(t, f"party {SLOW}", "") for t in (4, 7)]
    assert [waited[t] for t in (4, 5, 6, 7)] == [5, 5, WHOLE + 1, 5], "it has the whole wait again"


def test_where_everyone_is_needed_everyone_is_waited_for(tmp_path: Path, parties: Nodes, clock: Clock) -> None:
    """Conjugate gradients: late in the first attempt at round 2, in time in the second, and asked normally after."""
    square = LINEAR | {"server.optimizer": "cg", "client.label_power": 0.3}
    grid = SlowGrid(parties, clock, slow=[2])
    grid.before_late = 1
    rounds_waited(grid, tmp_path / "cg", "fedalc-exact", square, 3)
    assert asked_in(grid) == [1, 2, 2, 3]
    assert notes(tmp_path / "cg", "was late") == [] and notes(tmp_path / "cg", "not asked") == []


def test_with_too_few_others_nobody_rests(tmp_path: Path, parties: Nodes, clock: Clock) -> None:
    """The server needs four, so it asks the late party again at once, with the full wait."""
    grid = SlowGrid(parties, clock, slow=[1, 2])
    grid.before_late = 1
    rounds_waited(grid, tmp_path / "run", "fedavg", SETTINGS, 3, **{"min-parties": 4})
    assert asked_in(grid) == [1, 1, 2, 3]
    assert [t for t, _, _ in notes(tmp_path / "run", "was late")] == [1]


@pytest.mark.long
def test_late_in_evaluation_alone(tmp_path: Path, parties: Nodes, clock: Clock) -> None:
    grid = SlowGrid(parties, clock, slow=range(1, 9), kind="evaluate")
    settings = SETTINGS | {"selection.every": 1}
    config = asked("fedavg", settings, **{"num-server-rounds": 5, "round-timeout": WHOLE, "held-out-share": 0.2})
    run(grid, tmp_path / "run", config)
    assert asked_in(grid) == [1, 2, 3, 4, 5], "it goes on training"
    assert asked_in(grid, "evaluate") == [1, 2, 4]
    lines = (tmp_path / "run" / "parties.jsonl").read_text().splitlines()
    assert {json.loads(line)["party"] for line in lines} == {f"party {SLOW}"}


def test_the_wait_is_fair() -> None:
    """At least a tenth, twice the slowest other party, twice its own last time; never more than the full wait."""
    known = Punctuality()
    assert known.fair_wait(0, "train", 5.0, 600.0) == 60
    assert known.fair_wait(0, "train", 50.0, 600.0) == 100
    known.was_in_time(0, "train", 200.0)
    assert known.fair_wait(0, "train", 50.0, 600.0) == 400
    assert known.fair_wait(0, "train", 350.0, 600.0) == 600


def test_rests_double_up_to_a_limit() -> None:
    known, asked_at, t = Punctuality(), [], 1
    while len(asked_at) < 9:
        if not known.rests_until(0, "train", t):
            asked_at.append(t)
            known.was_late(0, "train", t)
            assert not known.was_late(0, "train", t), "once in a round"
        t += 1
    pauses = [b - a - 1 for a, b in itertools.pairwise(asked_at)]
    assert pauses == [0, 1, 2, 4, 8, LONGEST_REST, LONGEST_REST, LONGEST_REST]
    assert known.rests_until(0, "evaluate", t) and not known.rests_until(1, "train", t)
