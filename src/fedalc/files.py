"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """All of it or nothing: written beside its place, then moved there. A link's target is what is written.

    The name beside it is nobody else's: two processes may write the same file at once, and the last one's stays.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe: nothing to replace
        path.write_text(text, encoding="utf-8")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
