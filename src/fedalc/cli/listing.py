"""`fedalc list` and `fedalc methods`: what there is to choose from, your own included."""

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


GROUPS = {
    "ours": "Ours: the centralised loss from positives alone (docs/exact.md)",
    "paper": "The FedALC paper's",
    "baseline": "Baselines",
    "centralised": "Centralised, to compare with: they see all data in one place (docs/oracles.md)",
    "yours": "Yours",
}


def methods() -> None:
    """Show all methods and when to use which."""
    console = Console()
    console.print("Start here: leave the method out", style="bold")
    console.print(
        "  fedalc train --dataset NAME            "
        "chooses loss, penalty and features on held-out records (docs/tuning.md)\n"
        "  fedalc train --dataset NAME --no-tune  fedalc-oneshot with fixed settings, in one round\n",
        highlight=False,
        soft_wrap=True,
    )
    named = [(registry, name) for registry in (METHODS, ORACLES) for name in registry]
    for group, title in GROUPS.items():
        members = [(registry, name) for registry, name in named if _group(registry, name) == group]
        if not members:
            continue
        table = Table("method", "what it is", "when to use it", title=Text(title, style="bold"), title_justify="left")
        table.box, table.pad_edge, table.padding = None, False, (0, 2, 0, 0)
        table.columns[0].no_wrap, table.columns[0].min_width = True, max(len(name) for _, name in named)
        for registry, name in members:
            table.add_row(name, Text(_help(registry, name, mark=False)), Text(_use_when(registry, name)))
        console.print(table)
        console.print()
    console.print(
        "Train one: fedalc train --dataset NAME --method METHOD. Several side by side: fedalc compare", highlight=False
    )


def _group(registry: Registry, name: str) -> str:
    try:
        method = registry[name]
    except FedalcError:  # of an installed package
        return "yours"
    if not method.__module__.startswith("fedalc."):
        return "yours"
    return "centralised" if method.centralised else str(method.family)


def _use_when(registry: Registry, name: str) -> str:
    """Return what the class itself declares: a method that extends another is for another use."""
    try:
        return str(vars(registry[name]).get("use_when", ""))
    except FedalcError:
        return ""


def _help(registry: Registry, name: str, mark: bool = True) -> str:
    try:
        item = registry[name]
    except FedalcError as error:  # of an installed package
        return str(error)
    help_ = str(getattr(item, "help", "")) or (item.__doc__ or "").strip().partition("\n")[0]
    return f"{help_} (centralised)" if mark and getattr(item, "centralised", False) else help_
