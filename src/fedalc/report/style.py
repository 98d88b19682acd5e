"""How a method looks in every figure: its colour is the same wherever it appears."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedalc.config.facts import method_facts
from fedalc.core.registry import METHODS, ORACLES
from fedalc.report.summary import text

Dash = Literal["-", "--", ":", "-."]

# Okabe and Ito's colours, which people with any common colour blindness can tell apart, without the yellow that cannot
# be seen on white paper and the black that cannot be seen on a dark page; and a few as far from all of them as can be.
# Methods declare which one is theirs; other names take the first that is free.
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00",
    "#888888", "#8B5CF6", "#8C6239", "#9BAF2D", "#8A3B52", "#5B6B7F",
    "#F000B8", "#FF005A", "#00B300", "#3333FF", "#2D5A00", "#871E87",
    "#00B5B8", "#FF8C69", "#005F73", "#4B0000",
)  # fmt: skip
BLUE, GREY = PALETTE[0], PALETTE[6]  # the grey is seen on white and on dark pages
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xx")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", ">", "<", "h", "*", "p", "d", "H", "8", "x", "+", "1", "2", "3", "4", "|")


@dataclass(frozen=True)
class Style:
    colour: str
    dash: Dash
    marker: str


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a look for each name. "fedalc seed 1" has fedalc's colour; names that share a colour differ in dashes."""
    found: dict[str, Style] = {}
    used: list[str] = []
    for name in names:
        method = re.split(r"[^\w-]", name, maxsplit=1)[0]  # a whole word: fedalc-mine is not fedalc
        colour = method_colour(method) or min(PALETTE, key=lambda c: (used.count(c), c in _declared()))
        number = PALETTE.index(colour) if colour in PALETTE else len(found)
        marker = MARKERS[number % len(MARKERS)]  # a second sign besides colour: for print in grey
        found[name] = Style(colour, DASHES[used.count(colour) % len(DASHES)], marker)
        used.append(colour)
    return found


def method_colour(name: str) -> str | None:
    """Return the colour that a method or oracle declares. None for other names, and if it declares none."""
    return method_facts(name).colour if name in METHODS or name in ORACLES else None


def _declared() -> set[str | None]:
    return {method_colour(name) for name in (*METHODS.loadable, *ORACLES)}


def short(name: str, length: int = 40) -> str:
    """A name for a legend."""
    name = text(name)
    return name if len(name) <= length else name[: length - 1] + "…"
