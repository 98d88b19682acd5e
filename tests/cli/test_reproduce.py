"""`fedalc reproduce` as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedalc.cli.main import main
from tests.commands import run
from tests.reproduction.problems import TINY, write_data, write_table

TINY_SET = [part for setting in TINY for part in ("--set", setting)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FEDALC_DATA", raising=False)
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedalc", "reproduce", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.mark.long
def test_a_large_table_on_a_small_file(here: Path) -> None:
    """Run every cell of a table meant for a GPU and gigabytes of data, on small data in the same format."""
    write_data(here / "made")
    command = ["reproduce", "amazoncat", "--dataset", "made", "--rounds", "2", "--device", "cpu", "--presets", "paper"]
    command += ["--jobs", "1", "--only", "paper/fed*[gc]", *TINY_SET]
    printed = run(*command, cwd=here).stdout
    assert "[2/2]" in printed
    made = here / "runs" / "reproduce" / "amazoncat"
    assert sorted(path.name for path in made.iterdir() if path.suffix) == [
        "clients.png", "convergence.png", "report.html", "table.json", "table.md",
    ]  # fmt: skip
    table = json.loads((made / "table.json").read_text())
    assert table["command"].startswith("fedalc reproduce amazoncat --presets paper --rounds 2 --dataset made --set ")
    alc = next(line for line in table["lines"] if line["method"] == "fedalc")
    assert alc["published"] == [86.92, 66.68, 48.92]
    assert alc["cells"]["paper"]["results"][0]["metrics"]["P@1"] >= 0
    assert len(alc["cells"]["paper"]["curve"]["loss"]) == 2
    assert (made / "paper" / "fedalc-s0" / "result.json").exists()
    assert "neighbours = 50" in (made / "paper" / "fedalc-s0" / "config.toml").read_text()


@pytest.mark.parametrize("table", ["amazon670k", "wikilshtc", "amazoncat"])
def test_dry_run_of_a_large_table(
    table: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(here / "made")
    assert call(monkeypatch, table, "--dataset", "made", "--rounds", "2", "--device", "cpu", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "strong/fedalc" in printed and "0 new" in printed
    assert not (here / "runs").exists()


def test_dry_run_says_what_data_is_missing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "bibtex", "--dry-run", "--data-dir", "nowhere") == 2
    printed = capsys.readouterr()
    assert "fedaws-lambda-150" in printed.out and "150" in printed.out and "0 1 2 new" in printed.out
    assert "nowhere/bibtex" in printed.err and "fedalc data info bibtex" in printed.err
    assert call(monkeypatch, "bibtex", "--data-dir", "nowhere") == 2  # and nothing is begun
    assert not (here / "runs").exists()


@pytest.mark.long
def test_a_report_at_any_time(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(here / "small")
    (here / "runs" / "reproduce" / "small").mkdir(parents=True)
    assert call(monkeypatch, "small", "--report-only") == 0
    assert "– not run" in capsys.readouterr().out
    made = here / "runs" / "reproduce" / "small"
    assert "| FedAvg |  | 11.60 | 9.11 | 7.84 | – not run | – | – | – not run |" in (made / "table.md").read_text()
    assert (made / "clients.png").exists() and not (made / "lambda.png").exists()


def test_the_list_of_tables(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("bibtex", "eurlex", "amazoncat", "amazon670k", "wikilshtc"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bibtx"], "did you mean bibtex? there are"),
        (["bibtex", "--presets", "paper,weak"], "unknown preset 'weak'"),
        (["bibtex", "--seeds", "a"], "--seeds: 'a' is not a whole number"),
        (["bibtex", "--only", "fedprox"], "no cell of bibtex is called 'fedprox'"),
        (["bibtex", "--set", "encoder.nam=mlp"], "none of these cells can be run: encoder.nam"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    arguments: list[str],
    message: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (here / "runs").exists()
