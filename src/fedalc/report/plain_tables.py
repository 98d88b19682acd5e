"""Tables of texts and figures for the terminal that never cut a figure: columns that do not fit are left out and named
below the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

NARROWEST = 12  # of a column that wraps
HIDDEN = "hidden columns (widen the terminal): "


@dataclass(frozen=True)
class PlainColumn:
    """A column of texts. A narrow terminal hides columns with a high `leave_out` first, and never those with 0; it
    breaks the lines of columns that may wrap."""

    heading: str
    cells: Sequence[str]
    right: bool = False
    leave_out: int = 0
    wraps: bool = False

    @property
    def width(self) -> int:
        """The least width at which nothing is cut."""
        full = max(map(len, (self.heading, *self.cells)))
        return min(full, max(NARROWEST, len(self.heading))) if self.wraps else full


def plain_table(columns: Sequence[PlainColumn], width: int) -> Table:
    """Return a table that fits into `width`, if leaving out columns can achieve it."""
    from rich.table import Table
    from rich.text import Text

    shown, hidden = fitting(columns, width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption_justify="left")
    if hidden:
        table.caption = Text(HIDDEN + ", ".join(hidden))
    for column in shown:
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            min_width=column.width,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*map(Text, row))  # Text, not str: a name is not markup
    return table


def fitting(columns: Sequence[PlainColumn], width: int) -> tuple[list[PlainColumn], list[str]]:
    """Return the columns to show and the headings of those to hide."""
    shown, hidden = list(columns), list[str]()
    while sum(column.width + 2 for column in shown) - 2 > width:
        goes = max(reversed(shown), key=lambda column: column.leave_out)
        if goes.leave_out == 0:
            break
        shown.remove(goes)
        hidden.append(goes.heading)
    return shown, hidden
