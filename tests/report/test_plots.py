from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalc.core.registry import METHODS, ORACLES
from fedalc.report import plots
from fedalc.report.curves import panels
from fedalc.report.style import method_colour, styles
from tests.report.results import record, result

pytestmark = pytest.mark.usefixtures("figures")


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.mark.long
def test_learning_curves(tmp_path: Path) -> None:
    histories = {name: [record(number) for number in range(1, 9)] for name in ("fedavg", "fedalc")}
    plots.learning_curves(histories, tmp_path / "new" / "curves.png", chosen={"fedalc": 4})
    width, height = png_size(tmp_path / "new" / "curves.png")
    assert width == 1200 and 800 <= height <= 1000
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["curves.png"]


def test_precision_for_bytes(tmp_path: Path) -> None:
    histories = {name: [record(number) for number in range(5, 105, 5)] for name in (*METHODS, *ORACLES)}
    plots.precision_for_bytes(histories | {"fedalc-oneshot": [record(1)]}, tmp_path / "new" / "bytes.png")
    width, height = png_size(tmp_path / "new" / "bytes.png")
    assert width == 1200 and 500 <= height <= 700
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bytes.png"]


@pytest.mark.long
@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(1)],
        [record(5, "fit"), record(10, "fit")],
        [record(5, "fit", loss=math.nan), record(10, "fit", loss=math.inf)],
        [record(1, loss=0.0)],
        [record(1, loss=0.5), record(2, loss=0.0), record(3, loss=-0.1)],
        [record(1, metrics={"validation P@1": math.nan}, collapse={"max_cosine": math.nan})],
        [{"phase": "select"}, {}],
        [record(1, metrics=None, collapse=None, loss=None, bytes_up=None)],
        [record(number) for number in range(1, 400)],
        [record(number, bytes_up=0, bytes_down=0) for number in (1, 2)],
        [record(number, metrics={"validation P@1": 9.0}, bytes_up=1, bytes_down=0) for number in (1, 2, 3)],
        [record(1, round=0), record(1), record(100)],
    ],
)
def test_any_history_can_be_drawn(records: list[dict[str, Any]], tmp_path: Path) -> None:
    plots.learning_curves({"fedavg": records}, tmp_path / "curves.png", chosen={"fedavg": 1})
    plots.precision_for_bytes({"fedavg": records, "fedalc-oneshot": [record(1)]}, tmp_path / "bytes.png")
    assert all((tmp_path / f"{what}.png").stat().st_size > 5000 for what in ("curves", "bytes"))


def test_no_history_at_all(tmp_path: Path) -> None:
    plots.learning_curves({}, tmp_path / "curves.png")
    plots.precision_for_bytes({}, tmp_path / "bytes.png")
    assert all(min(png_size(tmp_path / f"{what}.png")) > 100 for what in ("curves", "bytes"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["$x_{1$", "_hidden", "<b>", "日本", "x" * 500, "", "a\nb", "\\frac"])
@pytest.mark.filterwarnings("ignore:Glyph")
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    plots.learning_curves({name: [record(1), record(2)], "fedavg": [record(1)]}, tmp_path / "curves.png")
    plots.comparison_bars([result(name), result("fedavg")], tmp_path / "bars.png")
    plots.cosine_heatmap({name: np.eye(3)}, tmp_path / "heat.png")
    assert all((tmp_path / f"{what}.png").stat().st_size > 1000 for what in ("curves", "bars", "heat"))


def test_panels_take_select_and_leave_the_refit() -> None:
    records = [record(1), record(2), record(1, "refit", loss=9.0), record(2, "refit", loss=9.0)]
    validation, traffic, loss, cosine = panels({"fedavg": records})
    assert validation.points["fedavg"] == [(1, 51), (2, 52)]
    assert loss.points["fedavg"] == [(1, 1), (2, 0.5)]
    assert cosine.points["fedavg"] == [(1, 0.2), (2, 0.2)]
    assert traffic.points["fedavg"] == [(4e6, 51), (8e6, 52)] and traffic.log_x
    assert (validation.title, traffic.title) == ("Precision", "Precision by traffic")
    watched = [{**each, "metrics": {"validation mAP": 30.0}} for each in records]
    validation, traffic, *_ = panels({"fedavg": watched})
    assert (validation.title, traffic.title) == ("mAP", "mAP by traffic")


def test_bytes_have_units() -> None:
    assert [plots.bytes_tick(n) for n in (500, 2e6, 1e7, 5e11, 1e12)] == ["500 B", "2 MB", "10 MB", "500 GB", "1 TB"]
    (panel,) = [panel for panel in panels({"fedavg": [record(1)]}) if panel.key == "bytes"]
    axes = plots.new_figure(5, 4).subplots()
    plots.draw_panel(axes, panel, styles(["fedavg"]), {})
    axes.figure.canvas.draw()
    low, high = axes.get_xlim()
    shown = [tick.label1.get_text() for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert shown == ["2 MB", "5 MB", "10 MB"]


def test_a_single_evaluation_is_a_point_on_top() -> None:
    histories = {"fedalc-oneshot": [record(1)], "fedavg": [record(number) for number in range(1, 201)]}
    axes = plots.new_figure(5, 4).subplots()
    plots.draw_panel(axes, panels(histories)[1], styles(histories), {})
    point, line = axes.lines
    assert point.get_zorder() > line.get_zorder() and point.get_markersize() > line.get_markersize()


def test_rounds_are_logarithmic_only_where_histories_differ_much() -> None:
    def scale(*lengths: int) -> set[bool]:
        drawn = panels({str(last): [record(number) for number in range(1, last + 1)] for last in lengths} | {"x": []})
        return {panel.log_x for panel in drawn if panel.key != "bytes"}

    assert scale(25, 200) == scale(1, 4) == {True}
    assert scale(200) == scale(60, 100) == scale() == {False}
    assert {p.log_x for p in panels({"a": [record(1, round=0)], "b": [record(9)]}) if p.key != "bytes"} == {False}


def test_panels_without_validation() -> None:
    validation, traffic, loss, _ = panels({"fedavg": [record(1, "fit"), record(2, "fit")]})
    assert validation.empty and traffic.empty and not loss.empty


def test_zero_loss_is_said_to_be_missing() -> None:
    loss = panels({"fedavg": [record(1), record(2, loss=0.0)]})[2]
    assert loss.log_y and loss.points["fedavg"] == [(1, 1)] and "zeros not shown" in loss.title
    loss = panels({"fedavg": [record(1, loss=0.0)]})[2]
    assert not loss.log_y and loss.points["fedavg"] == [(1, 0)]


def test_a_method_has_one_colour_everywhere() -> None:
    assert styles(["fedavg", "fedalc"])["fedalc"].colour == styles(["fedalc"])["fedalc"].colour
    looks = styles(["fedalc-fixed seed 0", "fedalc seed 0", "fedalc seed 1", "mine"])
    colours = [look.colour for look in looks.values()]
    assert colours[:3] == [method_colour("fedalc-fixed"), method_colour("fedalc"), method_colour("fedalc")]
    assert colours[3] not in colours[:3]
    assert looks["fedalc seed 0"].dash != looks["fedalc seed 1"].dash


def test_every_method_has_a_colour_and_a_marker_of_its_own() -> None:
    assert all(method_colour(name) for name in (*METHODS, *ORACLES))
    looks = styles((*METHODS, *ORACLES))
    assert (
        len({look.colour for look in looks.values()})
        == len({look.marker for look in looks.values()})
        == len(METHODS) + len(ORACLES)
    )


@pytest.mark.parametrize("method", (*METHODS, *ORACLES))
@pytest.mark.parametrize("rest", ["", " #2", ", bibtex", " seed 1", ": ε 1", "\n"])
def test_what_follows_a_method_does_not_change_its_colour(method: str, rest: str) -> None:
    assert styles([method + rest])[method + rest].colour == method_colour(method)


@pytest.mark.parametrize("name", ["fedalc-mine", "fedalcs", "fedalc-exact2", "fedavg_fixed"])
def test_a_name_that_only_begins_like_a_method_is_another(name: str) -> None:
    assert styles([name])[name].colour not in [method_colour(known) for known in (*METHODS, *ORACLES)]


def test_many_names_have_different_looks() -> None:
    looks = styles([f"m{number}" for number in range(20)])
    assert len(set(looks.values())) == 20


def test_comparison_bars(tmp_path: Path) -> None:
    results = [result(), result(seed=1, precision=60.0), result("fedaws", metrics={"P@1": math.nan})]
    plots.comparison_bars(results, tmp_path / "bars.png")
    assert png_size(tmp_path / "bars.png") == (780, 534)
    plots.comparison_bars([], tmp_path / "none.png")


def test_cosine_heatmap(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(500, 8))
    rows[3], rows[4] = 0.0, np.nan
    plots.cosine_heatmap({"fedavg": np.ones((500, 8)), "fedalc": rows}, tmp_path / "heat.png", np.arange(500))
    width, height = png_size(tmp_path / "heat.png")
    assert width == round((2.9 * 2 + 1.1) * 120) and height > 300
    plots.cosine_heatmap({}, tmp_path / "none.png")


def test_heatmap_takes_labels_from_frequent_to_rare() -> None:
    W, frequency = np.eye(3)[[0, 1, 1]], np.array([1, 5, 9])
    assert plots._cosines(W, frequency).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert plots._cosines(np.ones((1000, 2)), None).shape == (200, 200)


@pytest.mark.long
def test_nothing_global() -> None:
    code = "import sys, fedalc.report.page; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
