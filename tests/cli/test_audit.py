"""`fedalc audit`: its parts, its tables and its figures. (The collection with message files: test_collect.py.)"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedalc.audit.inversion import QUESTIONS
from fedalc.audit.membership import usual_settings
from fedalc.data.synthetic.demo import DemoSize, make_demo
from tests.cli.test_collect import write_xmlc
from tests.commands import run

DEMO = make_demo(DemoSize(train=120, test=40, words=120))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write_xmlc(tmp_path / "data" / "train.txt", DEMO.train)
    write_xmlc(tmp_path / "data" / "test.txt", DEMO.test)
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question and one model instead of all."""
    monkeypatch.setattr("fedalc.audit.inversion.QUESTIONS", QUESTIONS[:1])
    monkeypatch.setattr("fedalc.audit.membership.usual_settings", lambda labels, seed: usual_settings(labels, seed)[:1])


@pytest.mark.long
def test_all_parts_in_80_columns(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.commands.COLUMNS", "80")
    out = run("audit", "data", "--records", "60", "--json", "found.json", cwd=place).stdout
    for text in ("hmac-sha256", "chosen θ, 12 rounds", "likelihood ratio", "What to do"):
        assert text in out
    ours = out[out.index("Records that the server") :].splitlines()
    assert max(map(len, ours)) <= 80
    found = json.loads((place / "found.json").read_text())
    assert set(found) == {"data", "collection", "inversion", "membership"}
    row = found["inversion"]["rows"][0]
    assert (row["size"], row["question"]) == (1, "hinge, round 1") and row["cells"]["alone"]["cosine"] > 0.9999999
    assert found["membership"]["records"] == 60 and len(found["membership"]["rows"]) == 5


@pytest.mark.usefixtures("quick")
def test_a_run_is_attacked_too(place: Path) -> None:
    run("train", "--dataset", "data", "--method", "fedalc-oneshot", cwd=place)
    (folder,) = (place / "runs").iterdir()
    options = ("--what", "inversion,membership", "--model", f"runs/{folder.name}", "--records", "40")
    out = run("audit", "data", *options, "--json", "found.json", cwd=place).stdout
    assert f"runs/{folder.name}: its training records against the test records" in out and "hmac" not in out
    found = json.loads((place / "found.json").read_text())
    assert found["membership"]["run"]["threshold"]["members"] == 120 and "collection" not in found


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_data_that_a_part_cannot_use(place: Path) -> None:
    write_xmlc(place / "few.txt", DEMO.train.rows(np.arange(10)))
    out = run("audit", "few.txt", cwd=place).stdout
    assert "note: membership left out: 10 records" in out
    error = run("audit", "few.txt", "--what", "membership", cwd=place, code=2).stderr
    assert "too few to attack membership" in error
    pictures = run("audit", "mosaics", cwd=place).stdout
    assert "note: inversion, membership left out: for rows of features, not for pictures" in pictures
    assert "not for pictures" in run("audit", "mosaics", "--what", "inversion", cwd=place, code=2).stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--what", "everything"), "unknown part 'everything'; there are collection, inversion, membership"),
        (("--what", ","), "name at least one part"),
        (("--what", "collection", "--model", "run"), "--model needs the part membership"),
        (("--key", "key"), "--key needs message files"),
        (("a.msg", "--what", "inversion"), "message files are for the part collection"),
        (("--what", "membership", "--model", "none"), "none: no such run folder"),
    ],
)
def test_what_does_not_go_together(place: Path, options: tuple[str, ...], why: str) -> None:
    assert why in run("audit", "data", *options, cwd=place, code=2).stderr


def test_texts_are_hashed(tmp_path: Path) -> None:
    lines = [f"{'wheat corn' if at % 2 else 'oil gas'} word{at},{'grain' if at % 2 else 'fuel'}" for at in range(12)]
    file = tmp_path / "texts.csv"
    file.write_text("text,labels\n" + "\n".join(lines) + "\n")
    out = run("audit", file.name, "--what", "collection", cwd=tmp_path).stdout
    assert "of 12 instances and 2 label names" in out
