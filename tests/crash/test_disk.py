"""Each way of writing a file, with a power cut after each of its steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fedalc.core.atomic_files import write_text
from fedalc.core.tensor_folder import load_folder, save_folder
from fedalc.errors import FedalcError
from fedalc.runs import history
from tests.crash.disk import Disk, write_state
from tests.crash.operations import Operation, watching
from tests.crash.parts import CUTS

State = dict[str, bytes | None]


def recorded(folder: Path, work: Callable[[], Any]) -> list[Operation]:
    seen: list[Operation] = []

    def hook(operation: Operation, do: Callable[[], Any]) -> Any:
        result = do()
        seen.append(operation)
        return result

    folder.mkdir()
    with watching(folder, hook):
        work()
    return seen


def states(disk: Disk, shuffles: int = 8) -> Iterator[State]:
    chance = random.Random(3)
    for names, content in (*CUTS, *CUTS[-1:] * shuffles):
        yield disk.after_cut(names, content, chance)


def after(operations: list[Operation]) -> Disk:
    disk = Disk()
    for operation in operations:
        disk.do(operation)
    return disk


def test_the_model_knows_what_is_lost(tmp_path: Path) -> None:
    """Without fsync a new name may have no content, and content may have no name."""
    seen = recorded(tmp_path / "disk", lambda: (tmp_path / "disk" / "a").write_text("abcd"))
    assert [operation.kind for operation in seen] == ["create", "write"]
    found = [state.get("a") for state in states(after(seen))]
    assert {None, b"", b"ab"} <= set(found)


def test_a_file_is_on_the_disk_when_it_is_written(tmp_path: Path) -> None:
    place = tmp_path / "disk" / "new" / "file"
    first = recorded(tmp_path / "disk", lambda: write_text(place, "one"))
    assert {state["new/file"] for state in states(after(first))} == {b"one"}
    second = recorded(
        tmp_path / "again", lambda: [write_text(tmp_path / "again" / "new" / "file", t) for t in ("one", "two")]
    )
    for cut in range(len(first), len(second) + 1):
        assert {state["new/file"] for state in states(after(second[:cut]))} <= {b"one", b"two"}
    assert {state["new/file"] for state in states(after(second))} == {b"two"}


def test_a_line_of_history_is_on_the_disk_when_it_is_written(tmp_path: Path) -> None:
    place = tmp_path / "disk" / "history.jsonl"
    seen = recorded(tmp_path / "disk", lambda: [history.append(place, {"round": n}) for n in (1, 2)])
    assert {state["history.jsonl"] for state in states(after(seen))} == {b'{"round": 1}\n{"round": 2}\n'}


def test_there_is_no_moment_without_a_whole_folder(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    ends = []

    def work() -> None:
        for number in range(3):
            save_folder(disk / "saved", {"W": torch.full((9,), float(number))}, {"number": number})
            ends.append(len(seen))

    seen: list[Operation] = []
    disk.mkdir()
    with watching(disk, lambda operation, do: (do(), seen.append(operation))[0]):
        work()
    for cut in range(ends[0], len(seen) + 1):
        saved = sum(end <= cut for end in ends) - 1  # the last that save_folder has returned from
        for number, state in enumerate(states(after(seen[:cut]))):
            place = tmp_path / f"cut {cut} {number}"
            write_state(place, state)
            assert _number(place / "saved") >= saved, f"after {seen[cut - 1]}"


def _number(folder: Path) -> int:
    try:
        tensors, facts = load_folder(folder)
    except FedalcError:
        tensors, facts = load_folder(folder.with_name("saved.old"))
    assert torch.equal(tensors["W"], torch.full((9,), float(facts["number"])))
    return int(facts["number"])
