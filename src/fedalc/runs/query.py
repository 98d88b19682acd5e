"""Filters and sorts runs: `dataset=bibtex`, `P@1>60`, `server.ridge<=1`, `size>1GB`, `name~demo`."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedalc.config.schema import NONE
from fedalc.core.blocks import read_bytes
from fedalc.errors import ConfigError
from fedalc.runs.listing import RunEntry

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
CONTAINS = "~"


@dataclass(frozen=True)
class Condition:
    """`key operator value`. Two numbers compare as numbers, anything else as text."""

    key: str
    sign: str
    value: str

    def holds(self, run: RunEntry) -> bool:
        """Return whether the run has a value for which this is true. A run without this value is only "not equal"."""
        found = run.value(self.key)
        if found is None and self.key not in run.fields:
            return self.sign == "!="
        if self.sign == CONTAINS:
            return self.value.lower() in written(found).lower()
        here, wanted = number(found, self.key), number(self.value, self.key)
        if here is None or wanted is None:
            return OPERATORS[self.sign](written(found), self.value)
        return OPERATORS[self.sign](here, wanted)


def parse(text: str) -> Condition:
    """Parse a condition.

    >>> parse("P@1>=60")
    Condition(key='P@1', sign='>=', value='60')
    """
    found = re.fullmatch(r"\s*([^=<>!~]+?)\s*(!=|>=|<=|=|>|<|~)\s*([^=<>!~\s].*?)\s*", text)
    if found is None:
        raise ConfigError(
            f"expected a name, one of {' '.join((*OPERATORS, CONTAINS))} and a value, such as dataset=bibtex or "
            f"'P@1>60'; found {text!r:.60}",
            "--where",
        )
    return Condition(*found.groups())


def matching(runs: Iterable[RunEntry], conditions: Sequence[Condition]) -> list[RunEntry]:
    """Return the runs for which all conditions hold. A name that no run knows is an error."""
    runs = list(runs)
    for condition in conditions:
        check_known(runs, condition.key, "--where")
        _check_comparable(runs, condition)
    return [run for run in runs if all(condition.holds(run) for condition in conditions)]


def _check_comparable(runs: Sequence[RunEntry], condition: Condition) -> None:
    """Refuse to ask which numbers are larger or smaller than a word."""
    ordered = condition.sign in OPERATORS and condition.sign not in ("=", "!=")
    numbers = any(number(run.value(condition.key), condition.key) is not None for run in runs)
    if ordered and numbers and number(condition.value, condition.key) is None:
        raise ConfigError(f"{condition.key} is a number: compare it with one, not with {condition.value!r}", "--where")


def in_order(runs: Iterable[RunEntry], key: str, reverse: bool = False) -> list[RunEntry]:
    """Return the runs by a value: the largest numbers and latest times first, text from A. Runs without it go last."""
    runs = list(runs)
    check_known(runs, key, "--sort")
    there = [run for run in runs if run.value(key) is not None]
    numbers = all(number(run.value(key), key) is not None for run in there)
    read: Callable[[RunEntry], Any] = lambda run: number(run.value(key), key) if numbers else written(run.value(key))  # noqa: E731
    there.sort(key=read, reverse=(numbers or key == "when") != reverse)
    return there + [run for run in runs if run.value(key) is None]


def check_known(runs: Sequence[RunEntry], key: str, option: str) -> None:
    known = {name: None for run in runs for name in run.fields}
    if runs and key not in known:
        close = difflib.get_close_matches(key, list(known), n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise ConfigError(
            f"no run has {key!r:.60}{hint} There are name, status, dataset, method, rounds, when, size, metrics (P@1) "
            "and settings (server.ridge)",
            option,
        )


def number(value: Any, key: str) -> float | None:
    """Return a value as a number, or None. Sizes may have a unit."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(read_bytes(value)) if key == "size" else float(value)
    except (TypeError, ValueError):
        return None


def written(value: Any) -> str:
    """Return a value as in --set."""
    if value is None or isinstance(value, bool):
        return NONE if value is None else str(value).lower()
    return str(value)
