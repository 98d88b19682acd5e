"""The figure beside the communication table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D

from fedalc.report.plots import bytes_tick, legend, log_scale, new_figure, tidy, write_png
from fedalc.report.style import GREY, styles

if TYPE_CHECKING:
    from fedalc.reproduction.communication.table import Line


def draw_bytes(lines: Sequence[Line], path: Path) -> None:
    """Write a PNG of the bytes that one client sends and receives in a training, one panel per preset.

    Points and not bars: on a logarithmic axis a bar's length has no meaning.
    """
    presets, datasets, methods = (
        list(dict.fromkeys(getattr(line, key) for line in lines)) for key in ("preset", "dataset", "method")
    )
    looks = styles(methods)
    figure = new_figure(10, 1.6 + 0.16 * len(datasets) * (len(methods) + 1))
    grid = figure.subplots(1, len(presets), sharex=True, sharey=True, squeeze=False)
    totals = {(line.preset, line.dataset, line.method): line.total for line in lines}
    for axes, preset in zip(grid.flat, presets, strict=True):
        for (of, dataset, method), total in totals.items():
            if of == preset:
                lane = datasets.index(dataset) + (methods.index(method) - (len(methods) - 1) / 2) / (len(methods) + 1)
                axes.plot(total, lane, marker=looks[method].marker, color=looks[method].colour, markersize=6)
        for border in range(1, len(datasets)):
            axes.axhline(border - 0.5, color=GREY, linewidth=0.6, alpha=0.5)
        axes.set_title(f"preset {preset}", fontsize=10, loc="left")
        axes.set_xlabel("bytes sent and received by one client, whole training", fontsize=9)
        tidy(axes)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_yticks(range(len(datasets)), datasets)
        axes.set_ylim(len(datasets) - 0.5, -0.5)
        log_scale(axes, "x", list(totals.values()), bytes_tick)
    handles = [Line2D([], [], color=look.colour, marker=look.marker, linestyle="none") for look in looks.values()]
    legend(figure, handles, looks)
    write_png(figure, path)
