"""Limit the log, so that strangers cannot fill the disk: one line a minute per kind, with a count of the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fedalc.deployment.gate_limits import host_of

_EVERY = 60.0  # seconds between two lines of a kind
_KINDS = 1000  # that are counted separately
_LOGGERS = ("uvicorn.error", "uvicorn.access", "flwr", "asyncio")  # that a sender can make the server write to
OTHERS = ("many addresses", "too many to list")

Kind = tuple[str, str]


class Seldom:
    """Decides when a line of a kind may be written."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._written: dict[Kind, tuple[float, int]] = {}  # when, and how many lines were left out since

    def due(self, kind: Kind) -> tuple[Kind, str] | None:
        """Return None to write nothing, else the kind under which it counts, and a suffix for the line."""
        now = self.clock()
        if kind not in self._written and len(self._written) >= _KINDS:
            self._written = {known: last for known, last in self._written.items() if now - last[0] < _EVERY}
            if len(self._written) >= _KINDS:
                kind = OTHERS
        last, left_out = self._written.get(kind, (float("-inf"), 0))
        if now - last < _EVERY:
            self._written[kind] = last, left_out + 1
            return None
        self._written[kind] = now, 0
        return kind, f", and {left_out} times in the last minutes" if left_out else ""


class SeldomFilter(logging.Filter):
    """A filter for other libraries' loggers. The kind of an error is its line of code, because the sender may choose
    the text; the kind of a refused request is its address and status."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seldom = Seldom(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        kind = _kind(record)
        if kind is None:
            return True
        due = self._seldom.due(kind)
        if due is None:
            return False
        record.msg = f"{record.msg}{due[1]}"
        return True


def _kind(record: logging.LogRecord) -> Kind | None:
    """Return the kind of a record, or None if it is always written."""
    if record.name == "uvicorn.access":
        match record.args:
            case (str(address), _, _, _, int(status)) if status >= 400:
                return host_of(address.rpartition(":")[0]), str(status)
        return None
    return (record.pathname, str(record.lineno)) if record.levelno >= logging.WARNING else None


def limit_logs() -> None:
    seldom = SeldomFilter()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(seldom)
