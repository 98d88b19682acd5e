"""The catalog's raw texts and embeddings, on small files in their layouts; and on the real ones, where they are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedalc.data import load_dataset
from fedalc.data.catalog.datasets import entry
from fedalc.data.catalog.locate import presence
from fedalc.data.check import check
from tests.data.conftest import real_data

Write = Callable[..., Path]


def test_yso(write: Write, tmp_path: Path) -> None:
    assert presence(entry("yso"), tmp_path) == "no"
    rows = 'labels\ttext\n0,2\tGreenhouse climate : "a" review\n1\tThe climate of cities\n'
    write(gzip.compress(rows.encode()), "yso/train.tsv.gz")
    write(gzip.compress(rows.encode()), "yso/test.tsv.gz")
    write(gzip.compress(b"heating\ntowns\nreviews\n"), "yso/labels.txt.gz")
    data = load_dataset("yso", tmp_path)
    assert (data.name, data.label_names) == ("yso", ("heating", "towns", "reviews"))
    assert presence(entry("yso"), tmp_path) == "yes"


def test_reuters21578(write: Write, tmp_path: Path) -> None:
    lines = [{"id": str(n), "text": f"grain prices {n}", "labels": ["grain"] if n else []} for n in range(3)]
    for part in ("train", "test"):
        write("".join(f"{json.dumps(line)}\n" for line in lines), f"reuters21578/{part}.jsonl")
    data = load_dataset("reuters21578", tmp_path)
    assert (len(data.train), len(data.test)) == (2, 2)
    assert "2 records without a label left out" in data.notes[0]


def test_speakers60(tmp_path: Path) -> None:
    (tmp_path / "speakers60").mkdir()
    np.savez(
        tmp_path / "speakers60" / "speakers60.npz",
        embedding=np.eye(6, dtype=np.float32),
        speaker=np.array([1, 2, 1, 2, 3, 3], dtype=np.int16),
        split=np.array(["train", "train", "test", "test", "stranger", "stranger"]),
    )
    data = load_dataset("speakers60", tmp_path)
    assert (len(data.train), len(data.test), data.label_names) == (2, 2, ("1", "2"))
    assert data.strangers is not None and data.strangers.features.toarray().tolist() == np.eye(6)[4:].tolist()
    assert presence(entry("speakers60"), tmp_path) == "yes"


def test_the_real_speakers() -> None:
    data = load_dataset("speakers60", real_data("speakers60").parent)
    assert all(line.ok for line in check(data, entry("speakers60")))
