"""Tables for Python users: pandas data frames, if pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedalc.errors import FedalcError


def frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> Any:
    """Return a pandas frame with a column for each key."""
    try:
        import pandas
    except ImportError:
        raise FedalcError("a data frame needs pandas: pip install 'fedalc[tables]'") from None
    table = pandas.DataFrame.from_records([dict(row) for row in rows])
    return table.set_index(index) if index is not None and index in table else table
