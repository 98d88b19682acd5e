"""Markdown tables and lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ("method",)) -> str:
    """Return a Markdown table. Columns whose heading is in `left` are aligned left, all others right."""
    rule = [":--" if heading in left else "--:" for heading in headings]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))


def bullets(texts: Iterable[str]) -> str:
    return "".join(f"- {text}\n" for text in texts)
