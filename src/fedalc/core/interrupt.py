"""Stop gracefully: the first Ctrl-C (or SIGTERM) asks the training loop to finish its round and save.

A second Ctrl-C stops at once. A second SIGTERM does not, and with several processes no second signal does: there each
signal comes twice, from the cluster and from `torchrun`, which itself kills processes that take too long.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from fedalc.core import distributed


class Interrupt:
    """In its `with` block, the first signal sets `asked`. Outside the main thread signals do nothing."""

    def __init__(self) -> None:
        self.asked = False
        self.on_asked: Callable[[], None] = lambda: None  # to tell the user
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT and distributed.here().count == 1:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked = True
            with suppress(RuntimeError):  # the signal came while a line was being written: say nothing
                self.on_asked()
