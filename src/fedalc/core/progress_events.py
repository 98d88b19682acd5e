"""Report the progress of long steps to an observer, without passing a callback through every function.

for part in watched("scoring", parts, size=len, total=len(instances)):   # within the step
    ...

with watching(show):   # around it, where progress is shown
    step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Watcher = Callable[[str, int, int], None]
"""Called with the name of a step, how much is done, and the total. The last call of a step says that all is done."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Report all steps to `watcher`, and to no other watcher."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(what: str, items: Iterable[Item], total: int, size: Callable[[Item], int] = lambda _: 1) -> Iterator[Item]:
    """Yield the items and report progress. An item counts as done when the next one is requested."""
    watcher = _watcher.get()
    if watcher is None:
        yield from items
        return
    done = 0
    watcher(what, done, total)
    try:
        for item in items:
            yield item
            done += size(item)
            watcher(what, done, total)
    finally:
        if done != total:  # left early
            watcher(what, total, total)
