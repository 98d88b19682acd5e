"""`fedalc data …` for datasets of pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedalc.data.commands import app
from tests.data.layouts import pack, picture, voc, write_files


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--data-dir", str(tmp_path)])

    return invoke


def _here(printed: str) -> dict[str, str]:
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.startswith("│")]
    return {row[0]: row[-1] for row in rows}


def test_list_says_what_is_here(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_files(tmp_path / "voc2012", voc())
    pack(tmp_path / "coco/any.tar.gz", {"x.jpg": picture()})
    (tmp_path / "flair").mkdir()
    here = _here(run("list").stdout)
    assert {name: here[name] for name in ("demo", "mosaics", "voc2007", "voc2012", "voc2012-leaking")} == {
        "demo": "embedded",
        "mosaics": "embedded",
        "voc2007": "no",
        "voc2012": "yes",
        "voc2012-leaking": "yes",
    }
    assert {name: here[name] for name in ("coco", "coco-val2017", "flair", "flair-fine")} == {
        "coco": "packed",
        "coco-val2017": "packed",
        "flair": "no",
        "flair-fine": "no",
    }


def test_info_says_where_and_what(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    printed = run("info", "voc2012-leaking").stdout
    assert "LEAKING" in printed and "11,540 train, 5,823 test, pictures, 20 labels" in printed
    assert f"in {tmp_path / 'voc2012'}" in printed.replace("\n", "")
    assert "39,239 validation, pictures, 1,628 labels" in run("info", "flair-fine").stdout
    assert "of 51,414 users" in run("info", "flair-fine").stdout and "of 40 users" in run("info", "mosaics").stdout
    assert "users" not in printed


def test_check_compares_with_what_was_published(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_files(tmp_path / "voc2012", voc())
    result = run("check", "voc2012")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if line.startswith("│")]
    assert [line.split("│")[4].strip() for line in lines] == ["differs", "differs", "ok", "differs"]


def test_check_lists_broken_pictures(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_files(tmp_path / "voc2012", voc() | {"VOCdevkit/VOC2012/JPEGImages/000001.jpg": b"no picture"})
    result = run("check", "voc2012")
    assert result.exit_code == 1
    assert "1 of 3 pictures left out: VOCdevkit/VOC2012/JPEGImages/000001.jpg cannot be decoded" in result.stdout


@pytest.mark.parametrize(("name", "message"), [("mosaics", "made on the spot"), ("voc2007", "cannot be downloaded")])
def test_fetch_says_what_to_do(run, name: str, message: str) -> None:  # type: ignore[no-untyped-def]
    assert message in str(run("fetch", name).exception)
