"""Figures as inline SVG: sharp at any size, in the page's text colour, light or dark."""

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
    """Return the SVG that an HTML page needs: no prologue, metadata, namespaces or unused ids.

    These figures contain no name from the data (the page draws the legend, or it has our names), so the markup is safe.
    """
    for part in (figure, *figure.axes):
        part.patch.set_visible(False)
    text = io.StringIO()
    # The salt makes ids unique on the page and reproducible.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1)
    return svg.replace("#000000", "currentColor").strip()
