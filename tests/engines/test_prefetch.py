from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedalc.engines.prefetch import one_ahead


@dataclass(frozen=True)
class Block:
    number: int
    events: list[str]

    def prefetch(self) -> None:
        self.events.append(f"read {self.number}")


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, []), (1, ["read 0", "use 0"]), (3, ["read 0", "read 1", "use 0", "read 2", "use 1", "use 2"])],
)
def test_each_is_used_while_the_next_and_no_other_is_read(count: int, expected: list[str]) -> None:
    events: list[str] = []
    for block in one_ahead(Block(number, events) for number in range(count)):
        events.append(f"use {block.number}")
    assert events == expected
