"""Work on many texts in blocks, in several processes, with progress. What comes out does not depend on either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import length_hint
from typing import TypeVar

from fedalc.core.progress_events import watched
from fedalc.data.text.base import check_text

Result = TypeVar("Result")
CHARACTERS, TEXTS = 2**22, 20_000
"""A block ends after this many characters or texts."""
WORTH = 4
"""Blocks for which it is worth the seconds to start processes."""
AHEAD = 2
"""Blocks per process that are handed out at a time."""


def by_blocks(
    what: str, work: Callable[[list[str]], Result], texts: Iterable[str], workers: int | None = None
) -> Iterator[tuple[int, Result]]:
    """Yield, block by block and in order, the number of texts and what `work` returns for them.

    `workers`: processes, or None for one per processor (only one if there are few texts). `work` is sent to them with
    each block. Memory: a few blocks per process.
    """
    parts = _blocks(texts)
    first = list(islice(parts, WORTH))
    total = length_hint(texts, 0)
    results: Iterator[tuple[int, Result]]
    if workers == 1 or (workers is None and len(first) < WORTH):
        results = ((len(block), work(block)) for block in chain(first, parts))
    else:
        results = _in_processes(work, chain(first, parts), workers)
    yield from watched(what, results, total, lambda result: result[0]) if total else results


def _in_processes(
    work: Callable[[list[str]], Result], blocks: Iterable[list[str]], workers: int | None
) -> Iterator[tuple[int, Result]]:
    from joblib import Parallel, cpu_count, delayed

    count = workers or cpu_count()
    blocks = iter(blocks)
    with Parallel(count, batch_size=1) as parallel:  # its processes do not import the user's script again
        while some := list(islice(blocks, AHEAD * count)):
            yield from zip(map(len, some), parallel(delayed(work)(block) for block in some), strict=True)


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        check_text(number, text)
        block.append(text)
        size += len(text)
        if size >= CHARACTERS or len(block) >= TEXTS:
            yield block
            block, size = [], 0
    if block:
        yield block
