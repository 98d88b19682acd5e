"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def write_text(path: Path, text: str) -> None:
    """All of it or nothing, as `whole_file` does."""
    with whole_file(path) as file:
        file.write(text)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """To write to: beside its place, and moved there once all of it is written. A link's target is what is written.

    The name beside it is nobody else's: two processes may write the same file at once, and the last one's stays.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe: nothing to replace
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
