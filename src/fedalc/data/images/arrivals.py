"""Rows that another thread makes one by one, and waiting for them."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from fedalc.errors import FedalcError

_SECONDS_TO_STOP = 10.0
"""The process ends after this. A picture takes less, but finding the next one in an archive may take longer."""
_under_way: dict[Arrivals, threading.Thread] = {}


class Arrivals:
    """Tracks which rows exist. If making them fails, every current and later `wait` raises the error."""

    def __init__(self, count: int) -> None:
        self._here = np.zeros(count, dtype=bool)
        self._change = threading.Condition()
        self._urgent: deque[int] = deque()
        self._error: BaseException | None = None
        self._stopped = False

    def in_order(self, rows: Iterable[int]) -> Iterator[int]:
        """Yield each row once; rows that a `wait` is waiting for come first."""
        begun = np.zeros(len(self._here), dtype=bool)
        for row in rows:
            while self._urgent:
                urgent = self._urgent.popleft()
                if not begun[urgent]:
                    begun[urgent] = True
                    yield urgent
            if not begun[row]:
                begun[row] = True
                yield row

    def note(self, row: int) -> None:
        """Mark a row as done. Raises if the process is about to end."""
        with self._change:
            if self._stopped:
                raise FedalcError("stopped because the process ends")
            self._here[row] = True
            self._change.notify_all()

    def wait(self, rows: np.ndarray) -> None:
        """Wait until all of these rows are done."""
        with self._change:
            # One by one: checking all rows at every arrival would take quadratic time.
            missing = rows[~self._here[rows]].tolist()
            self._urgent.extend(missing)
            for row in missing:
                while not self._here[row] and self._error is None:
                    self._change.wait()
            if self._error is not None:
                raise self._error

    def make_beside(self, work: Callable[[], None]) -> None:
        """Run work that notes every row in a separate thread, which does not keep the process from ending."""
        thread = threading.Thread(target=self._make, args=(work,), name="small copies", daemon=True)
        _under_way[self] = thread
        thread.start()

    def _make(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again in `wait`
            with self._change:
                self._error = error
                self._change.notify_all()
        finally:
            _under_way.pop(self, None)

    def stop(self) -> None:
        """Stop at the next row. Work that has made all its rows still finishes."""
        with self._change:
            self._stopped = True


@atexit.register
def _stop_all() -> None:
    """Stop the threads at exit; each removes its unfinished work if there is time."""
    for arrivals, thread in list(_under_way.items()):
        arrivals.stop()
        thread.join(_SECONDS_TO_STOP)
