"""`fedalc reproduce communication`: counts bytes without training."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalc.cli.main import main
from tests.reproduction.problems import from_shapes


@pytest.mark.long
def test_the_command_writes_the_table_and_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fedalc", "reproduce", "communication", "--out", str(tmp_path)])
    monkeypatch.setattr("fedalc.reproduction.communication.table.measured_round", from_shapes)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "2301.6" in printed and "98,230,528" in printed
    assert {path.name for path in (tmp_path / "communication").iterdir()} == {"table.md", "table.json", "bytes.png"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run", "--set", "foo.bar=1"], "there is no such setting"),
        (["--report-only"], "nothing to report"),
    ],
)
def test_what_would_do_nothing_is_refused(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["fedalc", "reproduce", "bibtex", "--out", str(tmp_path / "new"), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
