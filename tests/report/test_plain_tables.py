"""Tables for the terminal never cut a figure, however narrow it is."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from fedalc.report.plain_tables import HIDDEN, PlainColumn, plain_table
from fedalc.report.tables import rich_table
from fedalc.runs.result import read_result
from tests.commands import run

KEPT = Path(__file__).parents[1] / "kept" / "v0.1"
FIGURES = ["1,234,567", "63.25", "0.001"]


def printed(table: object, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [24, 30, 45, 60, 120])
def test_columns_are_shown_whole_or_named_as_hidden(width: int) -> None:
    columns = [
        PlainColumn("name", ["a-very-long-name-without-a-space", "b", "c [bold]d"], wraps=True),
        PlainColumn("first", FIGURES, right=True),
        PlainColumn("second", [f"{figure}2" for figure in FIGURES], right=True, leave_out=1),
        PlainColumn("third", [f"{figure}3" for figure in FIGURES], right=True, leave_out=2),
    ]
    shown = printed(plain_table(columns, width), width)
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    words = set(shown.split())
    below = " ".join(shown.split()).partition(HIDDEN.strip())[2]
    for column in columns[1:]:
        assert set(column.cells) <= words or (column.heading in below and not set(column.cells) & words)
    assert set(FIGURES) <= words and "[bold]d" in shown
    assert ("third" in below) == (width < 60) and ("second" in below) == (width < 45)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_results_keep_their_figures(width: int) -> None:
    results = [read_result(KEPT / name) for name in ("fedalc", "ovr", "private", "sleec")]
    results[0] = {**results[0], "name": "a method with a very long name of its own"}
    shown = printed(rich_table(results, width), width)
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    for result in results:
        assert f"{result['metrics']['P@1']:.2f}" in shown


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_lists_of_commands_are_not_cut(columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = run("data", "list", cwd=tmp_path).stdout
    labels = dict(re.findall(r"^(\S+) .*?([\d,]+) +[\d.]+  \S+ *$", wide, re.MULTILINE))
    assert labels["bibtex"] == "159" and labels["amazon-670k"] == "670,091"
    monkeypatch.setattr("tests.commands.COLUMNS", columns)
    shown = run("data", "list", cwd=tmp_path).stdout
    for name, count in labels.items():
        assert re.search(rf"^{re.escape(name)} .* {count} ", shown, re.MULTILINE), name
    for command in (
        ["data", "list"],
        ["list"],
        ["methods"],
        ["settings", "client"],
        ["settings", "server.learning_rate"],
    ):
        text = run(*command, cwd=tmp_path).stdout
        assert not re.search(r"\w…", text), command
