"""Text from annotation files: names of labels, users and pictures."""

from __future__ import annotations

import re
from collections.abc import Callable

# Control characters, separators of lines, and halves of characters, which JSON can write and UTF-8 cannot.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def checked_text(text: str, field: str, error: Callable[[str], Exception]) -> str:
    """Return the text; refuse it if it cannot be printed, written to a file and cached."""
    if found := _REFUSED.search(text):
        what = "half of a character," if "\ud800" <= found[0] <= "\udfff" else "the control character"
        raise error(f"{field}: {shown(text)} has {what} {found[0]!r} in it")
    return text


def shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
