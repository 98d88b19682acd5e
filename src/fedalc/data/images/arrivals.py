"""Rows that arrive one by one from another thread, and those who wait for them."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from fedalc.errors import FedalcError

_SECONDS_TO_STOP = 10.0
"""After that the process ends all the same. A picture takes less, but not a long way to the next one in an archive."""
_under_way: dict[Arrivals, threading.Thread] = {}


class Arrivals:
    """Which rows are there. Once their making has failed, whoever waits or comes later is told why."""

    def __init__(self, count: int) -> None:
        self._here = np.zeros(count, dtype=bool)
        self._change = threading.Condition()
        self._asked: deque[int] = deque()
        self._error: BaseException | None = None
        self._stopped = False

    def in_order(self, rows: Iterable[int]) -> Iterator[int]:
        """Each row once: whatever somebody waits for comes before its turn."""
        begun = np.zeros(len(self._here), dtype=bool)
        for row in rows:
            while self._asked:
                asked = self._asked.popleft()
                if not begun[asked]:
                    begun[asked] = True
                    yield asked
            if not begun[row]:
                begun[row] = True
                yield row

    def note(self, row: int) -> None:
        """The row is there. Raises where the process is about to end."""
        with self._change:
            if self._stopped:
                raise FedalcError("stopped, as the process ends")
            self._here[row] = True
            self._change.notify_all()

    def wait(self, rows: np.ndarray) -> None:
        """Until all of them are there."""
        with self._change:
            # One after the other: to look at all of them whenever one arrives would take the square of their number.
            missing = rows[~self._here[rows]].tolist()
            self._asked.extend(missing)
            for row in missing:
                while not self._here[row] and self._error is None:
                    self._change.wait()
            if self._error is not None:
                raise self._error

    def make_beside(self, work: Callable[[], None]) -> None:
        """Work that notes every row, in a thread of its own. It does not keep the process from ending."""
        thread = threading.Thread(target=self._make, args=(work,), name="small copies", daemon=True)
        _under_way[self] = thread
        thread.start()

    def _make(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again where rows are waited for
            with self._change:
                self._error = error
                self._change.notify_all()
        finally:
            _under_way.pop(self, None)

    def stop(self) -> None:
        """With the next row, if there is one: what has all its rows is brought to its end."""
        with self._change:
            self._stopped = True


@atexit.register
def _stop_all() -> None:
    """What was begun is cleared away by its own thread, if that has the time."""
    for arrivals, thread in list(_under_way.items()):
        arrivals.stop()
        thread.join(_SECONDS_TO_STOP)
