"""`fedalc runs`: lists, filters and sorts; deletes and cleans only what runs wrote."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fedalc.runs.folder import only_writer
from fedalc.runs.listing import find_runs, read_entry
from fedalc.workflows.train import load_run
from tests.commands import run

KEPT = Path(__file__).parents[1] / "kept" / "v0.1"
NAMES = {"compared/fedalc-s0", "compared/fedavg-s0", "deployed", "fedalc", "mlp", "ovr", "private", "sleec", "stopped"}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of an older version in `runs`: finished, interrupted, deployed, and two of a comparison."""
    shutil.copytree(KEPT, tmp_path / "runs")
    return tmp_path / "runs"


def listed(runs: Path, *options: str) -> dict[str, dict]:
    return {entry["name"]: entry for entry in json.loads(run("runs", *options, "--json", cwd=runs.parent).stdout)}


def test_all_runs_are_listed_with_how_they_stand(runs: Path) -> None:
    found = listed(runs)
    assert set(found) == NAMES
    assert found["fedalc"]["status"] == "finished" and found["fedalc"]["method"] == "fedalc"
    assert found["stopped"]["status"] == "interrupted" and found["stopped"]["detail"] == "round 2 of 4"
    for name, entry in found.items():
        files = [path for path in (runs / name).rglob("*") if path.is_file()]
        assert entry["size"] == sum(path.stat().st_size for path in files)
    assert found["ovr"]["metrics"] == load_run(runs / "ovr").metrics
    shown = run("runs", cwd=runs.parent).stdout
    assert "interrupted, round 2 of 4" in shown and "9 runs, " in shown
    assert run("runs", "list", cwd=runs.parent).stdout == shown


def test_a_damaged_run_is_listed_with_what_is_wrong(runs: Path) -> None:
    (runs / "ovr" / "result.json").write_text("{", encoding="utf-8")
    (runs / "mlp" / "config.toml").write_text("= 3", encoding="utf-8")
    shutil.rmtree(runs / "sleec" / "model")
    found = listed(runs, "--where", "status=damaged")
    assert set(found) == {"ovr", "mlp", "sleec"}
    shown = run("runs", cwd=runs.parent).stdout
    assert "ovr: damaged: not JSON" in shown and "sleec: the model is missing" in shown
    assert "mlp: config.toml cannot be read" in shown


@pytest.mark.long
def test_a_run_that_is_being_written_is_running(runs: Path) -> None:
    with only_writer(runs / "stopped"):
        assert listed(runs)["stopped"]["status"] == "running"
        refused = run("runs", "delete", "stopped", "fedalc", "--yes", cwd=runs.parent, code=2).stderr
        assert "another process is writing" in refused and (runs / "fedalc" / "model").exists()
        assert "left alone stopped" in run("runs", "clean", cwd=runs.parent).stdout
    assert listed(runs)["stopped"]["status"] == "interrupted"


@pytest.mark.parametrize(
    "conditions, names",
    [
        (["P@1>=25"], {"ovr", "sleec"}),
        (["P@1>25"], {"sleec"}),
        (["method=fedalc", "status=finished"], {"fedalc", "private", "deployed", "compared/fedalc-s0"}),
        (["name~COMP"], {"compared/fedalc-s0", "compared/fedavg-s0"}),
        (["size>80kB"], {"sleec"}),
        (["privacy.mechanism!=none"], {"private"}),
        (["dataset!=demo"], {"deployed"}),
        (["when<2000"], set()),
    ],
)
def test_conditions_filter(runs: Path, conditions: list[str], names: set[str]) -> None:
    options = [word for condition in conditions for word in ("--where", condition)]
    assert set(listed(runs, *options)) == names


def test_runs_are_sorted(runs: Path) -> None:
    for age, name in enumerate(("fedalc", "ovr", "stopped")):
        for file in (runs / name).iterdir():
            os.utime(file, (2e9 - age, 2e9 - age))
    assert list(listed(runs))[:3] == ["fedalc", "ovr", "stopped"]
    by_metric = list(listed(runs, "--sort", "P@1"))
    assert by_metric[:2] == ["sleec", "ovr"] and set(by_metric[-2:]) == {"stopped", "deployed"}
    assert next(iter(listed(runs, "--sort", "name", "--reverse"))) == "stopped"
    shown = run("runs", "--sort", "server.participation", cwd=runs.parent).stdout
    assert "server.participation" in shown


def test_unknown_names_and_folders_are_refused(runs: Path) -> None:
    assert "did you mean method?" in run("runs", "--sort", "metod", cwd=runs.parent, code=2).stderr
    for wrong in ("P@1", "P@1>>5", "P@1==5", "P@1>", "name~=x"):
        assert "expected a name, one of" in run("runs", "--where", wrong, cwd=runs.parent, code=2).stderr
    assert "P@1 is a number" in run("runs", "--where", "P@1>high", cwd=runs.parent, code=2).stderr
    assert "no such folder" in run("runs", "--folder", "nowhere", cwd=runs.parent, code=2).stderr
    assert "no runs in runs" in run("runs", cwd=runs).stdout


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_delete_removes_a_run_and_nothing_else(runs: Path) -> None:
    (runs / "ovr" / "notes.txt").write_text("mine", encoding="utf-8")
    before = files_of(runs)
    said = run("runs", "delete", "ovr", str(runs / "compared" / "fedavg-s0"), "--yes", cwd=runs.parent).stdout
    assert "deleted 2 runs" in said and "notes.txt: no run wrote it" in said
    gone = ("ovr/", "compared/fedavg-s0/")
    assert files_of(runs) == {
        name: content for name, content in before.items() if not name.startswith(gone) or name == "ovr/notes.txt"
    }
    assert not (runs / "compared" / "fedavg-s0").exists()


def test_delete_takes_a_comparison_with_its_runs(runs: Path) -> None:
    before = files_of(runs)
    run("runs", "delete", "compared", "--yes", cwd=runs.parent)
    assert not (runs / "compared").exists()
    assert files_of(runs) == {name: content for name, content in before.items() if not name.startswith("compared/")}


def test_delete_asks_and_refuses_what_is_no_run(runs: Path, tmp_path: Path) -> None:
    before = files_of(runs)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.txt").write_text("a", encoding="utf-8")
    (tmp_path / "link").symlink_to(runs / "ovr")
    for names, reason in (
        (["ovr"], "give --yes"),
        (["ovr", "nothing", "--yes"], "nothing: there is no such run"),
        (["ovr", "pictures", "--yes"], "pictures: is not a run"),
        (["link", "--yes"], "is a link"),
        (["runs", "--yes"], "is the folder of all runs"),
        ([".", "--yes"], "is the folder of all runs"),
        (["state", "--yes"], "is not a run"),
    ):
        assert reason in run("runs", "delete", *names, cwd=tmp_path, code=2).stderr
    assert files_of(runs) == before and (tmp_path / "pictures" / "a.txt").exists()


def test_clean_removes_checkpoints_of_finished_runs_and_leftovers(runs: Path) -> None:
    leftover = runs / "stopped" / "checkpoint.0a1b2c3d.part"
    leftover.mkdir()
    (leftover / "tensors").write_bytes(bytes(1000))
    (runs / "stopped" / "mine.part").write_bytes(b"mine")
    before, sizes = files_of(runs), {entry.name: entry.size for entry in find_runs(runs)}
    expected = {name for name in before if "/checkpoint/" in f"/{name}" and not name.startswith("stopped")}
    expected |= {name for name in before if ".0a1b2c3d.part/" in name}
    assert "would remove" in run("runs", "clean", "--dry-run", cwd=runs.parent).stdout and files_of(runs) == before
    said = run("runs", "clean", cwd=runs.parent).stdout
    assert set(before) - set(files_of(runs)) == expected and len(expected) > 5
    freed = sum(sizes.values()) - sum(entry.size for entry in find_runs(runs))
    assert freed == sum(len(before[name]) for name in expected) and f"removed {freed / 1000:.1f} kB" in said
    load_run(runs / "fedalc")
    assert read_entry(runs / "stopped", runs).detail == "round 2 of 4"


@pytest.mark.parametrize("columns", ["40", "60", "80", "120"])
def test_no_figure_is_cut(runs: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = run("runs", "--sort", "P@1", cwd=runs.parent).stdout
    monkeypatch.setattr("tests.commands.COLUMNS", columns)
    shown = run("runs", "--sort", "P@1", cwd=runs.parent).stdout
    assert "…" not in shown and "30.00" in shown and "25.00" in shown
    assert max(map(len, shown.splitlines())) <= int(columns)
    assert ("hidden columns" in shown) == (columns != "120") and "hidden" not in wide
