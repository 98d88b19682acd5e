"""From a CSV file to predictions, by commands."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import fedalc
from fedalc.data import TableSettings
from tests.commands import run
from tests.data.formats.test_tables import RECORDS, as_csv, as_lines


@pytest.fixture
def place(tmp_path: Path) -> Path:
    renamed = [{"number": r["id"], "message": r["text"], "subjects": r["topics"]} for r in RECORDS]
    (tmp_path / "messages.csv").write_text(as_csv(renamed))
    (tmp_path / "messages.jsonl").write_text(as_lines(renamed))
    return tmp_path


def test_train_predict_and_evaluate(place: Path) -> None:
    said = run("train", "--dataset", "messages.csv", "--no-tune", "--name", "one", cwd=place).stdout
    assert (
        "messages.csv: text: column 'message'; labels: column 'subjects', separated by ','; 4 records without a label "
        "left out; 20 % held out for testing (7 records)"
    ) in said
    config = tomllib.loads((place / "runs" / "one" / "config.toml").read_text())
    assert config["table"]["text_columns"] == ["message"] and config["table"]["label_separator"] == ","
    # The same settings, and the same records as JSON lines, give the same result.
    again = run("train", "--config", "runs/one/config.toml", "--name", "two", cwd=place).stdout
    run("train", "--dataset", "messages.jsonl", "--no-tune", "--name", "lines", cwd=place)
    results = [json.loads((place / "runs" / name / "result.json").read_text()) for name in ("one", "two", "lines")]
    assert results[0]["metrics"] == results[1]["metrics"] == results[2]["metrics"] and "message" in again
    # A file to predict on needs no labels, and its columns may be in another order.
    (place / "new.csv").write_text("other,message\n1,the wheat and corn\n2,the oil\n")
    lines = run("predict", "runs/one", "new.csv", "--top", "1", cwd=place).stdout.splitlines()
    assert len(lines) == 3
    alone = run("predict", "runs/one", "the oil", "--top", "1", cwd=place).stdout.splitlines()
    assert alone[1].split(",")[1:] == lines[2].split(",")[1:]
    found = json.loads(run("evaluate", "runs/one", "messages.csv", "--json", cwd=place).stdout)
    assert found["records"] == 7  # those that were held out
    found = json.loads(run("evaluate", "runs/one", "messages.jsonl", "--json", cwd=place).stdout)
    assert found["records"] == 36


def test_options(place: Path) -> None:
    held = as_csv([{"message": f"the wheat {n}", "subjects": "wheat"} for n in range(5)])
    (place / "held.csv").write_text(held)
    common = ("--dataset", "messages.csv", "--no-tune", "--text-column", "message", "--label-column", "subjects")
    said = run("train", *common, "--test", "held.csv", "--label-separator", ";", "--name", "a", cwd=place).stdout
    assert "separated by ';'" in said and "held out" not in said
    said = run("data", "check", "messages.csv", "--test-share", "0.5", cwd=place).stdout
    assert "50 % held out for testing (18 records)" in said
    wrong = run("train", "--dataset", "messages.csv", "--text-column", "massage", cwd=place, code=2).stderr
    assert "there is no column 'massage' (table.text_columns): did you mean 'message'?" in " ".join(wrong.split())
    run("compare", *common[:2], "--methods", "fedalc-oneshot,ovr", "--name", "both", cwd=place)


def test_a_resumed_run_may_leave_the_columns_open(place: Path) -> None:
    settings = {"method": "fedalc-oneshot"}
    first = fedalc.train(str(place / "messages.csv"), folder=place / "run", **settings)
    (place / "run" / "result.json").unlink()
    again = fedalc.train(str(place / "messages.csv"), folder=place / "run", resume=True, **settings)
    assert again.metrics == first.metrics
    assert again.settings.table == first.settings.table != TableSettings()
