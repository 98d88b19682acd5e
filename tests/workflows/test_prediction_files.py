"""Predictions for pictures, and contact sheets, as a user gets them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from rich.console import Console

import fedalc
from fedalc.cli.main import main
from fedalc.data import Dataset, Images
from fedalc.data.synthetic.mosaics import MosaicsSize, make_mosaics
from fedalc.errors import FedalcError
from fedalc.report.contact_sheet import write_contact_sheet, write_test_sheet
from fedalc.runs.folder import SHEET, open_folder
from fedalc.workflows.counting import counting
from tests.data.layouts import from_pixels, pack, picture, write_files

SETTINGS = {
    "encoder": {"name": "resnet-small", "dim": 8}, "rounds": 1, "selection": {"validation": 0.0}, "engine": "fused",
    "dataset": "mosaics", "method": "fedavg",
}  # fmt: skip


@cache
def data() -> Dataset:
    return make_mosaics(MosaicsSize(train=40, test=70))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run on pictures, its test pictures as files, and a run on text."""
    place = tmp_path_factory.mktemp("user")
    fedalc.train(data=data(), folder=place / "run", **SETTINGS)
    files = {f"{name}.png": from_pixels(p) for name, p in zip(names(), data().test.features.pixels(), strict=True)}
    write_files(place / "photos", files)
    pack(place / "photos.tar", files)
    write_files(place / "some", {"b/1.jpg": picture(), "a.png": picture(kind="PNG"), "words.txt": b"1 2 3\n"})
    write_files(place / "bad", {"1.jpg": picture(), "2.jpg": b"x"})
    text = {"dataset": "demo", "rounds": 1, "encoder": {"dim": 8}, "selection": {"validation": 0.0}}
    fedalc.train(folder=place / "text", **text)
    return place


def names() -> tuple[str, ...]:
    return data().test.features.names


def predict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path, *arguments: str, code: int = 0
) -> tuple[str, str]:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["fedalc", "predict", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    out, error = capsys.readouterr()
    assert stop.value.code == code, error
    return out, error


@pytest.mark.long
@pytest.mark.parametrize("what", ["photos", "photos.tar"])
def test_a_datasets_own_files_are_predicted_as_its_pictures(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    out, error = predict(monkeypatch, capsys, place, "run", what, "--top", "3")
    rows = list(csv.DictReader(out.splitlines()))
    model = fedalc.load_run(place / "run").model
    assert isinstance(model, fedalc.TrainedModel) and model.picture_size == 32
    labels, scores = model.predict(data().test.features, 3)
    assert [int(row["label"]) for row in rows] == labels.ravel().tolist() and not error
    np.testing.assert_allclose([float(row["score"]) for row in rows], scores.ravel(), atol=2e-6)  # printed: 6 digits
    assert [row["instance"] for row in rows] == [f"{name}.png" for name in names() for _ in range(3)]
    assert [row["name"] for row in rows] == [data().label_names[label] for label in labels.ravel()]
    np.testing.assert_array_equal(model.predict(fedalc.read_pictures(place / what, 32), 3)[0], labels)


@pytest.mark.parametrize("features", ["abc", -5, 0, 3 * 7 * 7, 3 * 32 * 32 + 1, 3 * 1025 * 1025, 10**13, 3072.0, True])
def test_a_model_of_pictures_that_cannot_be(place: Path, tmp_path: Path, features: object) -> None:
    shutil.copytree(place / "run" / "model", tmp_path / "model")
    file = tmp_path / "model" / "facts.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"features": features}))
    (tmp_path / "model" / "SHA256SUMS").unlink()
    expected = (
        f"damaged, its parts do not fit together: {features!r} numbers are not a picture of 8 to 1024 pixels a side"
    )
    with pytest.raises(FedalcError, match=re.escape(expected)):
        fedalc.TrainedModel.load(tmp_path / "model")


def test_json_lines_and_other_sizes(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = predict(monkeypatch, capsys, place, "run", "some", "--format", "jsonl", "--top", "2")[0]
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["instance"] for line in lines] == ["a.png", "b/1.jpg"]
    assert [len(line["labels"]) for line in lines] == [2, 2]
    file = tmp_path / "new" / "one.jsonl"
    alone = ["run", "some/a.png", "--format", "jsonl", "--top", "2", "--out", str(file)]
    assert predict(monkeypatch, capsys, place, *alone) == ("", "")
    (line,) = map(json.loads, file.read_text().splitlines())
    assert line["instance"] == "a.png"
    assert [best["label"] for best in line["labels"]] == [best["label"] for best in lines[0]["labels"]]


def test_a_name_that_is_no_text_is_written_out(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / os.fsdecode(b"\xff\n,.png")).write_bytes(picture())
    out = predict(monkeypatch, capsys, place, "run", str(tmp_path), "--top", "1")[0]
    assert next(iter(csv.DictReader(out.splitlines(keepends=True))))["instance"] == "\\udcff\n,.png"


def test_broken_pictures_can_be_skipped(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "p.csv"
    arguments = ["run", "bad", "--top", "1", "--out", str(file)]
    error = predict(monkeypatch, capsys, place, *arguments, code=2)[1]
    assert error.startswith("error: bad: 2.jpg cannot be decoded") and "--broken skip" in error
    assert not any(tmp_path.iterdir())
    error = predict(monkeypatch, capsys, place, *arguments, "--broken", "skip")[1]
    assert error == ("note: bad: 1 of 2 pictures left out: 2.jpg cannot be decoded (not a picture of a known format)\n")
    assert [line.split(",")[0] for line in file.read_text().splitlines()] == ["instance", "1.jpg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "some/words.txt"], "some/words.txt: cannot be decoded (not a picture of a known format). Expected a"),
        (["run", "nowhere"], "nowhere: no such file or folder"),
        (["run", "text"], "text: has no pictures (JPEG, PNG, WebP, GIF, BMP)"),
        (["run", "some", "--broken", "mend"], "--broken: refuse or skip, not 'mend'"),
        (["text", "some/a.png"], "some/a.png: holds pictures, but this model was trained on 1600 features"),
        (["text", "photos.tar"], "photos.tar: holds pictures, but this model was trained on 1600 features"),
        (["text", "some"], "some: is a folder, and a file was expected"),
        (["run", "some/a.png", "--sheet", "some/a.png"], "--sheet: some/a.png is one of the pictures to predict for"),
        (["run", "some", "--sheet", "some/a.png"], "--sheet: some/a.png is one of the pictures to predict for"),
        (["text", "some/words.txt", "--sheet", "x.png"], "--sheet: this model was trained on features"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_the_model_is_refused(
    place: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, error = predict(monkeypatch, capsys, place, *arguments, code=2)
    assert error.startswith(f"error: {message}") and len(error.splitlines()) == 1 and not out


def test_without_pillow(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    error = predict(monkeypatch, capsys, place, "run", "some", code=2)[1]
    assert error == 'error: pictures need Pillow: pip install "fedalc[images]"\n'


def test_a_sheet_shows_the_first_pictures(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Across more than one block. A row of six, with the name, two labels and a free line each."""
    monkeypatch.setattr("fedalc.data.images.loose_files.PICTURES_AT_ONCE", 4)
    shown: list[tuple[str, ...]] = []

    def remember(path: Path, images: Images, *rest: Any) -> None:
        shown.append(images.names)
        write_contact_sheet(path, images, *rest)

    monkeypatch.setattr("fedalc.report.contact_sheet.write_contact_sheet", remember)
    options = ["--top", "2", "--sheet", str(tmp_path / "s.png"), "--sheet-pictures", "6"]
    assert len(predict(monkeypatch, capsys, place, "run", "photos", *options)[0].splitlines()) == 1 + 2 * 70
    height, width = image.imread(tmp_path / "s.png").shape[:2]
    assert width == 1470 and abs(height - 120 * (1.75 + 4 * 0.155 + 0.1)) < 1
    assert shown == [tuple(f"{name}.png" for name in names()[:6])]


def test_the_bar_leaves_standard_output_alone() -> None:
    """It goes to standard error, because predictions may be redirected to a file."""
    terminal = io.StringIO()
    before = sys.stdout
    with counting(Console(file=terminal, force_terminal=True, width=100), "pictures", shown=True) as progress:
        progress(3, 7)
        assert sys.stdout is before
    assert "pictures" in terminal.getvalue() and "3/7" in terminal.getvalue()
    with counting(Console(file=terminal, force_terminal=True, width=100), "unseen", shown=False) as progress:
        progress(3, None)
    assert "unseen" not in terminal.getvalue()


def test_rows_of_features_have_a_bar_for_each_step(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        "fedalc.workflows.predict.Console", lambda **_: Console(file=shown, force_terminal=True, width=100)
    )
    count = fedalc.load_dataset("demo").feature_count
    (tmp_path / "two.txt").write_text(f"2 {count} 0\n 0:1\n 1:1\n")
    out, _ = predict(monkeypatch, capsys, place, "text", str(tmp_path / "two.txt"), "--top", "1")
    assert len(out.splitlines()) == 3 and "instances" not in out
    assert "instances ranked" in shown.getvalue()
    monkeypatch.setattr("fedalc.workflows.load_model.SMALL_FILE", 0)  # larger ones are predicted with torch
    assert predict(monkeypatch, capsys, place, "text", str(tmp_path / "two.txt"), "--top", "1")[0] == out
    assert "instances encoded" in shown.getvalue()


@pytest.mark.long
def test_a_run_on_pictures_has_its_contact_sheet(place: Path, tmp_path: Path) -> None:
    """Drawn with the run's seed, so the saved model gives the same sheet."""
    run = fedalc.load_run(place / "run")
    assert isinstance(run.model, fedalc.TrainedModel)
    write_test_sheet(tmp_path / "again.png", run.model, data().test, run.settings.seed)
    assert (tmp_path / "again.png").read_bytes() == (place / "run" / SHEET).read_bytes()
    assert '<img src="data:image/png;base64,' in (place / "run" / "report.html").read_text()
    assert not (place / "text" / SHEET).exists() and "<img" not in (place / "text" / "report.html").read_text()


def test_a_run_in_its_place_takes_the_sheet_away(tmp_path: Path) -> None:
    (tmp_path / SHEET).write_bytes(b"of a run before")
    open_folder(tmp_path, fedalc.experiment(SETTINGS))
    assert not (tmp_path / SHEET).exists()


def test_train_says_where_the_sheet_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedalc.data.load.make_mosaics", lambda: make_mosaics(MosaicsSize(train=30, test=2)))
    monkeypatch.chdir(tmp_path)
    options = [
        "--dataset",
        "mosaics",
        "--encoder",
        "resnet-small",
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--name",
        "p",
    ]
    for setting in ("encoder.dim=8", "selection.validation=0"):
        options += ["--set", setting]
    monkeypatch.setattr(sys, "argv", ["fedalc", "train", *options])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert f"report: runs/p/report.html    pictures: runs/p/{SHEET}\n" in capsys.readouterr().out
    assert image.imread(tmp_path / "runs" / "p" / SHEET).shape[1] == (2 * 2.0 + 0.25) * 120
