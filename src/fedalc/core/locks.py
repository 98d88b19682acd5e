"""Locks between processes. The system releases a lock when its process ends, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

GRACE_SECONDS = 0.2  # a lock that ends removes its file; whoever had just opened that file tries again


@contextmanager
def lock_file(path: Path, wait: bool = True) -> Iterator[int]:
    """Hold the lock file `path`, yield its descriptor, and remove the file at the end.

    Raises `filelock.Timeout` if another process holds it and `wait` is False. A child process that inherits the
    descriptor holds the lock too.
    """
    descriptors: list[int] = []
    timeout = -1 if wait else GRACE_SECONDS
    # A lock that is a mere file, filelock's answer to a file system without locks, would outlive its process.
    with FileLock(path, timeout, fallback_to_soft=False, on_acquired=descriptors.append):
        try:
            yield descriptors[0]
        finally:
            path.unlink(missing_ok=True)
