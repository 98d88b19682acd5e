"""How a method looks in every figure: its colour is the same wherever it appears."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedalc.report.summary import text

Dash = Literal["-", "--", ":", "-."]

# Okabe and Ito's colours (told apart with any common colour blindness), without the yellow that white paper swallows
# and the black that a dark page does; and a few as far from all of them as can be. The grey is seen on both, and rules
# and grids have it too. The oracles have quiet ones, a slate and a wine: they are only there to compare with.
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, GREY, VIOLET, BROWN, OLIVE, WINE, SLATE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00",
    "#888888", "#8B5CF6", "#8C6239", "#9BAF2D", "#8A3B52", "#5B6B7F",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, GREY, VIOLET, BROWN, OLIVE, WINE, SLATE)
METHOD_COLOURS = {
    "fedalc": BLUE,
    "fedavg": VERMILLION,
    "fedaws": GREEN,
    "fedalc-fixed": SKY,
    "fedavg-fixed": ORANGE,
    "flag": BROWN,
    "fedmlh": OLIVE,
    "fedalc-exact": VIOLET,
    "fedalc-oneshot": PURPLE,
    "sleec": WINE,
    "ovr": SLATE,
}
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xx")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", ">", "<", "h", "*", "p")


@dataclass(frozen=True)
class Style:
    colour: str
    dash: Dash
    marker: str


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A look for each name. "fedalc seed 1" has fedalc's colour; names that share a colour differ in their dashes."""
    found: dict[str, Style] = {}
    used: list[str] = []
    for name in names:
        first = re.split(r"[^\w-]", name, maxsplit=1)[0]  # a whole word: fedalc-mine is not fedalc
        colour = METHOD_COLOURS.get(first) or min(PALETTE, key=lambda c: (used.count(c), c in METHOD_COLOURS.values()))
        marker = MARKERS[PALETTE.index(colour)]  # a second sign besides colour: for print in grey
        found[name] = Style(colour, DASHES[used.count(colour) % len(DASHES)], marker)
        used.append(colour)
    return found


def short(name: str, length: int = 40) -> str:
    """A name for a legend."""
    name = text(name)
    return name if len(name) <= length else name[: length - 1] + "…"
