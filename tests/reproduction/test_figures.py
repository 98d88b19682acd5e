"""The figures show the right data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedalc.reproduction import figures
from fedalc.reproduction.page import write_page
from fedalc.reproduction.results import Fit
from tests.report.test_plots import png_size
from tests.reproduction.problems import cell, line, outcome


def legend_texts(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.long
def test_all_are_written_and_are_in_the_page(tmp_path: Path) -> None:
    found = outcome()
    drawn = figures.write_all(found, tmp_path)
    assert list(drawn) == ["clients", "curves-lambda", "lambda", "fixed", "convergence"]
    for name in drawn:
        assert min(png_size(tmp_path / f"{name}.png")) > 300
    page = write_page(found, drawn, tmp_path).read_text()
    assert page.count("<svg") == len(drawn) and "http" not in page.replace("http-equiv", "")
    assert "fedalc 0.1" in page
    found.versions.append({"python": "3.12", "fedalc": "0.1"})
    page = write_page(found, drawn, tmp_path).read_text()
    assert "python 3.11" in page and "python 3.12" in page
    for part in ("SLEEC (centralised)¹", "¹ Not ours.", "<b>63.00</b>", "fedalc reproduce small", "Precision by λ"):
        assert part in page


def test_clients_are_sorted_with_median_and_extremes() -> None:
    (axes,) = figures.clients(outcome()).axes
    assert axes.lines[0].get_ydata().tolist() == [90, 40, 5]
    assert "median 40" in [text.get_text() for text in axes.texts]
    assert axes.get_title(loc="left") == "3 clients: 90 to 5 instances"
    assert axes.get_yscale() == "log"


def test_curves_have_a_line_for_each_lambda_and_say_what_they_are_of() -> None:
    figure = figures.curves_lambda(outcome())
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [f"{m}, preset {p}" for p in ("paper", "strong") for m in ("fedaws", "fedalc")]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2, 2]
    assert "test set, for the curve only" in figure.axes[0].get_ylabel()
    assert figure.axes[2].get_ylabel() == "P@1 on validation data (%)"
    assert legend_texts(figure) == ["λ = 1", "λ = 10"]
    first, second = figure.axes[0].lines
    assert first.get_color() != second.get_color() and first.get_ydata()[-1] == 31


def test_precision_by_lambda_has_ours_with_spread_and_the_papers_open() -> None:
    figure = figures.precision_by_lambda(outcome())
    axes = figure.axes[0]
    assert len(figure.axes) == 6 and axes.get_xscale() == "log"
    published = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert [list(line.get_ydata()) for line in published] == [[20.1, 21.0]] * 2
    means = [list(container.lines[0].get_ydata()) for container in axes.containers]
    assert means == [[32, 41], [32, 41]]
    assert legend_texts(figure) == ["fedaws, ours", "fedaws, published", "fedalc, ours", "fedalc, published"]


def test_fixed_beside_moving_embeddings() -> None:
    figure = figures.fixed(outcome())
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["preset paper", "preset strong"]
    names = ["fedavg", "fedalc, λ = 10 (best on test)", "fedavg-fixed", "fedalc-fixed", "fedalc, preset's λ"]
    assert legend_texts(figure) == names
    assert sum(len(bars) for bars in figure.axes[0].containers if hasattr(bars, "patches")) == 2 * 3


def test_convergence_has_the_fitted_line_of_fedalc() -> None:
    fit = Fit(factor=0.5, start=0.0625, first=4, last=8, explained=1.0)
    figure = figures.convergence(outcome(convergence={"fedalc, λ = 10": fit}))
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert "fedalc: ×0.5000 per round, R² 1.000" in legend_texts(figure)
    fitted = axes.lines[-1]
    assert list(fitted.get_xdata()) == [4, 8] and fitted.get_ydata() == pytest.approx([0.5**4, 0.5**8])


def test_nothing_to_draw_is_no_figure() -> None:
    bare = outcome(lines=[line("FedALC", "fedalc", 1, cells={"paper": cell(missing={0: "not run"})})], clients=[])
    assert figures.draw_all(bare) == {}
    without_curve = outcome(lines=[line("FedALC", "fedalc", 1, cells={"paper": cell(50, metric=None)})])
    assert list(figures.draw_all(without_curve)) == ["clients", "lambda", "fixed", "convergence"]
