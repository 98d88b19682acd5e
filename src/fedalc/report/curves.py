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

# What rounds may be evaluated on, as in the records and on an axis. The first that a run has is shown.
WATCHED = {
    "validation mAP": "mAP on validation data (%)",
    "test mAP": "mAP on the test set, for the curve only (%)",
    "validation P@1": "P@1 on validation data (%)",
    "test P@1": "P@1 on the test set, for the curve only (%)",
}
SQUEEZED = 4  # histories that differ in length by this factor are drawn over the logarithm of the round


@dataclass(frozen=True)
class Panel:
    """One panel: labelled axes and, per method, its points in the order of the rounds."""

    key: str
    title: str
    x: str
    y: str
    points: Mapping[str, Points]
    log_x: bool = False
    log_y: bool = False
    note: str = ""

    @property
    def empty(self) -> bool:
        return not any(self.points.values())


def panels(histories: Histories) -> list[Panel]:
    """P@1 or mAP by round and by bytes, loss, and largest cosine."""
    curves = {name: curve_records(records) for name, records in histories.items()}
    watched = watched_metric(record for records in curves.values() for record in records) or next(iter(WATCHED))
    precision = WATCHED[watched]

    def quality(record: Record) -> float | None:
        return number_at(record, "metrics", watched)

    traffic = {name: _points(records, total_bytes, quality) for name, records in curves.items()}
    log_x = _very_different(curves.values())
    rounds = "round (log scale)" if log_x else "round"
    loss = {name: _points(records, _round, lambda r: number_at(r, "loss")) for name, records in curves.items()}
    positive = {name: [(x, y) for x, y in points if y > 0] for name, points in loss.items()}
    log_y = any(positive.values())
    hidden = log_y and positive != loss
    cosine = {
        name: _points(records, _round, lambda r: number_at(r, "collapse", "max_cosine"))
        for name, records in curves.items()
    }
    return [
        Panel(
            "validation",
            "mAP" if watched.endswith("mAP") else "Precision",
            rounds,
            precision,
            {name: _points(records, _round, quality) for name, records in curves.items()},
            log_x,
            note="not evaluated by round",
        ),
        Panel(
            "bytes",
            "Precision for traffic",
            "sent and received so far, all clients (log scale)",
            precision,
            {name: [(x, y) for x, y in points if x > 0] for name, points in traffic.items()},
            log_x=True,
            note="not evaluated by round",
        ),
        Panel(
            "loss",
            "Training loss" + (" (zeros not drawn)" if hidden else ""),
            rounds,
            "loss (log scale)" if log_y else "loss",
            positive if log_y else loss,
            log_x,
            log_y,
            note="no finite loss",
        ),
        Panel(
            "cosine",
            "Collapse of W (collapsed: above the dots)",
            rounds,
            "largest cosine of two labels",
            cosine,
            log_x,
            note="not measured",
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


def watched_metric(records: Iterable[Record]) -> str | None:
    """What the rounds were evaluated on: never two things in one panel. None: nothing."""
    found = {name for record in records for name in record.get("metrics") or ()}
    return next((name for name in WATCHED if name in found), None)


def _points(records: Iterable[Record], x: Any, y: Any) -> Points:
    """Only whole, finite points: a loss that ran away to NaN leaves a gap, not an error."""
    pairs = ((x(record), y(record)) for record in records)
    return [(a, b) for a, b in pairs if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)]


def _very_different(curves: Iterable[Sequence[Record]]) -> bool:
    """Whether the shortest history would be squeezed into a corner beside the longest."""
    rounds = [[_round(record) or 0 for record in records] for records in curves if records]
    lasts = [max(numbers) for numbers in rounds]
    return bool(rounds) and min(map(min, rounds)) > 0 and max(lasts) >= SQUEEZED * min(lasts)
