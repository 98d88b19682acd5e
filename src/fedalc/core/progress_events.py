"""How far a long step has come, told to whoever watches, without a callback through every function in between.

for part in watched("scoring", parts, size=len, total=len(instances)):   # within the step
    ...

with watching(show):   # around it, where there is somebody to look
    step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Watcher = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is, and of how much. The last word on a step is that all of it is."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within it, `watcher` is told of every step, and nobody else."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(what: str, items: Iterable[Item], total: int, size: Callable[[Item], int] = lambda _: 1) -> Iterator[Item]:
    """The items, as they are asked for. An item is done when the next one is asked for."""
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
