"""The table as Markdown and for the terminal: published figures beside ours, the best federated ones bold."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedalc.report.tables import MISSING, Cell, escaped, fixed
from fedalc.reproduction import markdown as md
from fedalc.reproduction.results import Line, Outcome

if TYPE_CHECKING:
    from rich.table import Table

IN_WORDS = {"clean": "preset paper on the split that does not leak"}  # columns that are more than a preset
MARKS = "¹²³⁴⁵⁶⁷⁸⁹"


@dataclass(frozen=True)
class Column:
    """One metric of one group: the published figures, or ours with one preset."""

    group: str
    metric: str
    cells: list[Cell]


def columns(outcome: Outcome) -> list[Column]:
    found = []
    if any(line.published for line in outcome.lines):
        for place, metric in enumerate(outcome.metrics):
            values = [line.published[place] if line.published else None for line in outcome.lines]
            cells = [Cell(fixed(value, 2) if value is not None else "") for value in values]
            found.append(_bold(Column("published", metric, cells), outcome.lines, values))
    for preset in outcome.presets:
        for place, metric in enumerate(outcome.metrics):
            cells, values = [], []
            for line in outcome.lines:
                cell = _ours(line, preset, metric, with_reason=place == 0)
                cells.append(cell)
                values.append(float(cell.value) if _is_number(cell.value) else None)
            found.append(_bold(Column(f"ours, {preset}", metric, cells), outcome.lines, values))
    return found


def _ours(line: Line, preset: str, metric: str, with_reason: bool) -> Cell:
    cell = line.cells.get(preset)
    if cell is None:
        return Cell("")  # the preset does not have this cell
    value = cell.statistic(metric)
    if value is not None:
        return Cell(fixed(value.mean, 2), "" if value.deviation is None else fixed(value.deviation, 2))
    if cell.results:
        return Cell(f"{MISSING} no {metric}")  # at least one run lacks it
    why = next(iter(cell.missing.values()), "not run").partition(":")[0]
    return Cell(f"{MISSING} {why}" if with_reason else MISSING)


def _bold(column: Column, lines: Sequence[Line], values: Sequence[float | None]) -> Column:
    """Mark the best federated method if there are several. Oracles do not count: they see all data."""
    contest = [v for v, line in zip(values, lines, strict=True) if v is not None and not line.centralised]
    best = max(contest) if len(contest) > 1 else None
    cells = [
        Cell(cell.value, cell.deviation, bold=value is not None and value == best and not line.centralised)
        for cell, value, line in zip(column.cells, values, lines, strict=True)
    ]
    return Column(column.group, column.metric, cells)


def _is_number(text: str) -> bool:
    return bool(text) and not text.startswith(MISSING)


def names(outcome: Outcome) -> list[str]:
    """Return the rows' names; centralised methods and footnotes are marked."""
    marks = dict(zip(footnotes(outcome), MARKS, strict=False))
    return [
        line.name + (" (centralised)" if line.centralised else "") + marks.get(line.footnote, "")
        for line in outcome.lines
    ]


def footnotes(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(line.footnote for line in outcome.lines if line.footnote))


def strengths(outcome: Outcome) -> list[str]:
    return ["" if line.lambda_ is None else f"{line.lambda_:g}" for line in outcome.lines]


def seed_counts(outcome: Outcome) -> list[str]:
    """Return the number of seeds per row; per preset if they differ."""
    counts = [[str(len(cell.results)) for cell in line.cells.values()] for line in outcome.lines]
    return [" / ".join(found if len(set(found)) > 1 else found[:1]) for found in counts]


def remarks(outcome: Outcome) -> list[str]:
    """Return the lines below the table: footnotes, notes, and why runs failed or were left out."""
    marked = [f"{mark} {text}" for mark, text in zip(MARKS, footnotes(outcome), strict=False)]
    problems: dict[str, dict[str, None]] = {}  # grouped by reason
    for line in outcome.lines:
        for preset, cell in line.cells.items():
            for seed, why in cell.missing.items():
                if why.startswith(("left out", "failed", "other settings", "another process")):
                    place = "" if line.centralised else f" {preset}"
                    place += "" if why.startswith("left out") else f" seed {seed}"
                    problems.setdefault(why, {})[f"{line.label}{place}"] = None
    return [*marked, *outcome.notes, *(f"{'; '.join(where)}: {why}" for why, where in problems.items())]


def versions(outcome: Outcome) -> list[str]:
    """Return one line per set of package versions that the runs used."""
    return [", ".join(f"{name} {number}" for name, number in found.items()) for found in outcome.versions]


def sentence(outcome: Outcome) -> str:
    words = [IN_WORDS.get(preset, f"preset {preset}") for preset in outcome.presets]
    return (
        f"Percent on the test set of {outcome.dataset}. Published: the paper's figures for {outcome.paper}. Ours: "
        f"{' and '.join(words)}, mean ± standard deviation over seeds. Bold: the best federated figure of a column "
        "on the test set, over all λ: a choice made with the test set in view."
    )


def markdown(outcome: Outcome) -> str:
    drawn = columns(outcome)
    table = [["method", *map(escaped, names(outcome))], ["λ", *strengths(outcome)]]
    for column in drawn:
        lines = [f"**{cell.line()}**" if cell.bold else cell.line() for cell in column.cells]
        table.append([f"{column.group} {column.metric}", *lines])
    table.append(["seeds", *seed_counts(outcome)])
    headings, *body = zip(*table, strict=True)
    return (
        f"# {outcome.title}\n\n`{outcome.command}`\n\n{sentence(outcome)}\n\n{md.table(headings, body)}\n"
        + md.bullets([*remarks(outcome), *versions(outcome)])
    )


def rich_table(outcome: Outcome, width: int | None = None) -> Table:
    """Return the table for the terminal. A narrow terminal hides the second metric, then the third."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn, left_out = columns(outcome), []
    titles, room = names(outcome), width or shutil.get_terminal_size().columns
    fixed_width = min(22, max(map(len, titles))) + 1 + 4 + 6  # longer names wrap
    for metric in outcome.metrics[1:]:
        if fixed_width + sum(1 + _width(column) for column in drawn) > room:
            drawn = [column for column in drawn if column.metric != metric]
            left_out.append(metric)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, title=outcome.title, title_justify="left")
    table.caption = f"hidden columns (widen the terminal): {', '.join(left_out)}" if left_out else None
    table.add_column("method", overflow="fold")
    table.add_column("λ", justify="right", no_wrap=True)
    for column in drawn:
        table.add_column(
            f"{column.group.replace(', ', chr(10))}\n{column.metric}", justify="right", min_width=_width(column)
        )
    table.add_column("seeds", justify="right", min_width=len("seeds"))
    for index, line in enumerate(zip(titles, strengths(outcome), seed_counts(outcome), strict=True)):
        cells = [column.cells[index] for column in drawn]
        figures = [
            Text.assemble((cell.value, "bold" if cell.bold else ""), f"\n±{cell.deviation}" if cell.deviation else "")
            for cell in cells
        ]
        table.add_row(Text(line[0]), line[1], *figures, line[2])
    return table


def _width(column: Column) -> int:
    words = [word for cell in column.cells for word in cell.value.split(" ")]
    return max(map(len, [*column.group.split(", "), column.metric, *words]))
