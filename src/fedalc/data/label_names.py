"""Label names: each is unique, so that a prediction or a pseudonym means one label."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fedalc.errors import DataError

_UNSUITABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # lone surrogates cannot be written


def repeated_name(names: Sequence[str]) -> str | None:
    """Return a name that two labels share, in any Unicode form, or None."""
    counts = _counts(names)
    if len(counts) == len(names):
        return None
    return next(name for name, times in counts.items() if times > 1)


def distinct_names(names: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """Add the label's number to names that repeat (`bank #7`). Return all names, and the labels changed."""
    counts = _counts(names)
    if len(counts) == len(names):
        return tuple(names), []
    changed = [label for label, name in enumerate(names) if counts[one_form(name)] > 1]
    distinct, taken = list(names), set(counts)
    for label in changed:
        distinct[label] = f"{names[label]} #{label}"
        while one_form(distinct[label]) in taken:  # another label has that name
            distinct[label] += "'"
        taken.add(one_form(distinct[label]))
    return tuple(distinct), changed


def checked_names(names: Any, count: int) -> tuple[str, ...]:
    """Return one name for each of `count` labels. Without names, the names are numbers."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise DataError(f"label names should be a list of texts, one per label, not {names!r:.60}")
    texts = tuple(name if isinstance(name, str) else str(name) for name in names) or tuple(map(str, range(count)))
    if len(texts) != count:
        raise DataError(f"{len(texts)} label names for {count} labels")
    if (name := repeated_name(texts)) is not None:
        first, second = [label for label, other in enumerate(texts) if one_form(other) == name][:2]
        raise DataError(f"labels {first} and {second} have the same name, {name!r}: give each a different name")
    for label, name in enumerate(texts):
        if not name.strip() or _UNSUITABLE.search(name):
            raise DataError(
                f"the name of label {label} is empty, or has a line break or another control character: {name!r:.60}"
            )
    return texts


def _counts(names: Sequence[str]) -> Counter[str]:
    return Counter(map(one_form, names))


def one_form(name: str) -> str:
    """Return the name in the Unicode form in which names are compared and hashed."""
    return unicodedata.normalize("NFC", name)
