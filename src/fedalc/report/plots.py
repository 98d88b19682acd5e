"""Figures as PNG files; `inline` turns them into SVG for pages. They use Matplotlib's objects and never pyplot, whose
global state does not suit threads and notebooks."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedalc.core.atomic_files import write_bytes
from fedalc.report.curves import Histories, Panel, panels
from fedalc.report.style import DASHES, GREY, HATCHES, Style, short, styles
from fedalc.report.summary import COLLAPSED, Result, Row, Statistic, merge, number, varies
from fedalc.report.tables import human_bytes

DPI = 120
BAR_METRICS = ("P@1", "P@3", "P@5")
HEATMAP_LABELS = 200


def learning_curves(histories: Histories, path: Path | str, chosen: Mapping[str, int] | None = None) -> None:
    """Write a PNG of four panels with all methods. A ring marks the `chosen` rounds."""
    _curves_png(histories, path, ("validation", "bytes", "loss", "cosine"), chosen or {})


def precision_for_bytes(histories: Histories, path: Path | str) -> None:
    """Write a PNG of validation P@1 by bytes and by round."""
    _curves_png(histories, path, ("bytes", "validation"), {})


def _curves_png(histories: Histories, path: Path | str, keys: Sequence[str], chosen: Mapping[str, int]) -> None:
    looks = styles(histories)
    down = len(keys) // 2
    figure = new_figure(10, (3.6 if down > 1 else 4.2) * down + 0.25 * math.ceil(len(looks) / 4))
    drawn = {panel.key: panel for panel in panels(histories)}
    for axes, key in zip(figure.subplots(down, 2).flat, keys, strict=True):
        draw_panel(axes, drawn[key], looks, chosen)
    legend(figure, [_handle(look, len(drawn["validation"].points[name])) for name, look in looks.items()], looks)
    write_png(figure, path)


def _handle(look: Style, points: int) -> Line2D:
    """Return the legend's sign: a line, or a point for a single evaluation."""
    single = points == 1
    dash = "none" if single else look.dash
    return Line2D([], [], color=look.colour, linestyle=dash, marker=look.marker, markersize=7 if single else 4)


def draw_panel(axes: Any, panel: Panel, looks: Mapping[str, Style], chosen: Mapping[str, int]) -> None:
    """Draw one panel of the learning curves."""
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_xlabel(panel.x, fontsize=9)
    axes.set_ylabel(panel.y, fontsize=9)
    tidy(axes)
    if panel.empty:
        axes.text(0.5, 0.5, panel.note, ha="center", va="center", transform=axes.transAxes, fontsize=9, alpha=0.7)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    # Later lines are thinner, so that they do not hide earlier ones.
    widths = np.linspace(2.6, 1.2, len(panel.points)) if len(panel.points) > 1 else [1.8]
    for (name, points), width in zip(panel.points.items(), widths, strict=True):
        look, single = looks[name], len(set(points)) == 1
        x, y = [a for a, _ in points], [b for _, b in points]
        crowded = not single and (panel.log_x or len(points) > 25)
        axes.plot(
            x,
            y,
            color=look.colour,
            linestyle=look.dash,
            linewidth=width,
            marker=look.marker,
            markersize=8 if single else 3.5,
            markevery=0.03 if crowded else None,  # share of the panel: more markers would hide the line
            zorder=3 if single else 2,  # points above lines
        )
        if panel.key == "validation" and name in chosen:
            ring = [b for a, b in points if a == chosen[name]][:1]
            size = 15 if single else 10
            axes.plot([chosen[name]] * len(ring), ring, "o", color=look.colour, markersize=size, fillstyle="none")
    if panel.log_y:
        log_scale(axes, "y", [y for points in panel.points.values() for _, y in points])
    if panel.key == "cosine":
        lowest = min(y for points in panel.points.values() for _, y in points)
        axes.set_ylim(min(-0.03, lowest - 0.03), 1.03)
        axes.axhline(COLLAPSED, color=GREY, linewidth=0.9, linestyle=(0, (2, 3)), zorder=0)
    if panel.log_x:
        values = [x for points in panel.points.values() for x, _ in points]
        log_scale(axes, "x", values, bytes_tick if panel.key == "bytes" else "{:g}".format)
        room = max(1.2, math.sqrt(8 * min(values) / max(values)))  # room for at least three ticks
        axes.set_xlim(min(values) / room, max(values) * room)
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


def log_scale(axes: Any, which: str, values: Sequence[float], show: Callable[[float], str] = "{:g}".format) -> None:
    """Set a log scale with plain numbers as ticks: 1, 2, 5 for a narrow range, powers of ten for a wide one."""
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    narrow = max(values) / min(values) < 1000
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_formatter(NullFormatter())


def bytes_tick(value: float) -> str:
    return human_bytes(value).replace(".00", "").replace(".0", "")


def comparison_bars(results: Iterable[Result], path: Path | str) -> None:
    """Write a PNG of P@1, P@3 and P@5 by method, with values and the standard deviation over seeds."""
    rows = merge(results)
    figure = new_figure(max(6.5, 1.5 + 0.5 * len(BAR_METRICS) * len(rows)), 4.2 + 0.25 * math.ceil(len(rows) / 4))
    looks = styles(row_names(rows))
    draw_bars(figure.subplots(), rows, looks)
    legend(figure, [Patch(**bar_fill(look)) for look in looks.values()], looks)
    write_png(figure, path)


def row_names(rows: Sequence[Row]) -> list[str]:
    """Return a name per row: the method, which sets its colour, then dataset and preset if they vary."""
    keys = [key for key in ("dataset", "preset") if varies(rows, key)]
    return [", ".join([row.method, *(getattr(row, key) for key in keys)]) for row in rows]


def draw_bars(axes: Any, rows: Sequence[Row], looks: Mapping[str, Style]) -> None:
    readers = [number("metrics", metric) for metric in BAR_METRICS]
    draw_precisions(axes, [[row.statistic(read) for read in readers] for row in rows], looks)


def draw_precisions(axes: Any, rows: Sequence[Sequence[Statistic | None]], looks: Mapping[str, Style]) -> None:
    """Draw bars. Each row has one value per metric of `BAR_METRICS`."""
    width = 0.84 / max(len(rows), 1)
    for index, (row, look) in enumerate(zip(rows, looks.values(), strict=True)):
        for place, value in enumerate(row):
            if value is None or not math.isfinite(value.mean):
                continue
            x = place + (index - (len(rows) - 1) / 2) * width
            axes.bar(x, value.mean, width * 0.92, yerr=value.deviation, ecolor=GREY, capsize=2, **bar_fill(look))
            top = value.mean + (value.deviation or 0)
            axes.annotate(
                f"{value.mean:.1f}", (x, top), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=8
            )
    axes.set_xticks(range(len(BAR_METRICS)), BAR_METRICS)
    axes.set_xlim(-0.5, len(BAR_METRICS) - 0.5)
    axes.set_ylim(0, min(axes.get_ylim()[1] * 1.08, 108))
    axes.set_ylabel("precision on the test set (%)", fontsize=9)
    tidy(axes)
    axes.grid(axis="x", visible=False)


def bar_fill(look: Style) -> dict[str, Any]:
    """Return a bar's fill. Hatches distinguish bars of one colour, as dashes distinguish lines."""
    return {"facecolor": look.colour, "hatch": HATCHES[DASHES.index(look.dash)], "edgecolor": "white", "linewidth": 0}


def cosine_heatmap(
    W_by_method: Mapping[str, np.ndarray], path: Path | str, frequency: np.ndarray | None = None
) -> None:
    """Write a PNG of the cosines between class embeddings, one square per method. A collapsed W is one flat colour.

    Labels are ordered by `frequency`, most frequent first, if given. Of more than 200 labels, 200 are drawn, evenly
    spaced over that order, so that rare ones are included.
    """
    down = max(1, math.ceil(len(W_by_method) / 5))
    across = max(1, math.ceil(len(W_by_method) / down))  # even rows: seven are four and three
    figure = new_figure(2.9 * across + 1.1, 3.1 * down + 0.2)
    grid = figure.subplots(down, across, squeeze=False)
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#bbbbbb")
    image = None
    for axes, (name, W) in zip(grid.flat, W_by_method.items(), strict=False):
        cosines = _cosines(np.asarray(W, dtype=np.float64), frequency)
        image = axes.imshow(cosines, cmap=colours, vmin=-1, vmax=1, interpolation="nearest")
        axes.set_title(short(name, 24), fontsize=10, parse_math=False)
        drawn = f"{len(cosines)} of {len(W)} labels" if len(cosines) < len(W) else f"{len(W)} labels"
        axes.set_xlabel(drawn + (", frequent to rare" if frequency is not None else ""), fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    for axes in grid.flat[len(W_by_method) :]:
        axes.set_visible(False)
    if image is not None:
        bar = figure.colorbar(image, ax=grid, shrink=0.8, aspect=25, pad=0.02)
        bar.set_label("cosine between two labels", fontsize=9)
        bar.ax.tick_params(labelsize=8)
    write_png(figure, path)


def _cosines(W: np.ndarray, frequency: np.ndarray | None) -> np.ndarray:
    order = np.arange(len(W)) if frequency is None else np.argsort(-np.asarray(frequency), kind="stable")
    if len(order) > HEATMAP_LABELS:
        order = order[np.linspace(0, len(order) - 1, HEATMAP_LABELS).round().astype(int)]
    W = W[order]
    norm = np.linalg.norm(W, axis=1, keepdims=True)
    unit = np.divide(W, norm, out=np.zeros_like(W), where=norm > 0)
    return np.ma.masked_invalid(unit @ unit.T)


def new_figure(width: float, height: float) -> Any:
    figure = Figure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Any) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: Any, handles: Sequence[Any], names: Iterable[str], across: int = 4) -> None:
    """Draw a legend below all panels, with at most `across` names per line."""
    if not handles:
        return
    # Matplotlib hides labels that begin with an underscore.
    labels = [f" {short(name)}" if name.startswith("_") else short(name) for name in names]
    columns = max(1, min(len(labels), across, int(figure.get_figwidth() * 11 / (max(map(len, labels)) + 6))))
    drawn = figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
    for label in drawn.get_texts():
        label.set_parse_math(False)  # a "$" in a name is a dollar


def write_png(figure: Any, path: Path | str) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_bytes(Path(path), picture.getvalue())
