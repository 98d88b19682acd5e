"""`fedalc list`: the methods, encoders, file formats, metrics and callbacks there are, your own included."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedalc.core.registry import CALLBACKS, ENCODERS, FORMATS, METHODS, METRICS, ORACLES, Registry
from fedalc.errors import FedalcError

KINDS: dict[str, tuple[Registry, ...]] = {
    "methods": (METHODS, ORACLES),
    "encoders": (ENCODERS,),
    "formats": (FORMATS,),
    "metrics": (METRICS,),
    "callbacks": (CALLBACKS,),
}


def list_(
    kind: Annotated[str | None, typer.Argument(help=f"{', '.join(KINDS)} (default: all)")] = None,
) -> None:
    """List methods, encoders, file formats and metrics, your own included."""
    if kind is not None and kind not in KINDS:
        raise FedalcError(f"there is no list of {kind!r}; there are {', '.join(KINDS)}")
    console = Console()
    for name in [name for name in KINDS if any(KINDS[name])] if kind is None else [kind]:
        table = Table("name", "what it is", title=name, title_justify="left", box=None, pad_edge=False)
        for registry in KINDS[name]:
            for item in registry:
                table.add_row(item, Text(_help(registry, item)))
        console.print(table)


def _help(registry: Registry, name: str) -> str:
    try:
        item = registry[name]
    except FedalcError as error:  # of an installed package
        return str(error)
    help_ = str(getattr(item, "help", "")) or (item.__doc__ or "").strip().partition("\n")[0]
    return f"{help_} (centralised)" if getattr(item, "centralised", False) else help_
