"""Reading the next instances while a model is busy with these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar


class Readable(Protocol):
    def prefetch(self) -> None:
        """Begin to read, where that takes time."""


Block = TypeVar("Block", bound=Readable)


def one_ahead(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks, each given out while the next one is being read."""
    waiting: Block | None = None
    for block in blocks:
        block.prefetch()
        if waiting is not None:
            yield waiting
        waiting = block
    if waiting is not None:
        yield waiting
