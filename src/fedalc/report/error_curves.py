"""DET and ROC curves of verification, from the points in result.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

from matplotlib.ticker import FuncFormatter

from fedalc.report.plots import new_figure, tidy, write_png
from fedalc.report.style import DASHES, PALETTE, styles
from fedalc.report.summary import Result
from fedalc.runs.folder import CURVES

DET, ROC = CURVES
AGAINST = {"others": "against other enrolled persons", "strangers": "against strangers"}
_TICKS = (0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.8)
_NORMAL = NormalDist()
Points = list[tuple[float, float]]


def write_error_curves(folder: Path, result: Result) -> None:
    """Write the DET and ROC curves of a run into its folder, if its task is verification."""
    if curves := _curves_of(result):
        lines = {AGAINST[kind]: points for kind, points in curves.items()}
        looks = {name: (PALETTE[at], DASHES[at]) for at, name in enumerate(lines)}
        draw_det(folder / DET, lines, looks)
        draw_roc(folder / ROC, lines, looks)


def write_comparison_curves(folder: Path, results: Iterable[Result]) -> None:
    """Write the DET curves of methods, first seed each, against strangers if there are any."""
    lines: dict[str, Points] = {}
    kind = "others"
    for result in results:
        curves = _curves_of(result)
        if curves:
            kind, points = list(curves.items())[-1]
            lines.setdefault(str(result.get("name") or result.get("method")), points)
    if lines:
        looks = {name: (look.colour, look.dash) for name, look in styles(lines).items()}
        draw_det(folder / DET, lines, looks, AGAINST[kind])
        draw_roc(folder / ROC, lines, looks, AGAINST[kind])


def draw_det(path: Path, lines: Mapping[str, Points], looks: Mapping[str, tuple[str, Any]], against: str = "") -> None:
    """Draw false rejects by false accepts, both on the scale of a normal distribution's quantiles."""
    figure = new_figure(5.6, 5.2)
    axes = figure.subplots()
    for name, points in lines.items():
        inside = [(far, frr) for far, frr in points if 0 < far < 1 and 0 < frr < 1]
        colour, dash = looks[name]
        axes.plot(*_quantiles(inside), color=colour, linestyle=dash, label=name, drawstyle="steps-post")
    low, high = _NORMAL.inv_cdf(_TICKS[0]), _NORMAL.inv_cdf(_TICKS[-1])
    axes.plot([low, high], [low, high], color="#888888", linewidth=0.8, linestyle=":")
    for axis, limits in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        axis.set_ticks([_NORMAL.inv_cdf(tick) for tick in _TICKS], [f"{100 * tick:g} %" for tick in _TICKS])
        limits(low, high)
    _finish(axes, f"DET {against} (on the dotted line: EER)", "false accepts", "false rejects")
    write_png(figure, path)


def draw_roc(path: Path, lines: Mapping[str, Points], looks: Mapping[str, tuple[str, Any]], against: str = "") -> None:
    """Draw accepted genuine claims by false accepts, on a logarithmic scale."""
    figure = new_figure(5.6, 5.2)
    axes = figure.subplots()
    for name, points in lines.items():
        inside = [(far, 1 - frr) for far, frr in points if far > 0]
        colour, dash = looks[name]
        axes.plot(*zip(*inside, strict=True), color=colour, linestyle=dash, label=name, drawstyle="steps-post")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g} %"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    _finish(axes, f"ROC {against}", "false accepts (log scale)", "genuine claims accepted")
    write_png(figure, path)


def _finish(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    tidy(axes)
    axes.legend(fontsize=8, frameon=False)


def _curves_of(result: Result) -> dict[str, Points]:
    curves = (result.get("verification") or {}).get("curves") or {}
    return {kind: [tuple(point) for point in curves[kind]] for kind in AGAINST if curves.get(kind)}


def _quantiles(points: Points) -> tuple[list[float], list[float]]:
    return [_NORMAL.inv_cdf(far) for far, _ in points], [_NORMAL.inv_cdf(frr) for _, frr in points]
