"""Markdown's pieces that the written tables share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ("method",)) -> str:
    """Columns with these headings to the left, as names are; the others, numbers, to the right."""
    rule = [":--" if heading in left else "--:" for heading in headings]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))


def bullets(texts: Iterable[str]) -> str:
    return "".join(f"- {text}\n" for text in texts)


def escaped(name: str) -> str:
    """So that a name is read as it is written.

    >>> escaped("a|b*")
    'a\\\\|b\\\\*'
    """
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", name)
