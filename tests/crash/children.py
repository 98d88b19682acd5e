"""Forked child processes, which start with everything imported and may die at any moment."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """`value` is the function's result, `error` a traceback; both empty if it was killed.

    `promised` is the last guarantee that it reported, which must hold after its death.
    """

    killed: bool
    value: Any
    error: str
    promised: Any


def in_child(function: Callable[[Callable[[Any], None]], Any], kill_after: float | None = None) -> Ended:
    """Call `function` in a child, kill it after `kill_after` seconds. The function's argument reports guarantees."""
    answer, told = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        _run(function, answer[1], told[1])
    os.close(answer[1])
    os.close(told[1])
    timer = None if kill_after is None else threading.Timer(kill_after, os.kill, (pid, signal.SIGKILL))
    if timer is not None:
        timer.start()
    content, said = _read(answer[0]), _read(told[0])
    if timer is not None:  # before the child is waited for: until then its id is nobody else's
        timer.cancel()
        timer.join()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    assert not killed or os.WTERMSIG(status) == signal.SIGKILL, f"ended by signal {os.WTERMSIG(status)}"
    promises = [line for line in said.split(b"\n") if line]
    value, error = (None, "") if killed else pickle.loads(content)
    return Ended(killed, value, error, eval(promises[-1]) if promises else None)


def _run(function: Callable[[Callable[[Any], None]], Any], answer: int, told: int) -> None:
    try:
        result: tuple[Any, str] = function(lambda promise: os.write(told, f"{promise!r}\n".encode()) and None), ""
    except BaseException:
        result = None, traceback.format_exc()
    with os.fdopen(answer, "wb") as out:
        pickle.dump(result, out)
    os._exit(0)


def _read(handle: int) -> bytes:
    with os.fdopen(handle, "rb") as file:
        return file.read()
