"""The table and the plot of a sweep: a curve for one setting, a heat map for a grid of two, else a panel for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fedalc.report.plots import log_scale, new_figure, tidy, write_png
from fedalc.report.style import BLUE, GREY, PALETTE, short
from fedalc.report.tables import MISSING, escaped, fixed, human_seconds

Trial = Mapping[str, Any]  # as in sweep.json
RED = PALETTE[5]
WIDE = 20.0  # largest by smallest value from which an axis is logarithmic


def shown(value: Any) -> str:
    """Return a value of a setting for a cell."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown_of_sweep(metric: str, names: Sequence[str], trials: Sequence[Trial], test: Mapping[str, float]) -> str:
    """Return the trials as a Markdown table, the best first, and below it the test metrics of the best."""
    header = [*names, f"validation {metric}", "round", "time"]
    lines = [f"| {' | '.join(map(escaped, header))} |", f"|{'---|' * len(header)}"]
    for trial in trials:
        cells = [shown(trial["settings"].get(name)) for name in names]
        value = fixed(trial["value"], 2) if trial["value"] is not None else "failed"
        cells += [value, shown(trial["round"]) if trial["round"] else MISSING, human_seconds(trial["seconds"])]
        lines.append(f"| {' | '.join(map(escaped, cells))} |")
    figures = ", ".join(f"{escaped(name)} {value:.2f}" for name, value in test.items())
    lines += ["", f"{metric} in percent on validation data: it decided, and no trial saw the test set."]
    if figures:
        lines.append(f"The best settings, trained as the settings ask and tested once: {figures}.")
    return "".join(f"{line}\n" for line in lines)


def plot_sweep(metric: str, names: Sequence[str], trials: Sequence[Trial], path: Path, larger: bool = True) -> None:
    """Write a PNG of the validation metric by the settings that were tried."""
    done = [trial for trial in trials if trial["value"] is not None]
    if len(names) == 2 and _is_grid(names, done):
        figure = _heat_map(metric, names, done, larger)
    else:
        across = min(3, len(names))
        down = math.ceil(len(names) / across)
        figure = new_figure(max(5.0, 3.6 * across), 3.4 * down)
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        for axes, name in zip(grid.flat, names, strict=False):
            _draw_one(axes, metric, name, done, larger, line=len(names) == 1)
        for axes in grid.flat[len(names) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel(f"validation {metric} (%)", fontsize=9)
    write_png(figure, path)


def _is_grid(names: Sequence[str], trials: Sequence[Trial]) -> bool:
    """Whether two settings have few values each, and most combinations were tried."""
    counts = [len(_values(name, trials)) for name in names]
    return max(counts) <= 20 and 2 * len(trials) >= math.prod(counts)


def _values(name: str, trials: Sequence[Trial]) -> list[Any]:
    """Return the values of a setting in order: numbers by size, others as they came."""
    found = {shown(trial["settings"][name]): trial["settings"][name] for trial in trials}
    values = list(found.values())
    return sorted(values) if all(_is_number(value) for value in values) else values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draw_one(axes: Any, metric: str, name: str, trials: Sequence[Trial], larger: bool, line: bool) -> None:
    """Draw the metric by one setting. With other settings tried too, a line joins the best of each value."""
    values = _values(name, trials)
    numbers = all(_is_number(value) for value in values)
    at = {shown(value): (value if numbers else place) for place, value in enumerate(values)}
    x = [at[shown(trial["settings"][name])] for trial in trials]
    y = [trial["value"] for trial in trials]
    best: dict[Any, float] = {}
    for a, b in zip(x, y, strict=True):
        best[a] = b if a not in best else (max if larger else min)(b, best[a])
    few = len(best) < len(trials) or line
    if few and numbers:
        axes.plot(sorted(best), [best[a] for a in sorted(best)], color=BLUE, linewidth=1.6, zorder=1)
    axes.plot(x, y, "o", color=BLUE, markersize=5, alpha=1.0 if line else 0.6, linestyle="none", zorder=2)
    axes.plot(x[:1], y[:1], "o", color=RED, markersize=11, fillstyle="none", markeredgewidth=1.8, zorder=3)
    axes.set_xlabel(short(name), fontsize=9, parse_math=False)
    tidy(axes)
    if not numbers:
        axes.set_xticks(range(len(values)), [short(shown(value), 16) for value in values], rotation=20)
        axes.set_xlim(-0.5, len(values) - 0.5)
    elif min(values) > 0 and max(values) / min(values) >= WIDE:
        log_scale(axes, "x", values)
    elif all(isinstance(value, int) for value in values):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _heat_map(metric: str, names: Sequence[str], trials: Sequence[Trial], larger: bool) -> Any:
    down, across = _values(names[0], trials), _values(names[1], trials)
    table = np.full((len(down), len(across)), np.nan)
    rows, columns = [shown(value) for value in down], [shown(value) for value in across]
    for trial in trials:
        place = rows.index(shown(trial["settings"][names[0]])), columns.index(shown(trial["settings"][names[1]]))
        table[place] = trial["value"]
    figure = new_figure(2.6 + 0.85 * len(across), 1.8 + 0.5 * len(down))
    axes = figure.subplots()
    colours = matplotlib.colormaps["viridis" if larger else "viridis_r"].with_extremes(bad="#bbbbbb")
    image = axes.imshow(np.ma.masked_invalid(table), cmap=colours, aspect="auto")
    low, high = image.get_clim()
    for row, column in np.argwhere(np.isfinite(table)):
        bright = (table[row, column] - low) / ((high - low) or 1) > 0.6
        dark_text = bright == larger
        text = f"{table[row, column]:.2f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if dark_text else "white")
    first = trials[0]["settings"]
    corner = columns.index(shown(first[names[1]])) - 0.5, rows.index(shown(first[names[0]])) - 0.5
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=RED, linewidth=2.2))
    axes.set_xticks(range(len(across)), columns)
    axes.set_yticks(range(len(down)), rows)
    axes.set_xlabel(short(names[1]), fontsize=9, parse_math=False)
    axes.set_ylabel(short(names[0]), fontsize=9, parse_math=False)
    axes.tick_params(labelsize=8)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label(f"validation {metric} (%)", fontsize=9)
    bar.ax.tick_params(labelsize=8, color=GREY)
    return figure
