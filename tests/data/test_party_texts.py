"""Texts at parties: features by numbers of documents or by hashing, and a model that reads texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedalc
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.load import load_dataset
from fedalc.data.text.agreed import DocumentCounter, agreed_text
from fedalc.data.text.features import VocabularyText, fit_text, text_from_parts
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError, DataError
from tests.commands import run as command

WORDS = {"fever": "hot brow", "cough": "dry throat", "rash": "red skin"}
ALL = TableSettings(test_share=0.0)


def write_texts(folder: Path) -> Path:
    """North has fever and cough, south cough and rash. Some records are at both."""
    random = np.random.default_rng(5)
    for number, (party, labels) in enumerate({"north": ("fever", "cough"), "south": ("cough", "rash")}.items()):
        lines = ["text,labels"]
        for row in range(24):
            label = labels[row % 2]
            words = random.permutation([*WORDS[label].split(), f"day{row % 5}", "patient", f"only{number}"])
            lines.append(f"{' '.join(words)},{label}")
        lines += [f"dry throat again case{row},cough" for row in range(4)]  # the same at both
        (folder / party).mkdir(parents=True)
        (folder / party / "train.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "clinics")


@pytest.mark.parametrize("kind", ["vocabulary", "hashing"])
def test_a_counter_has_a_column_for_every_term_and_can_be_saved(kind: str) -> None:
    counter = DocumentCounter(TextSettings(kind=kind, buckets=64, least_documents=5))
    assert counter.documents == 0 and counter.feature_count == (64 if kind == "hashing" else 0)
    rows = counter.transform(["dry throat", "red skin", "dry skin"])
    assert counter.documents == 3 and rows.shape == (3, counter.feature_count)
    if kind == "vocabulary":
        assert dict(zip(counter.fitted.terms, rows.getnnz(axis=0).tolist(), strict=True))["skin"] == 2
    again = text_from_parts(*counter.parts())
    assert (again.transform(["dry throat", "red skin", "dry skin"]) != rows).nnz == 0


def test_parties_agree_by_numbers_of_documents(clinics: Path) -> None:
    data = load_dataset(clinics, table=ALL)
    assert isinstance(data.text, VocabularyText) and data.label_names == ("cough", "fever", "rash")
    assert "throat" in data.text.terms and "hot" not in data.text.terms  # only north has it
    texts = {party: [line.rpartition(",")[0] for line in (clinics / party / "train.csv").read_text().splitlines()[1:]]
             for party in ("north", "south")}  # fmt: skip
    every = fit_text([*texts["north"], *texts["south"]], TextSettings())
    assert isinstance(every, VocabularyText) and every.idf is not None and data.text.idf is not None
    ours, theirs = (dict(zip(text.terms, text.idf.tolist(), strict=True)) for text in (data.text, every))  # type: ignore[union-attr]
    assert all(ours[term] == theirs[term] for term in ours) and len(ours) < len(theirs)
    alone = agreed_text(list(texts.values()), TextSettings(least_parties=1))
    assert isinstance(alone, VocabularyText) and alone.terms == every.terms
    assert data.train.parties is not None and len(data.train.in_one_place) < len(data.train)


@pytest.mark.parametrize("idf", [True, False])
def test_hashed_texts(clinics: Path, idf: bool) -> None:
    settings = TextSettings(kind="hashing", buckets=64, idf=idf)
    data = load_dataset(clinics, table=ALL, text=settings)
    assert data.feature_count == 64 and (data.text is not None)


def test_a_share_for_testing_takes_no_part_in_the_counts(clinics: Path) -> None:
    (clinics / "north" / "train.csv").write_text("text,labels\nalpha beta,a\nbeta gamma,a\nbeta one,b\nbeta two,b\n")
    (clinics / "south" / "train.csv").write_text("text,labels\nalpha beta,b\nbeta gamma,a\nbeta one,b\nbeta two,a\n")
    data = load_dataset(clinics, table=TableSettings(test_share=0.25))
    assert isinstance(data.text, VocabularyText)
    assert len(data.test) == 1 and len(data.train) == 6 and len(data.text.terms) == 4  # one word is only in test


def test_refusals(clinics: Path) -> None:
    with pytest.raises(ConfigError, match="ε does not cover the numbers of documents"):
        fedalc.train(dataset=str(clinics), method="fedalc", privacy={"epsilon": 1.0})
    (clinics / "south" / "train.csv").write_text("text,labels\nother words,rash\nmore others,rash\n")
    with pytest.raises(DataError, match="no term is at 2 parties"):
        load_dataset(clinics, table=ALL)
    (clinics / "south" / "train.csv").write_text("length,labels\n1.5,rash\n2.5,rash\n")
    with pytest.raises(DataError, match=r"one of .* and this file has texts, and the other has not"):
        load_dataset(clinics, table=ALL)


def test_train_and_predict_a_text(tmp_path: Path, clinics: Path) -> None:
    command("train", "--dataset", "clinics", "--no-tune", "--out", ".", "--name", "mine", cwd=tmp_path)
    said = command("predict", "mine", "the throat is dry", cwd=tmp_path)
    assert "cough" in said.stdout.splitlines()[-1] + said.stdout
