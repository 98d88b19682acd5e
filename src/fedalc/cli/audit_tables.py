"""The tables of `fedalc audit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedalc.audit.answers import ALONE, PARTY, RULE, SUM
from fedalc.report.plain_tables import PlainColumn, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from fedalc.audit.inversion import Inversion
    from fedalc.audit.membership import Attacked
    from fedalc.audit.statistics import Power


def inversion_table(found: Inversion, size: int, fewest: int, width: int) -> Table:
    """Return what the server reconstructs of labels with `size` records. The sum over all parties is always shown."""
    rows = [row for row in found.rows if row.size == size]
    columns = [PlainColumn("the server asks for", [row.question for row in rows])]
    for view, head, leave_out in (
        (ALONE, "alone", 3),
        (RULE, f"fewest {fewest}", 2),
        (PARTY, "party", 1),
        (SUM, "sum", 0),
    ):
        cells = [row.cells.get(view) for row in rows]
        shown = ["–" if cell is None else f"{cell.cosine:.2f} {cell.found}/{cell.records}" for cell in cells]
        columns.append(PlainColumn(head, shown, right=True, leave_out=leave_out))
    columns.append(PlainColumn("chance", [f"{row.chance:.2f}" for row in rows], right=True))
    return plain_table(columns, width)


def membership_table(rows: Sequence[Attacked], width: int) -> Table:
    """Return the power of both attacks on each model."""
    lines = []
    for row in rows:
        lines.append((row.name, "own scores", *_power(row.threshold)))
        if row.ratio is not None:
            lines.append(("", "likelihood ratio", *_power(row.ratio)))
    model, attack, auc, percent, permille = ([*column] for column in zip(*lines, strict=True))
    columns = [
        PlainColumn("model", model, wraps=True),
        PlainColumn("attack", attack, wraps=True),
        PlainColumn("AUC", auc, right=True),
        PlainColumn("at 1 %", percent, right=True, leave_out=1),
        PlainColumn("at 0.1 %", permille, right=True, leave_out=2),
    ]
    return plain_table(columns, width)


def _power(power: Power) -> tuple[str, str, str]:
    percent, permille = ("–" if caught is None else f"{100 * caught:.1f} %" for caught in power.caught)
    return f"{power.auc:.3f} ({power.low:.3f}-{power.high:.3f})", percent, permille
