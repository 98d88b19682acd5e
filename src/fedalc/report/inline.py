"""Figures as SVG inside a page: sharp at any size, and in the page's own text colour, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

from fedalc.report.curves import Panel
from fedalc.report.plots import draw_bars, draw_panel, new_figure
from fedalc.report.style import Style
from fedalc.report.summary import Row


def panel_svg(panel: Panel, looks: Mapping[str, Style], chosen: Mapping[str, int]) -> str:
    figure = new_figure(4.8, 3.2)
    draw_panel(figure.subplots(), panel, looks, chosen)
    return figure_svg(figure, panel.key)


def bars_svg(rows: Sequence[Row], looks: Mapping[str, Style]) -> str:
    figure = new_figure(max(6.0, 1.2 + 1.05 * len(rows)), 3.4)
    draw_bars(figure.subplots(), rows, looks)
    return figure_svg(figure, "bars")


def figure_svg(figure: Any, salt: str) -> str:
    """Only what an HTML page needs: no prologue, no metadata, no namespaces, and ids only where something is used.

    No name from the data is drawn in these figures (the legend is the page's, or has our names), so the markup is
    matplotlib's alone.
    """
    for part in (figure, *figure.axes):
        part.patch.set_visible(False)
    text = io.StringIO()
    # The salt makes the ids different from those of the page's other figures, and the same in each writing.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1)
    return svg.replace("#000000", "currentColor").strip()
