"""The page and the figure of `make paper-search`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

Setting = dict[str, Any]
Column = tuple[str, float | None]
Figure = Callable[[Setting, Column, int, str], float | None]
COLOURS = {"fedavg": "#888888", "fedaws": "#D55E00", "fedalc": "#0072B2"}
TITLES = {
    "screen": "Drawn at random, a narrow network, short runs (fedavg; fedalc, λ = 10)",
    "step": "The preset `paper`, one full-batch step, other rates: 300 rounds, a narrow network",
    "wide": "The same with the paper's network, weights n_u/Σn: 300 rounds",
    "local": "The preset `paper` with local work, a narrow network, short runs (fedavg; fedalc, λ = 10)",
    "around": "Around the best: one choice changed, a narrow network, short runs",
    "long": "300 rounds, a narrow network",
    "full": "300 rounds, the paper's network",
}
SHOWN = 10


def markdown(
    found: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, Sequence[tuple[float, Setting]]],
    published: Mapping[Column, float],
    choices: Mapping[str, Sequence[Any]],
    figure: Figure,
    short_rounds: Callable[[Setting], int],
) -> str:
    hours = sum(row["seconds"] for row in found.values()) / 3600
    failed = sum("failed" in row for row in found.values())
    lines = [
        "# The search for the paper's settings on Bibtex, with real local work",
        "",
        f"`FEDALC_DATA=… make paper-search`: {len(found)} runs so far, {hours:.1f} core-hours; {failed} diverged",
        "(counted as P@1 0). What it means: [reproduction.md](../reproduction.md). The runs look at published figures",
        "of the test set, because they reconstruct someone else's settings; nothing else uses what they find.",
        "One seed. Distance: mean of |ours - published| over the columns that were run, in points of P@1.",
        "",
        "![P@1 by column, ours and published](../images/paper-search-columns.png)",
        "![P@1 by choice](../images/paper-search.png)",
    ]
    for stage, rows in tables.items():
        if not rows:
            continue
        width = "full" if stage in ("wide", "full") else "narrow"
        rounds = 300 if stage in ("step", "wide", "long", "full") else None
        at = [(far, one, rounds or short_rounds(one)) for far, one in rows[:SHOWN]]
        columns = [one for one in published if figure(rows[0][1], one, at[0][2], width) is not None]
        number = f"{len(rows)} settings" + (f", the nearest {SHOWN}:" if len(rows) > SHOWN else ":")
        lines += ["", f"## {TITLES[stage]}", "", number, ""]
        named = list(rows[0][1])
        lines.append(_row(["distance", *map(_head, columns), *named]))
        lines.append(_row(["---"] * (1 + len(columns) + len(named))))
        lines.append(_row(["published", *(f"{published[one]:.1f}" for one in columns), *[""] * len(named)]))
        for far, one, of in at:
            ours = [figure(one, column, of, width) for column in columns]
            shown = ["–" if p is None else f"{p:.1f}" for p in ours]
            lines.append(_row([f"{far:.1f}", *shown, *map(str, one.values())]))
    lines += ["", "## What each choice does", ""]
    lines += ["Mean P@1 of the random settings of the screening, by the value of one choice; all others vary.", ""]
    lines += [_row(["choice", "value", "settings", "fedavg", "fedalc, λ = 10"]), _row(["---"] * 5)]
    for choice, values in choices.items():
        for value in values:
            those = [one for _, one in tables["screen"] if one[choice] == value]
            means = [
                np.mean([figure(one, column, short_rounds(one), "narrow") for one in those]) if those else float("nan")
                for column in (("fedavg", None), ("fedalc", 10))
            ]
            lines.append(_row([choice, str(value), str(len(those)), *(f"{mean:.1f}" for mean in means)]))
    return "\n".join(lines) + "\n"


def _head(column: Column) -> str:
    return column[0] if column[1] is None else f"{column[0]} {column[1]:g}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def picture(found: Mapping[str, Mapping[str, Any]], choices: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Draw P@1 of all short runs by the value of each choice, a dot for each run and a line for the means."""
    rows = [row for row in found.values() if row["width"] == "narrow" and row["rounds"] < 300]
    figure, axes = plt.subplots(3, 4, figsize=(13, 8.5), sharey=True, constrained_layout=True)
    for axis, (choice, values) in zip(axes.flat, choices.items(), strict=False):
        for shift, (method, colour) in zip((-0.2, 0.0, 0.2), COLOURS.items(), strict=True):
            means = []
            for place, value in enumerate(values):
                points = [row["P@1"] for row in rows if row["method"] == method and row[choice] == value]
                axis.scatter([place + shift] * len(points), points, s=7, color=colour, alpha=0.35, linewidths=0)
                means.append(np.mean(points) if points else np.nan)
            axis.plot(np.arange(len(values)) + shift, means, color=colour, marker="_", markersize=14, label=method)
        axis.set_xticks(range(len(values)), ["full" if value is None else str(value) for value in values])
        axis.set_title(choice)
        axis.grid(axis="y", alpha=0.3)
    for axis in axes.flat[len(choices) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("P@1 on test")
    axes.flat[0].legend(frameon=False)
    figure.suptitle("Short runs of the search on Bibtex: each dot is a run, lines are means over runs with that value")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def picture_of_columns(
    found: Sequence[tuple[Setting, str]], published: Mapping[Column, float], figure: Figure, path: Path
) -> None:
    """Draw P@1 of all columns of the table: a panel for each network, server rate and weights, a line for each rate of
    the rows. `found`: settings, and the width of their network."""
    panels = sorted({(width, one["weights"], one["server rate"]) for one, width in found})
    factors = sorted({one["row factor"] for one, _ in found})
    methods = list(dict.fromkeys(method for method, _ in published))
    names = [_head(column) for column in published]
    shape = 2, -(-len(panels) // 2)
    sheet, axes = plt.subplots(*shape, figsize=(4 * shape[1], 7.5), sharey=True, constrained_layout=True, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        width, weights, rate = panel
        _line(axis, published, methods, list(published.values()), color="black", linewidth=2.5, label="published")
        for one, of in found:
            ours = [figure(one, column, 300, of) for column in published]
            if (of, one["weights"], one["server rate"]) == panel and any(ours):
                factor = one["row factor"]
                colour = mpl.colormaps["viridis"](factors.index(factor) / len(factors))
                _line(
                    axis, published, methods, ours, color=colour, marker="o", markersize=3, label=f"rows × {factor:g}"
                )
        network = "paper's network" if width == "full" else "narrow network"
        axis.set_title(f"{network}, {'1/C' if weights == 'uniform' else 'n_u/Σn'}, server rate {rate:g}", fontsize=9)
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.grid(axis="y", alpha=0.3)
        axis.legend(frameon=False, fontsize=7, loc="lower center")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("P@1 on test")
    sheet.suptitle("One full-batch step per round, 300 rounds: every column of the paper's Bibtex table (method, λ)")
    sheet.savefig(path, dpi=110)
    plt.close(sheet)


def _line(
    axis: Any, published: Mapping[Column, float], methods: Sequence[str], values: Sequence[float | None], **style: Any
) -> None:
    """Draw a line for each method, in one style; a column that was not run is left out."""
    for method in methods:
        points = [
            (at, value) for at, (one, value) in enumerate(zip(published, values, strict=True)) if one[0] == method
        ]
        points = [(at, value) for at, value in points if value is not None]
        axis.plot(*zip(*points, strict=True), **style) if points else None
        style["label"] = None
