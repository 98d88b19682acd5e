"""`fedalc report`: pages again, of runs and comparisons, and any runs side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fedalc
from tests.commands import run
from tests.problems import small_dataset

KEPT = Path(__file__).parents[1] / "kept" / "v0.1"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("fedalc", "ovr", "stopped", "compared"):
        shutil.copytree(KEPT / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_several_pages_are_made_again(runs: Path) -> None:
    said = run("report", "runs/fedalc", "runs/ovr", cwd=runs.parent).stdout
    assert said.splitlines() == ["runs/fedalc/report.html", "runs/ovr/report.html"]
    for name in ("fedalc", "ovr"):
        assert "on demo</h1>" in (runs / name / "report.html").read_text(encoding="utf-8")


def test_the_page_of_a_comparison_is_made_again(runs: Path) -> None:
    table = (runs / "compared" / "table.md").read_text(encoding="utf-8")
    said = run("report", "runs/compared", cwd=runs.parent).stdout.splitlines()
    assert said[-1] == "runs/compared/report.html" and len(said) == 3
    page = (runs / "compared" / "report.html").read_text(encoding="utf-8")
    assert "2 methods on demo" in page
    again = (runs / "compared" / "table.md").read_text(encoding="utf-8")
    assert again.splitlines()[2].split("|")[1:4] == table.splitlines()[2].split("|")[1:4]


def test_runs_side_by_side(runs: Path) -> None:
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    said = run("report", "runs/fedalc", "runs/ovr", "runs/compared", "--out", "runs/side", cwd=runs.parent).stdout
    assert "fedalc (fedalc)" in said and "fedalc (fedalc-s0)" in said and "ovr (centralised)" in said
    results = json.loads((runs / "side" / "results.json").read_text(encoding="utf-8"))
    assert [result["metrics"] for result in results] == [
        fedalc.load_run(runs / name).metrics for name in ("fedalc", "ovr", "compared/fedalc-s0", "compared/fedavg-s0")
    ]
    assert "Settings that differ" in (runs / "side" / "report.html").read_text(encoding="utf-8")
    assert all(path.read_bytes() == content for path, content in before.items())
    run("report", "runs/ovr", "--out", "runs/side", cwd=runs.parent)  # an earlier comparison is replaced


def test_seeds_of_the_same_settings_share_a_row(tmp_path: Path) -> None:
    data = small_dataset()
    for seed in (0, 1):
        keys = {"method": "fedavg", "rounds": 2, "encoder": {"name": "linear", "dim": 4}, "seed": seed}
        fedalc.train(data=data, folder=tmp_path / f"s{seed}", **keys)
    run("report", "s0", "s1", "--out", "both", cwd=tmp_path)
    table = (tmp_path / "both" / "table.md").read_text(encoding="utf-8")
    assert "| fedavg | 2 |" in table and "±" in table


def test_what_is_refused(runs: Path) -> None:
    for arguments, reason in (
        (["runs/nothing"], "there is no such folder"),
        (["runs/stopped"], "has not finished"),
        (["runs/fedalc/model"], "not a run folder"),
        (["runs/fedalc", "--out", "runs/fedalc"], "is one of the runs"),
        (["runs/fedalc", "--out", "runs/ovr"], "contains other files"),
        (["runs/fedalc", "--out", "runs"], "contains other files"),
    ):
        assert reason in run("report", *arguments, cwd=runs.parent, code=2).stderr
