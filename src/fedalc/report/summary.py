"""Results of several seeds merged into one row: mean and standard deviation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLLAPSED = 0.99  # from this largest cosine on, two labels can no longer be told apart: W has collapsed

Result = Mapping[str, Any]
Reader = Callable[[Result], float | None]


@dataclass(frozen=True)
class Statistic:
    """Over seeds. The deviation is the sample's (n - 1), and None for a single seed."""

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
        """None unless every seed has the value: a mean over some of them would compare unlike things."""
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
    """One row per dataset, method and preset, in the order of first appearance.

    The same seed twice is not two seeds but two variants of the settings, so it starts a second row ("fedalc #2").
    A result may carry a "name", which then stands in the place of the method's. Oracles are marked as centralised.
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
    """As it is shown: made-up data with a real dataset's sizes is marked, so that nobody takes it for the real one."""
    return text(result.get("dataset")) + (" (generated)" if result.get("generated") else "")


def number(*path: str) -> Reader:
    """Reads one number of a result; None where it is missing or not a number."""

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
    """A total of all clients, shared out evenly; of parties or users, where there are some: one has several."""

    def read(result: Result) -> float | None:
        senders = (number_at(result, who) for who in ("parties", "users", "clients"))
        total, clients = number_at(result, key), next((number for number in senders if number), None)
        return None if total is None or not clients else total / clients

    return read


def total_bytes(result: Mapping[str, Any]) -> float | None:
    """Both directions; a result's, or a history record's."""
    up, down = number_at(result, "bytes_up"), number_at(result, "bytes_down")
    return None if up is None or down is None else up + down


def text(value: Any) -> str:
    """A name as it may be shown: names come from data files, and a terminal acts on control characters."""
    if value is None:
        return "–"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))


def varies(rows: Sequence[Row], key: str) -> bool:
    return len({getattr(row, key) for row in rows}) > 1
