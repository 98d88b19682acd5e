"""Merge the results of several seeds into one row: mean and standard deviation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLLAPSED = 0.99  # largest cosine from which W counts as collapsed: two labels are indistinguishable

FEWEST_TESTED = 30  # test records from which metrics are shown without a note

Result = Mapping[str, Any]
Reader = Callable[[Result], float | None]


@dataclass(frozen=True)
class Statistic:
    """Mean and sample deviation (n - 1) over seeds; no deviation for a single seed."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Row:
    """One method on one dataset with one preset."""

    dataset: str
    method: str
    preset: str
    results: tuple[Result, ...]

    @property
    def seeds(self) -> int:
        return len(self.results)

    def statistic(self, read: Reader) -> Statistic | None:
        """Return mean and deviation, or None unless every seed has the value: other means would not compare."""
        values = [value for value in map(read, self.results) if value is not None]
        if not values or len(values) < len(self.results):
            return None
        if not all(map(math.isfinite, values)):
            return Statistic(math.nan)
        return Statistic(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    @property
    def centralised(self) -> bool:
        return any(result.get("centralised") for result in self.results)

    @property
    def collapsed(self) -> bool:
        largest = self.statistic(number("collapse", "max_cosine"))
        return largest is not None and largest.mean >= COLLAPSED


def merge(results: Iterable[Result]) -> list[Row]:
    """Return one row per dataset, method and preset, in order of first appearance.

    A repeated seed means other settings, so it starts a second row ("fedalc #2"). A result's "name", if any, replaces
    the method's. Oracles are marked as centralised.
    """
    groups: dict[tuple[str, str, str], list[Result]] = {}
    seen: dict[tuple[str, str, str, Any], int] = {}
    for result in results:
        dataset, preset = dataset_name(result), text(result.get("preset"))
        method = text(result.get("name") or result.get("method"))
        method += " (centralised)" if result.get("centralised") else ""
        variant = seen[dataset, method, preset, result.get("seed")] = (
            seen.get((dataset, method, preset, result.get("seed")), 0) + 1
        )
        if variant > 1:
            method = f"{method} #{variant}"
        groups.setdefault((dataset, method, preset), []).append(result)
    return [Row(*key, tuple(group)) for key, group in groups.items()]


def dataset_name(result: Result) -> str:
    """Return the dataset's name for display. Generated data with a real dataset's sizes is marked."""
    return text(result.get("dataset")) + (" (generated)" if result.get("generated") else "")


def number(*path: str) -> Reader:
    """Return a function that reads one number of a result, or None if it is missing or not a number."""

    def read(result: Result) -> float | None:
        return number_at(result, *path)

    return read


def number_at(found: Any, *path: str) -> float | None:
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def per_client(key: str) -> Reader:
    """Return a function that divides a total by the number of parties, else users, else clients."""

    def read(result: Result) -> float | None:
        senders = (number_at(result, who) for who in ("parties", "users", "clients"))
        total, clients = number_at(result, key), next((number for number in senders if number), None)
        return None if total is None or not clients else total / clients

    return read


def total_bytes(result: Mapping[str, Any]) -> float | None:
    """Return the bytes in both directions of a result or a history record."""
    up, down = number_at(result, "bytes_up"), number_at(result, "bytes_down")
    return None if up is None or down is None else up + down


def small_test(result: Result) -> str | None:
    """Say why the metrics mean little, if the test set has a single label or few records; None if it is larger."""
    records, labels = number_at(result, "test_records"), number_at(result, "test_labels")
    if not records or labels is None:  # older results do not say
        return None
    if labels <= 1:
        return "all test records have the same label or none, so the metrics say nothing about the model"
    if records < FEWEST_TESTED:
        return f"there are only {records:.0f} test records: each is {100 / records:.1f} points of P@1"
    return None


def text(value: Any) -> str:
    """Return a name that is safe to print: names come from data files and may contain control characters."""
    if value is None:
        return "–"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))


def varies(rows: Sequence[Row], key: str) -> bool:
    return len({getattr(row, key) for row in rows}) > 1
