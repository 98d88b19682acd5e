"""How long to wait between two looks for something: longer the longer it has not come, and while looking takes long."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST = 0.1  # seconds
PART = 20  # of the time waited so far: a wait ends at most a twentieth late
TIMES = 5  # the time that a look takes: whoever is asked has other things to do, and does them late if asked too often


def pause_after(waited: float, most: float, took: float = 0.0) -> float:
    """Return the seconds to the next look.

    >>> [pause_after(waited, most=3) for waited in (0, 10, 40, 3600)]
    [0.1, 0.5, 2.0, 3]
    >>> pause_after(0, most=3, took=0.3)
    1.5
    """
    return min(most, max(SHORTEST, waited / PART, took * TIMES))


class Pauses:
    """Replaces Flower's `time` in a SuperNode. `idle`: is called with the seconds since the last message."""

    def __init__(self, idle: Callable[[float], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._idle, self._clock = idle, clock
        self._last, self._took = clock(), 0.0

    def message(self) -> None:
        """Note that a message came or was answered."""
        self._last = self._clock()

    def ask(self, ask: Callable[[], object]) -> object:
        """Ask for a message, and return it."""
        began = self._clock()
        received = ask()
        self._took = self._clock() - began
        if received is not None:
            self.message()
        return received

    def sleep(self, most: float) -> None:
        waited = self._clock() - self._last
        self._idle(waited)
        time.sleep(pause_after(waited, most, self._took))
