"""Reads the next block of instances while the model works on the current one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar


class Readable(Protocol):
    def prefetch(self) -> None:
        """Start reading in the background, if reading takes time."""


Block = TypeVar("Block", bound=Readable)


def one_ahead(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks, each while the next one is being read."""
    waiting: Block | None = None
    for block in blocks:
        block.prefetch()
        if waiting is not None:
            yield waiting
        waiting = block
    if waiting is not None:
        yield waiting
