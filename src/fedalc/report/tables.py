"""Comparison tables for the terminal and Markdown: one row per method, seeds merged, best values bold."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedalc.core.registry import METRICS, NAME
from fedalc.report.differences import differences
from fedalc.report.summary import (
    Reader,
    Result,
    Row,
    Statistic,
    merge,
    number,
    number_at,
    per_client,
    small_test,
    text,
    total_bytes,
    varies,
)

if TYPE_CHECKING:
    from rich.table import Table

MISSING = "–"
LONG = 24  # characters of a name from which it may be broken


def fixed(value: float | None, digits: int) -> str:
    """Format a number for a table cell.

    >>> fixed(3.14159, 2), fixed(-0.001, 2), fixed(None, 2), fixed(float("nan"), 2)
    ('3.14', '0.00', '–', 'nan')
    """
    return MISSING if value is None else f"{value:z.{digits}f}"


def _significant(value: float | None) -> str:
    return MISSING if value is None else f"{value:#.3g}".removesuffix(".")


def human_bytes(n: float | None) -> str:
    """Format bytes with three significant digits and decimal units.

    >>> human_bytes(999), human_bytes(1536), human_bytes(9_843_101_696)
    ('999 B', '1.54 kB', '9.84 GB')
    """
    if n is None or not math.isfinite(n):
        return MISSING if n is None else str(n)
    if abs(n) < 1000:
        return f"{n:.0f} B" if round(abs(n)) < 1000 else "1.00 kB"
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        n /= 1000
        if abs(n) < 999.5 or unit == "PB":  # 999.5 would print as 1000
            break
    return f"{n:.{2 if abs(n) < 9.995 else 1 if abs(n) < 99.95 else 0}f} {unit}"


def human_seconds(s: float | None) -> str:
    """Format a duration with its two largest units.

    >>> human_seconds(0.0549), human_seconds(2.087), human_seconds(150.1), human_seconds(3725)
    ('55 ms', '2.1 s', '2 min 30 s', '1 h 2 min')
    """
    if s is None or not math.isfinite(s):
        return MISSING if s is None else str(s)
    if s < 0.9995:
        return f"{s * 1000:.0f} ms" if s >= 0.00995 or s == 0 else f"{s * 1000:.1f} ms"
    if s < 59.95:
        return f"{s:.1f} s"
    if round(s) < 3600:
        return f"{round(s) // 60} min {round(s) % 60} s"
    minutes = round(s / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(s / 3600)
    return f"{hours // 24} d {hours % 24} h"


@dataclass(frozen=True)
class Column:
    """A column. A narrow terminal hides columns with a high `leave_out` first, those below 1 only if it is very
    narrow, and never those with 0."""

    heading: str
    read: Reader
    show: Callable[[float | None], str]
    higher_is_better: bool = False
    lower_is_better: bool = False
    with_deviation: bool = True
    optional: bool = False
    leave_out: float = 0

    def parts(self, row: Row) -> tuple[str, str]:
        """Return the mean, and the deviation or ""."""
        value = row.statistic(self.read)
        if value is None or value.deviation is None or not self.with_deviation:
            return self.show(None if value is None else value.mean), ""
        return self.show(value.mean), self.show(value.deviation)


def _percent(name: str, leave_out: float = 0, optional: bool = False) -> Column:
    read = number("metrics", name)
    return Column(name, read, lambda x: fixed(x, 2), higher_is_better=True, leave_out=leave_out, optional=optional)


def _error_rate(name: str, leave_out: float = 0) -> Column:
    read = number("metrics", name)
    return Column(name, read, lambda x: fixed(x, 2), lower_is_better=True, leave_out=leave_out, optional=True)


def _further(name: str) -> Column:
    """A metric for which larger is better unless its registration says otherwise."""
    larger_is_better = getattr(METRICS[name], "larger_is_better", True) if name in METRICS else True
    return replace(_percent(name, leave_out=2), higher_is_better=larger_is_better, lower_is_better=not larger_is_better)


_METRIC_COLUMNS = (
    _percent("P@1"),
    _percent("P@3", leave_out=0.2),
    _percent("P@5", leave_out=0.3),
    _percent("nDCG@5", leave_out=4),
    _percent("PSP@5", leave_out=3),
    _percent("mAP", leave_out=2, optional=True),
)
_VERIFICATION_COLUMNS = (
    _error_rate("EER"),
    _error_rate("EER-others", leave_out=0.35),
    _error_rate("EER-strangers", leave_out=0.35),
    _percent("TPR@FAR0.001", optional=True),
    _percent("TPR@FAR0.001-others", leave_out=0.35, optional=True),
    _percent("TPR@FAR0.001-strangers", leave_out=0.35, optional=True),
    _percent("P@1", leave_out=0.2),
)
# In the report page only:
_NOT_SHOWN = ("nDCG@1", "nDCG@3", "PSP@1", "PSP@3", "R@1", "R@3", "R@5", "micro-F1", "macro-F1")
_OTHER_COLUMNS = (
    Column("max cosine", number("collapse", "max_cosine"), lambda x: fixed(x, 3), leave_out=0.4),
    Column("mean cosine", number("collapse", "mean_cosine"), lambda x: fixed(x, 3), leave_out=6),
    Column("effective rank", number("collapse", "effective_rank"), lambda x: fixed(x, 1), leave_out=5),
    Column("rounds", number("rounds"), lambda x: fixed(x, 1).removesuffix(".0"), with_deviation=False, leave_out=0.5),
    Column("seconds /round", number("seconds_per_round"), _significant, with_deviation=False, leave_out=1),
    Column("up per client", per_client("bytes_up"), human_bytes, with_deviation=False, leave_out=1),
    Column("total bytes", total_bytes, human_bytes, with_deviation=False, leave_out=0.6),
)


@dataclass(frozen=True)
class Cell:
    value: str
    deviation: str = ""
    bold: bool = False

    def line(self) -> str:
        return f"{self.value} ± {self.deviation}" if self.deviation else self.value


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Return the columns to show: further metrics, such as registered ones, after those that every table has; no
    optional column that no row has."""
    names = (name for row in rows for result in row.results for name in result.get("metrics") or ())
    found = dict.fromkeys(names)
    first = _VERIFICATION_COLUMNS if "EER" in found else _METRIC_COLUMNS
    shown = {*(column.heading for column in (*first, *_METRIC_COLUMNS)), *_NOT_SHOWN}
    others = (name for name in found if NAME.fullmatch(name) and name not in shown)
    columns = [*first, *map(_further, others), *_OTHER_COLUMNS]
    return [c for c in columns if not c.optional or any(row.statistic(c.read) for row in rows)]


def column_cells(column: Column, rows: Sequence[Row]) -> list[Cell]:
    """Return a column's cells. The best of a dataset's federated rows is bold, if there are several.

    Values that print equal count as equal. Oracles do not compete: they see all data.
    """
    best: dict[str, float] = {}
    contest, better = column.higher_is_better or column.lower_is_better, min if column.lower_is_better else max
    shown = [_shown(row.statistic(column.read)) if contest and not row.centralised else None for row in rows]
    for row, value in zip(rows, shown, strict=True):
        if value is not None:
            best[row.dataset] = better(value, best.get(row.dataset, value))
    federated = Counter(row.dataset for row in rows if not row.centralised)
    contested = {dataset for dataset, count in federated.items() if count > 1}
    return [
        Cell(*column.parts(row), bold=value is not None and row.dataset in contested and value == best[row.dataset])
        for row, value in zip(rows, shown, strict=True)
    ]


def _shown(value: Statistic | None) -> float | None:
    return None if value is None or math.isnan(value.mean) else float(fixed(value.mean, 2))


def name_columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Return the columns that identify a row: the method, and dataset, preset and seeds if they matter."""
    names = [(key, [getattr(row, key) for row in rows]) for key in ("dataset", "preset") if varies(rows, key)]
    names.append(("method", [row.method for row in rows]))
    if any(row.seeds > 1 for row in rows):
        names.append(("seeds", [str(row.seeds) for row in rows]))
    return names


def markdown_table(results: Iterable[Result]) -> str:
    """Return a Markdown table of finished results and the settings that differ. Ends in a newline."""
    rows = merge(results)
    columns = columns_of(rows)
    names = [
        (heading, [escaped(value) + _mark(heading, row) for value, row in zip(values, rows, strict=True)])
        for heading, values in name_columns(rows)
    ]
    table = [[heading, *values] for heading, values in names]
    for column in columns:
        lines = [f"**{cell.line()}**" if cell.bold else cell.line() for cell in column_cells(column, rows)]
        table.append([column.heading.replace(" /", "/"), *lines])
    rule = [":--"] * len(names) + ["--:"] * len(columns)
    header, *body = zip(*table, strict=True)
    lines = [f"| {' | '.join(line)} |" for line in (header, rule, *body)]
    for note in small_test_notes(rows):
        lines += ["", escaped(note)]
    if (found := differences(rows)) is not None:
        before = ""
        for line in map(escaped, found.as_text()):  # blank lines around a list
            lines += [line] if line.startswith("- ") and before.startswith("- ") else ["", line]
            before = line
    return "".join(f"{line}\n" for line in lines)


def _mark(heading: str, row: Row) -> str:
    return " (collapsed)" if heading == "method" and row.collapsed else ""


def edge_notes(rows: Iterable[Row]) -> list[str]:
    """Return notes on oracles whose best value is the smallest or largest tried: one beyond may be better."""
    notes = []
    for row in rows:
        for selection in (result.get("selection") or {} for result in row.results):
            for choice, setting in (("penalty", "ovr.penalties"), ("epochs", "mlp.epochs")):
                value = number_at(selection, choice)
                if value is not None and (edge := selection.get("edge")):
                    best = f"the best {'penalty' if choice == 'penalty' else 'number of epochs'}"
                    notes.append(f"{row.method}: {best}, {value:g}, is the {text(edge)} tried ({setting})")
    return list(dict.fromkeys(notes))


def small_test_notes(rows: Iterable[Row]) -> list[str]:
    """Return notes on metrics that mean little, as the test set is small."""
    notes = [f"{row.dataset}: {why}" for row in rows for result in row.results if (why := small_test(result))]
    return list(dict.fromkeys(notes))


def escaped(name: str) -> str:
    """Escape a name for Markdown.

    >>> escaped("a|b*")
    'a\\\\|b\\\\*'
    """
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", name)


def rich_table(results: Iterable[Result], width: int | None = None) -> Table:
    """Return a table for the terminal.

    Below it: hidden columns (if `width`, default the terminal's, is too small), test sets that are too small, penalties
    at the edge of the grid, and settings that differ.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = merge(results)
    names, columns = name_columns(rows), columns_of(rows)
    cells = {column.heading: column_cells(column, rows) for column in columns}
    mark = "collapsed" if any(row.collapsed for row in rows) else ""
    names_width = sum(1 + min(LONG, max(map(len, (heading, *values, mark)))) for heading, values in names)
    left_out = []
    while names_width + sum(1 + _width(c, cells[c.heading]) for c in columns) > (width or _terminal_width()):
        goes = max(columns, key=lambda c: c.leave_out)
        if goes.leave_out == 0:
            break
        columns.remove(goes)
        left_out.append(goes.heading.replace(" /", "/"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, caption_justify="left")
    hidden = [f"hidden columns (widen the terminal): {', '.join(left_out)}"] if left_out else []
    notes = [*hidden, *small_test_notes(rows), *edge_notes(rows)]
    if (found := differences(rows)) is not None:
        notes += found.as_text()
    table.caption = Text("\n".join(notes)) if notes else None  # Text: a name is not markup
    for heading, values in names:
        wraps = heading != "method" or max(map(len, values), default=0) > LONG
        table.add_column(heading, no_wrap=not wraps, overflow="fold")
    for column in columns:
        least = _width(column, cells[column.heading])  # rich may fold names, and must not cut figures
        table.add_column(column.heading.replace(" ", "\n"), justify="right", no_wrap=True, min_width=least)
    for index, row in enumerate(rows):
        line = [Text(values[index]) for _, values in names]  # Text, not str: a name is not markup
        if row.collapsed:
            line[[heading for heading, _ in names].index("method")].append("\ncollapsed", style="red")
        for column in columns:
            cell = cells[column.heading][index]
            deviation = f"\n±{cell.deviation}" if cell.deviation else ""
            line.append(Text.assemble((cell.value, "bold" if cell.bold else ""), deviation))
        table.add_row(*line)
    return table


def _width(column: Column, cells: Sequence[Cell]) -> int:
    pieces = [piece for cell in cells for piece in (cell.value, f"±{cell.deviation}" if cell.deviation else "")]
    return max(map(len, [*column.heading.split(" "), *pieces]))


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns
