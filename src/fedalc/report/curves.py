"""What the panels of a learning-curve figure show: the points, taken from histories that may lack any of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedalc.report.summary import number_at, total_bytes

Record = Mapping[str, Any]
Histories = Mapping[str, Sequence[Record]]
Points = list[tuple[float, float]]

VALIDATION = "validation P@1"


@dataclass(frozen=True)
class Panel:
    """One panel: labelled axes and, per method, its points in the order of the rounds."""

    key: str
    title: str
    x: str
    y: str
    points: Mapping[str, Points]
    log: bool = False
    note: str = ""

    @property
    def empty(self) -> bool:
        return not any(self.points.values())


def panels(histories: Histories) -> list[Panel]:
    """Validation P@1, loss, largest cosine, and P@1 for the bytes it took."""
    curves = {name: curve_records(records) for name, records in histories.items()}
    traffic = {name: _points(records, total_bytes, _validation) for name, records in curves.items()}
    divisor, unit = _byte_unit(x for points in traffic.values() for x, _ in points)
    loss = {name: _points(records, _round, lambda r: number_at(r, "loss")) for name, records in curves.items()}
    positive = {name: [(x, y) for x, y in points if y > 0] for name, points in loss.items()}
    log = any(positive.values())
    hidden = log and positive != loss
    cosine = {
        name: _points(records, _round, lambda r: number_at(r, "collapse", "max_cosine"))
        for name, records in curves.items()
    }
    return [
        Panel(
            "validation",
            "Validation precision",
            "round",
            "P@1 on validation data (%)",
            {name: _points(records, _round, _validation) for name, records in curves.items()},
            note="no validation data",
        ),
        Panel(
            "loss",
            "Training loss" + (" (zeros not drawn)" if hidden else ""),
            "round",
            "loss (log scale)" if log else "loss",
            positive if log else loss,
            log=log,
            note="no finite loss",
        ),
        Panel(
            "cosine",
            "Collapse of W (collapsed: above the dots)",
            "round",
            "largest cosine of two labels",
            cosine,
            note="not measured",
        ),
        Panel(
            "bytes",
            "Precision for traffic",
            f"sent and received, all clients ({unit})",
            "P@1 on validation data (%)",
            {name: [(x / divisor, y) for x, y in points] for name, points in traffic.items()},
            note="no validation data",
        ),
    ]


def curve_records(records: Sequence[Record]) -> list[Record]:
    """The phase that has a curve to show: `select`, which is evaluated on validation data, or else `fit`."""
    for phase in ("select", "fit", "refit"):
        found = [record for record in records if record.get("phase") == phase]
        if found:
            return sorted(found, key=lambda record: _round(record) or 0)
    return []


def _round(record: Record) -> float | None:
    return number_at(record, "round")


def _validation(record: Record) -> float | None:
    return number_at(record, "metrics", VALIDATION)


def _points(records: Iterable[Record], x: Any, y: Any) -> Points:
    """Only whole, finite points: a loss that ran away to NaN leaves a gap, not an error."""
    pairs = ((x(record), y(record)) for record in records)
    return [(a, b) for a, b in pairs if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)]


def _byte_unit(sizes: Iterable[float]) -> tuple[float, str]:
    largest = max(sizes, default=0.0)
    for divisor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if largest >= 2 * divisor:
            return divisor, unit
    return 1e6, "MB"
