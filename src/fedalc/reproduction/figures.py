"""The paper's figures, drawn from an `Outcome`: PNG files, and SVG for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedalc.report.curves import WATCHED
from fedalc.report.plots import bar_fill, draw_precisions, legend, log_scale, new_figure, tidy, write_png
from fedalc.report.style import BLUE, GREY, styles
from fedalc.reproduction.results import Cell, Fit, Line, Outcome
from fedalc.reproduction.table_spec import PRECISIONS, SWEPT

OPEN: Any = {"fillstyle": "none", "linestyle": ":", "linewidth": 1.0, "markersize": 6}
FILLED: Any = {"markersize": 5, "capsize": 2, "linewidth": 1.8}
FITTED: Any = {"color": "#000000", "linestyle": (0, (4, 2)), "linewidth": 1.2}
CAPTIONS = {
    "clients": "Instances per client",
    "curves-lambda": "Learning curves by λ",
    "lambda": "Precision by λ",
    "fixed": "Fixed and updated class embeddings",
    "convergence": "Training loss by round",
}


def draw_all(outcome: Outcome) -> dict[str, Any]:
    """Return the table's figures by name, without those that have no data."""
    drawn = {name: DRAWERS[name](outcome) for name in outcome.figures}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def write_all(outcome: Outcome, folder: Path) -> dict[str, Any]:
    figures = draw_all(outcome)
    for name, figure in figures.items():
        write_png(figure, folder / f"{name}.png")
    return figures


def clients(outcome: Outcome) -> Any:
    """Draw the clients' sizes. On these log scales a long tail is a straight line."""
    if not outcome.clients:
        return None
    places, sizes = zip(*outcome.clients, strict=True)
    figure = new_figure(6.5, 4.2)
    axes = figure.subplots()
    axes.plot(places, sizes, color=BLUE, linewidth=1.8, drawstyle="steps-mid")
    if outcome.median is not None:
        words = f"median {outcome.median:,g}"
        axes.axhline(outcome.median, color=GREY, linewidth=0.9, linestyle=(0, (2, 3)))
        axes.annotate(words, (1, outcome.median), (4, 3), textcoords="offset points", fontsize=8, color=GREY)
    axes.set_title(f"{places[-1]:,} clients: {sizes[0]:,} to {sizes[-1]:,} instances", fontsize=10, loc="left")
    axes.set_xlabel("client, from the largest to the smallest (log scale)", fontsize=9)
    axes.set_ylabel("instances (log scale)", fontsize=9)
    log_scale(axes, "x", [1, max(places[-1], 2)])
    log_scale(axes, "y", [sizes[-1], max(sizes[0], 2 * sizes[-1])])
    tidy(axes)
    return figure


def curves_lambda(outcome: Outcome) -> Any:
    """Draw P@1 by round: a row per preset, FedAwS on the left and FedALC on the right, a line per λ."""
    presets = [p for p in outcome.presets if any(_curve_points(line, p) for line in _swept(outcome))]
    if not presets:
        return None
    looks = _lambda_looks(outcome)
    figure = new_figure(10, 3.5 * len(presets) + 0.5)
    grid = figure.subplots(len(presets), 2, squeeze=False, sharey="row")
    for axes_row, preset in zip(grid, presets, strict=True):
        curves = [line.cells[preset].curve for line in _swept(outcome) if _curve_points(line, preset)]
        on = {WATCHED[curve.metric] for curve in curves if curve is not None and curve.metric is not None}
        axes_row[0].set_ylabel(" or ".join(sorted(on)), fontsize=9)
        for axes, method in zip(axes_row, SWEPT, strict=True):
            for line in _swept(outcome, method):
                points = _curve_points(line, preset)
                if points:
                    look = looks[line.lambda_ or 0]
                    axes.plot(*zip(*points, strict=True), **look, **({} if len(points) > 1 else {"marker": "o"}))
            axes.set_title(f"{method}, preset {preset}", fontsize=10, loc="left")
            axes.set_xlabel("round", fontsize=9)
            _rounds_axis(axes)
            tidy(axes)
    legend(figure, [Line2D([], [], **look) for look in looks.values()], [f"λ = {s:g}" for s in looks], len(looks))
    return figure


def _curve_points(line: Line, preset: str) -> list[tuple[int, float]]:
    cell = line.cells.get(preset)
    if cell is None or cell.curve is None or cell.curve.metric is None:
        return []
    return [(r, p) for r, p in zip(cell.curve.rounds, cell.curve.precision, strict=True) if p is not None]


def precision_by_lambda(outcome: Outcome) -> Any:
    """Draw P@1, P@3 and P@5 by λ: ours with filled markers and the deviation over seeds, the paper's with open ones."""
    lines = _swept(outcome)
    presets = [p for p in outcome.presets if any(_value(line, p, "P@1") for line in lines)]
    if not presets:
        return None
    looks = styles(SWEPT)
    figure = new_figure(10, 3.1 * len(presets) + 0.6)
    for axes_row, preset in zip(figure.subplots(len(presets), 3, squeeze=False), presets, strict=True):
        for place, (axes, metric) in enumerate(zip(axes_row, PRECISIONS, strict=True)):
            for method, look in looks.items():
                lines_of = _swept(outcome, method)
                published = [(line.lambda_, line.published[place]) for line in lines_of if line.published]
                if published:
                    axes.plot(*zip(*published, strict=True), color=look.colour, marker=look.marker, **OPEN)
                ours = [(line.lambda_, _value(line, preset, metric)) for line in lines_of]
                found = [(x, v.mean, v.deviation or 0) for x, v in ours if v is not None]
                if found:
                    axes.errorbar(*zip(*found, strict=True), color=look.colour, marker=look.marker, **FILLED)
            axes.set_title(f"{metric}, preset {preset}", fontsize=10, loc="left")
            axes.set_xlabel("λ (log scale)", fontsize=9)
            if place == 0:
                axes.set_ylabel("precision on the test set (%)", fontsize=9)
            log_scale(axes, "x", [line.lambda_ or 1 for line in lines])
            tidy(axes)
    handles = []
    for look in looks.values():
        handles.append(Line2D([], [], color=look.colour, marker=look.marker, markersize=5, linewidth=1.8))
        handles.append(Line2D([], [], color=look.colour, marker=look.marker, **OPEN))
    legend(figure, handles, [f"{method}, {whose}" for method in looks for whose in ("ours", "published")])
    return figure


def fixed(outcome: Outcome) -> Any:
    """Draw methods with fixed class embeddings beside methods that update them, one panel per preset."""
    panels = {}
    for preset in outcome.presets:
        lines = [line for method in ("fedavg", "fedavg-fixed", "fedalc-fixed") if (line := _plain(outcome, method))]
        named = {line.method: line.cells[preset] for line in lines if preset in line.cells}
        name, cell = _best(outcome, "fedalc", preset)
        panels[preset] = {key: c for key, c in {**named, name: cell}.items() if c is not None and c.results}
    panels = {preset: cells for preset, cells in panels.items() if cells}
    if not panels:
        return None
    names = list(dict.fromkeys(name for cells in panels.values() for name in cells))
    looks = styles(names)
    figure = new_figure(6.2 * len(panels), 4.2 + 0.25 * math.ceil(len(names) / 4))
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (preset, cells) in zip(grid, panels.items(), strict=True):
        precisions = [[cell.statistic(metric) for metric in PRECISIONS] for cell in cells.values()]
        draw_precisions(axes, precisions, {name: looks[name] for name in cells})
        axes.set_title(f"preset {preset}", fontsize=10, loc="left")
    legend(figure, [Patch(**bar_fill(look)) for look in looks.values()], names)
    return figure


def convergence(outcome: Outcome) -> Any:
    """Draw the training loss on a log scale, where a linear rate is a straight line. Preset paper: plain steps at one
    rate, all clients in every round."""
    curves: dict[str, tuple[list[tuple[int, float]], Fit | None]] = {}
    for method in dict.fromkeys(line.method for line in outcome.lines if not line.centralised):
        name, cell = _best(outcome, method, "paper")
        if cell is None or cell.curve is None:
            continue
        losses = zip(cell.curve.rounds, cell.curve.loss, strict=True)
        points = [(r, x) for r, x in losses if x is not None and x > 0]
        if points:
            label = next(line.label for line in outcome.lines if line.cells.get("paper") is cell)
            curves[name] = points, outcome.convergence.get(label)
    if not curves:
        return None
    looks = styles(curves)
    figure = new_figure(7.5, 4.6 + 0.25 * math.ceil(len(curves) / 3))
    axes = figure.subplots()
    handles, names = [], []
    for name, (points, fit) in curves.items():
        look = looks[name]
        axes.plot(*zip(*points, strict=True), color=look.colour, linestyle=look.dash, **_sign(len(points)))
        handles.append(Line2D([], [], color=look.colour, linestyle=look.dash, linewidth=1.8))
        names.append(name)
        if name.startswith("fedalc,") and fit is not None:
            rounds = np.array([fit.first, fit.last])
            axes.plot(rounds, fit.start * fit.factor ** (rounds - fit.first), zorder=3, **FITTED)
            handles.append(Line2D([], [], **FITTED))
            names.append(f"fedalc: ×{fit.factor:.4f} per round, R² {fit.explained:.3f}")
    log_scale(axes, "y", [x for points, _ in curves.values() for _, x in points])
    axes.set_title("preset paper, first seed", fontsize=10, loc="left")
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel("training loss (log scale)", fontsize=9)
    _rounds_axis(axes)
    tidy(axes)
    legend(figure, handles, names, 3)
    return figure


def _best(outcome: Outcome, method: str, preset: str) -> tuple[str, Cell | None]:
    """Return a name and a cell of the method: the row without λ, or the λ that is best on test, as in the paper."""
    plain = _plain(outcome, method)
    if plain is not None and preset in plain.cells:
        return f"{method}, preset's λ" if method in SWEPT else method, plain.cells[preset]
    first = outcome.metrics[0]
    found = [(v.mean, line) for line in _swept(outcome, method) if (v := _value(line, preset, first)) is not None]
    if not found:
        return method, None
    _, line = max(found, key=lambda pair: pair[0])
    return f"{line.label} (best on test)", line.cells[preset]


def _plain(outcome: Outcome, method: str) -> Line | None:
    return next((line for line in outcome.lines if line.method == method and line.lambda_ is None), None)


def _swept(outcome: Outcome, method: str | None = None) -> list[Line]:
    found = [line for line in outcome.lines if line.lambda_ is not None and method in (None, line.method)]
    return sorted(found, key=lambda line: line.lambda_ or 0)


def _value(line: Line, preset: str, metric: str) -> Any:
    cell = line.cells.get(preset)
    return None if cell is None else cell.statistic(metric)


def _lambda_looks(outcome: Outcome) -> dict[float, Any]:
    """Return line styles from dark to light as λ grows; every second line is dashed, to tell neighbours apart."""
    strengths = list(dict.fromkeys(line.lambda_ or 0 for line in _swept(outcome)))
    # Without the lightest end, which is invisible on white.
    shades = np.linspace(0, 0.85, len(strengths)) if len(strengths) > 1 else [0.4]
    return {
        strength: {
            "color": matplotlib.colormaps["viridis"](shade),
            "linestyle": ("-", "--")[place % 2],
            "linewidth": (2.2, 1.6)[place % 2],
        }
        for place, (strength, shade) in enumerate(zip(strengths, shades, strict=True))
    }


def _sign(points: int) -> Mapping[str, Any]:
    """Return the style of a curve: a line, or a point for a single evaluation."""
    return {"linewidth": 1.8} if points > 1 else {"marker": "o", "markersize": 6}


def _rounds_axis(axes: Any) -> None:
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


DRAWERS: dict[str, Callable[[Outcome], Any]] = {
    "clients": clients,
    "curves-lambda": curves_lambda,
    "lambda": precision_by_lambda,
    "fixed": fixed,
    "convergence": convergence,
}
