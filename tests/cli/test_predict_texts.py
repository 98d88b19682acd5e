"""`fedalc predict` with a sentence, a file of texts, or standard input."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

import fedalc
from fedalc.data.text.features import fit_text
from fedalc.data.text.settings import TextSettings
from tests.commands import Ended, run
from tests.data.text.encoders import make_encoder
from tests.models.test_text_parts import dataset

MESSAGES = [("wheat and corn", "farm"), ("corn and grain", "farm"), ("oil and gas", "energy"), ("crude oil", "energy")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    fedalc.train(data=dataset(), method="fedalc-oneshot", folder=folder / "run")
    return folder


def best(ended: Ended) -> list[str]:
    return [json.loads(line)["labels"][0]["name"] for line in ended.stdout.splitlines()]


def predicted(folder: Path, given: str, *more: str) -> list[str]:
    return best(run("predict", "run", given, "--format", "jsonl", *more, cwd=folder))


def test_a_sentence(folder: Path) -> None:
    assert predicted(folder, "more corn and wheat") == ["farm"]
    assert predicted(folder, "gas " * 400) == ["energy"]  # longer than a file's name may be


def test_texts_that_look_like_something_else(folder: Path) -> None:
    """--text takes any text as one: a path, an option, a number, the name of a file that is there."""
    (folder / "gas").write_text("corn")
    texts = ("corn/wheat", "--crude oil", "-", "gas")
    ended = run("predict", "run", *(f"--text={text}" for text in texts), "--format", "jsonl", cwd=folder)
    assert [name for name, text in zip(best(ended), texts, strict=True) if text != "-"] == ["farm", "energy", "energy"]
    assert best(run("predict", "run", "--text", "--crude oil", "--format", "jsonl", cwd=folder)) == ["energy"]
    assert "1 of 4 texts have no word" in ended.stderr
    for given in (("corn", "--text", "oil"), ()):
        assert "only one of them" in run("predict", "run", *given, cwd=folder, code=2).stderr
    assert "give it with --text" in run("predict", "run", "corn/wheat", cwd=folder, code=2).stderr


def test_a_table_with_other_columns(folder: Path) -> None:
    (folder / "other.csv").write_text("tags,topic,body,subject\nx,y,corn and wheat,one\nx,z,crude oil,two\n")
    assert predicted(folder, "other.csv", "--text-column", "body") == ["farm", "energy"]
    (folder / "other.tsv").write_text("one\ttwo\ncorn and wheat\t1\ncrude oil\t2\n")
    assert predicted(folder, "other.tsv", "--text-column", "one") == ["farm", "energy"]
    ended = run("predict", "run", "other.csv", "--text-column", "words", cwd=folder, code=2)
    assert "there is no column 'words'" in ended.stderr and "choose with --text-column" in ended.stderr


def test_a_table_that_is_written_in_another_way(folder: Path) -> None:
    (folder / "latin.csv").write_bytes("text\nköhler corn and wheat\n".encode("latin-1"))
    assert "--set table.encoding=cp1252" in run("predict", "run", "latin.csv", cwd=folder, code=2).stderr
    assert predicted(folder, "latin.csv", "--set", "table.encoding=cp1252") == ["farm"]
    ended = run("predict", "run", "latin.csv", "--set", "table.encodign=x", cwd=folder, code=2)
    assert "did you mean 'encoding'?" in ended.stderr
    ended = run("predict", "run", "latin.csv", "--set", "rounds=3", cwd=folder, code=2)
    assert "only settings of tables can be changed here" in ended.stderr


def test_a_table_of_features_with_other_columns(tmp_path: Path) -> None:
    header, rows = "a,b,labels\n", "1,0,left\n0,1,right\n0.9,0.2,left\n0.1,0.8,right\n" * 5
    (tmp_path / "a.csv").write_text(header + rows)
    (tmp_path / "other.csv").write_text(header.replace("a,b", "x_1,x_2") + rows)
    run("train", "--dataset", "a.csv", "--no-tune", "--name", "mine", cwd=tmp_path)
    for command in ("predict", "evaluate"):
        ended = run(command, "runs/mine", "other.csv", cwd=tmp_path, code=2)
        assert "there is no column 'a'" in ended.stderr and "choose with --feature-column NAME" in ended.stderr
    ended = run("predict", "runs/mine", "other.csv", "--feature-column", "x_*", "--format", "jsonl", cwd=tmp_path)
    assert best(ended)[:4] == ["left", "right"] * 2
    ended = run(
        "evaluate", "runs/mine", "other.csv", "--feature-column", "x_1", "--feature-column", "x_2", cwd=tmp_path
    )
    assert "20 records" in ended.stdout


def test_missing_folders_of_an_output_are_made(folder: Path) -> None:
    """As all commands do that write to a file you name."""
    run("predict", "run", "corn", "--out", "new/folder/found.csv", cwd=folder)
    assert (folder / "new/folder/found.csv").read_text().startswith("instance,rank")


def test_files_of_texts(folder: Path) -> None:
    (folder / "new.txt").write_text("Corn!\ncheap gas\r\nwheat", encoding="utf-8")
    (folder / "new.txt.gz").write_bytes(gzip.compress(b"corn\ncrude oil\n"))
    assert predicted(folder, "new.txt") == ["farm", "energy", "farm"]
    assert predicted(folder, "new.txt.gz") == ["farm", "energy"]


def test_a_file_of_features(folder: Path) -> None:
    features = dataset().text.transform(["corn", "cheap gas"])
    lines = [f"2 {features.shape[1]} 2"]
    for row in features:
        lines.append("0 " + " ".join(f"{at}:{value}" for at, value in zip(row.indices, row.data, strict=True)))
    (folder / "rows.txt").write_text("\n".join(lines) + "\n")
    assert predicted(folder, "rows.txt") == ["farm", "energy"]


def test_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"corn\ncheap gas\n")))
    assert predicted(folder, "-") == ["farm", "energy"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "standard input is empty" in run("predict", "run", "-", cwd=folder, code=2).stderr


def test_what_is_refused(folder: Path) -> None:
    assert "the text is empty" in run("predict", "run", " ", cwd=folder, code=2).stderr
    assert "new.csv: no such file" in run("predict", "run", "new.csv", cwd=folder, code=2).stderr
    assert "some/where: no such file" in run("predict", "run", "some/where", cwd=folder, code=2).stderr
    (folder / "latin.txt").write_bytes("corn\nÖl".encode("latin-1"))
    assert "line 2 is not UTF-8" in run("predict", "run", "latin.txt", cwd=folder, code=2).stderr
    (folder / "noise.txt").write_bytes(bytes(range(256)))
    assert "noise.txt: is not text but binary data" in run("predict", "run", "noise.txt", cwd=folder, code=2).stderr
    (folder / "empty.txt").write_text("")
    assert "one per line" in run("predict", "run", "empty.txt", cwd=folder, code=2).stderr
    encoder = run("predict", "run", "corn", "--text-encoder", "x", cwd=folder, code=2)
    assert "not trained on the rows of a sentence encoder" in encoder.stderr


def test_texts_without_known_words_are_noted(folder: Path) -> None:
    assert "no word that the model knows" in run("predict", "run", "quantum chromodynamics", cwd=folder).stderr
    assert predicted(folder, "quantum") == predicted(folder, "quantum", "--top", "1"), "equal scores have one order"
    assert "the text is empty" in run("predict", "run", "", cwd=folder, code=2).stderr
    (folder / "half.txt").write_text("corn\n\n")
    assert "1 of 2 texts have no word" in run("predict", "run", "half.txt", cwd=folder).stderr


def test_a_model_of_features_refuses_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset()
    fedalc.train(data=fedalc.Dataset("rows", data.train), method="fedalc-oneshot", folder=folder / "rows")
    assert "no such file or folder" in run("predict", "rows", "more corn", cwd=folder, code=2).stderr
    row = data.train.features[0]
    line = " ".join(f"{at}:{value}" for at, value in zip(row.indices, row.data, strict=True))
    header = f"1 {row.shape[1]} 2\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{header}0 {line}\n".encode())))
    assert (
        "--text: this model was not trained on raw texts"
        in run("predict", "rows", "--text", "corn", cwd=folder, code=2).stderr
    )
    ended = run("predict", "rows", "-", "--format", "jsonl", cwd=folder)
    assert json.loads(ended.stdout)["labels"][0]["label"] == 0


@pytest.mark.long
def test_a_sentence_encoder_that_was_moved(tmp_path: Path) -> None:
    texts = ["wheat and corn", "cheap oil", "gas prices", "corn and grain"] * 3
    text = fit_text(texts, TextSettings(encoder=str(make_encoder(tmp_path / "encoder"))))
    split = fedalc.Split(text.transform(texts), [[1, 0], [0, 1], [0, 1], [1, 0]] * 3)
    data = fedalc.Dataset("texts", split, split, ("farm", "energy"), text=text)
    fedalc.train(data=data, method="fedalc-oneshot", folder=tmp_path / "run")
    assert predicted(tmp_path, "corn and grain") == ["farm"]
    (tmp_path / "encoder").rename(tmp_path / "moved")
    assert "encoder is not in" in run("predict", "run", "corn and grain", cwd=tmp_path, code=2).stderr
    assert predicted(tmp_path, "corn and grain", "--text-encoder", "moved") == ["farm"]


def test_tables_of_texts_and_the_whole_way(tmp_path: Path) -> None:
    lines = ["message,topic"] + [f'"{text}",{topic}' for text, topic in MESSAGES * 5]
    (tmp_path / "messages.csv").write_text("\n".join(lines) + "\n")
    run("train", "--dataset", "messages.csv", "--no-tune", "--name", "run", "--out", ".", "-q", cwd=tmp_path)
    (tmp_path / "new.csv").write_text("note,message\nurgent gas,more corn\nnice corn,crude oil\n")
    (tmp_path / "new.jsonl").write_text('{"message": "more corn"}\n{"message": "crude oil"}\n')
    for file in ("new.csv", "new.jsonl"):
        assert predicted(tmp_path, file) == ["farm", "energy"]
    assert predicted(tmp_path, "grain and wheat") == ["farm"]
    (tmp_path / "other.csv").write_text("text\nmore corn\n")
    assert "message" in run("predict", "run", "other.csv", cwd=tmp_path, code=2).stderr
