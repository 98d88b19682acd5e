"""The panels of a learning-curve figure, with points from histories that may have gaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedalc.report.summary import number_at, total_bytes

Record = Mapping[str, Any]
Histories = Mapping[str, Sequence[Record]]
Points = list[tuple[float, float]]

# Metrics of a round: name in the records, label of the axis. The first one that a run has is shown.
WATCHED = {
    "validation mAP": "mAP on validation data (%)",
    "test mAP": "mAP on the test set, for the curve only (%)",
    "validation P@1": "P@1 on validation data (%)",
    "test P@1": "P@1 on the test set, for the curve only (%)",
}
SQUEEZED = 4  # if histories differ in length by this factor, the axis of rounds is logarithmic


@dataclass(frozen=True)
class Panel:
    """One panel: labelled axes and each method's points, ordered by round."""

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
    """Return four panels: P@1 or mAP by round and by bytes, loss, and largest cosine."""
    curves = {name: curve_records(records) for name, records in histories.items()}
    watched = watched_metric(record for records in curves.values() for record in records) or next(iter(WATCHED))
    precision, title = WATCHED[watched], "mAP" if watched.endswith("mAP") else "Precision"

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
            title,
            rounds,
            precision,
            {name: _points(records, _round, quality) for name, records in curves.items()},
            log_x,
            note="not evaluated by round",
        ),
        Panel(
            "bytes",
            f"{title} by traffic",
            "bytes sent and received, all clients (log scale)",
            precision,
            {name: [(x, y) for x, y in points if x > 0] for name, points in traffic.items()},
            log_x=True,
            note="not evaluated by round",
        ),
        Panel(
            "loss",
            "Training loss" + (" (zeros not shown)" if hidden else ""),
            rounds,
            "loss (log scale)" if log_y else "loss",
            positive if log_y else loss,
            log_x,
            log_y,
            note="no finite loss",
        ),
        Panel(
            "cosine",
            "Collapse of W (above the dotted line: collapsed)",
            rounds,
            "largest cosine of two labels",
            cosine,
            log_x,
            note="not measured",
        ),
    ]


def curve_records(records: Sequence[Record]) -> list[Record]:
    """Return the records of the phase to plot: `select`, evaluated on validation data, or else `fit`."""
    for phase in ("select", "fit", "refit"):
        found = [record for record in records if record.get("phase") == phase]
        if found:
            return sorted(found, key=lambda record: _round(record) or 0)
    return []


def _round(record: Record) -> float | None:
    return number_at(record, "round")


def watched_metric(records: Iterable[Record]) -> str | None:
    """Return the metric that the rounds were evaluated on, or None. One panel never mixes two."""
    found = {name for record in records for name in record.get("metrics") or ()}
    return next((name for name in WATCHED if name in found), None)


def _points(records: Iterable[Record], x: Any, y: Any) -> Points:
    """Return the finite points: a loss that became NaN leaves a gap, not an error."""
    pairs = ((x(record), y(record)) for record in records)
    return [(a, b) for a, b in pairs if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)]


def _very_different(curves: Iterable[Sequence[Record]]) -> bool:
    """Return whether the shortest history would be too small to see beside the longest."""
    rounds = [[_round(record) or 0 for record in records] for records in curves if records]
    lasts = [max(numbers) for numbers in rounds]
    return bool(rounds) and min(map(min, rounds)) > 0 and max(lasts) >= SQUEEZED * min(lasts)
