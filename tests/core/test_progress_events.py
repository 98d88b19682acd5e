"""Progress events of long steps: who receives them, and what they show."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from fedalc import train
from fedalc.core.progress_events import watched, watching
from fedalc.training.base import Callback
from fedalc.workflows.progress_bars import LiveProgress, PlainProgress
from tests.problems import small_dataset

Told = list[tuple[str, int, int]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def watcher(told: Told) -> Callable[[str, int, int], None]:
    return lambda *word: told.append(word)


def test_an_item_is_done_when_the_next_is_asked_for(told: Told, watcher: Callable[[str, int, int], None]) -> None:
    with watching(watcher):
        items = watched("letters", ["ab", "c"], total=3, size=len)
        assert next(items) == "ab"
        assert told == [("letters", 0, 3)]
        assert list(items) == ["c"]
    assert told == [("letters", 0, 3), ("letters", 2, 3), ("letters", 3, 3)]


def test_a_step_left_early_is_over_too(told: Told, watcher: Callable[[str, int, int], None]) -> None:
    with watching(watcher):
        for _ in watched("numbers", range(5), total=5):
            break
    assert told == [("numbers", 0, 5), ("numbers", 5, 5)]


def test_nobody_is_told_outside(told: Told, watcher: Callable[[str, int, int], None]) -> None:
    with watching(watcher):
        pass
    assert list(watched("numbers", range(3), total=3)) == [0, 1, 2]
    assert told == []


class Parts(Callback):
    def __init__(self) -> None:
        self.told: Told = []

    def part(self, what: str, done: int, total: int) -> None:
        self.told.append((what, done, total))


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_a_run_tells_of_its_rounds_its_server_and_its_test(engine: str) -> None:
    data, parts = small_dataset(), Parts()
    settings = {"method": "fedaws", "engine": engine, "rounds": 1, "encoder": {"dim": 4}, "block_rows": 16}
    train(data=data, callbacks=[parts], selection={"validation": 0.0}, **settings)
    held = int((data.train.labels.getnnz(axis=1) > 0).sum())
    clients = int((data.train.labels.getnnz(axis=0) > 0).sum())
    if engine == "fused":
        steps = [("instances", min(done, held), held) for done in range(0, held + 16, 16)]
    else:
        steps = [("clients", done, clients) for done in range(clients + 1)]
    labels, tested = len(data.label_names), len(data.test)
    drawn = [("class embeddings", done, labels) for done in (0, 4, labels)]  # four at a time, as they have four numbers
    server = [("classes", 0, labels), ("classes", labels, labels)]
    scored = [(what, done, tested) for what in ("instances encoded", "instances ranked") for done in (0, tested)]
    assert parts.told == drawn + steps + server + scored


def test_a_long_part_has_a_bar_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    progress = LiveProgress(Console(file=shown, force_terminal=True, width=100), "fedavg")
    progress.phase("fit", 3, 0)
    progress.part("instances ranked", 0, 4)
    progress.part("instances ranked", 1, 4)
    progress._bar.refresh()
    assert "ranked" not in shown.getvalue()
    monkeypatch.setattr("fedalc.workflows.progress_bars.SHOWN_AFTER", -1.0)
    progress.part("instances ranked", 2, 4)
    progress._bar.refresh()
    assert "instances ranked" in shown.getvalue() and "2/4" in shown.getvalue()
    progress.part("instances ranked", 4, 4)
    assert len(progress._bar.tasks) == 1
    progress.close()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_wish_to_stop_is_answered(terminal: bool) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=100)
    (LiveProgress if terminal else PlainProgress)(console, "fedavg").stopping()
    assert shown.getvalue() == "stopping as soon as this round is finished and saved; Ctrl-C again stops at once\n"


def test_without_bars_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("fedalc.workflows.progress_bars.time.monotonic", lambda: now[0])
    said = io.StringIO()
    progress = PlainProgress(Console(file=said, width=100), "fedavg")
    progress.part("classes", 1, 2)
    progress.phase("fit", 3, 0)
    progress.round(1, 0.5)
    for seconds in range(0, 161, 20):
        now[0] = 1000.0 + seconds
        progress.part("instances ranked", 100 * seconds, 20_000)
    assert said.getvalue().splitlines() == [
        "fedavg fit 1/3, then 8,000 of 20,000 instances ranked",
        "fedavg fit 1/3, then 16,000 of 20,000 instances ranked",
    ]
