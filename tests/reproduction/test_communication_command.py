"""`fedalc reproduce communication`: counted, not trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalc.cli import main


def test_the_command_writes_the_table_and_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fedalc", "reproduce", "communication", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "2301.6" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "communication").iterdir()} == {"table.md", "table.json", "bytes.png"}
