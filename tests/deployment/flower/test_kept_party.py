"""A worker reads its party's data once, as long as the same would be read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedalc.data.images.images import ImageOptions
from fedalc.data.text.agreed import DocumentCounter
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower import kept_party, party
from fedalc.deployment.flower.kept_party import keep_party, read_party
from fedalc.deployment.flower.party import Party, hashed
from fedalc.errors import DataError
from fedalc.labels.collection.keys import Key


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were read. Parties are kept until the test ends."""
    files, read = list[str](), party.load_holding

    def noted(data: str, *more: Any) -> Any:
        files.append(data)
        return read(data, *more)

    monkeypatch.setattr(party, "load_holding", noted)
    monkeypatch.setattr(kept_party, "_slot", kept_party._Slot())
    yield files


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    Key.fresh().write(tmp_path / "key")
    (tmp_path / "data.txt").write_text("2 3 1\n0 0:1.0\n0 2:1.0\n")
    return {"data": str(tmp_path / "data.txt"), "key": str(tmp_path / "key")}


def read(config: dict[str, Any], run: str = "a", text: Any = hashed, size: int = 96) -> Party:
    return read_party(config, ImageOptions(size=size), run, text, None)


def test_labels_of_few_records_are_left_out(config: dict[str, Any]) -> None:
    """With the records that have no other label."""
    Path(config["data"]).write_text("4 3 3\n0,1 0:1.0\n0 1:1.0\n1 2:1.0\n2 2:2.0\n")
    found = {least: read(config | {"least-records": least}).holding for least in (1, 2)}
    assert {least: sorted(holding.names) for least, holding in found.items()} == {1: ["0", "1", "2"], 2: ["0", "1"]}
    assert {least: len(holding.split) for least, holding in found.items()} == {1: 4, 2: 3}
    with pytest.raises(DataError, match="no label has 3 records"):
        read(config | {"least-records": 3})


def test_only_a_worker_keeps_a_party(reads: list[str], config: dict[str, Any]) -> None:
    assert read(config) is not read(config) and len(reads) == 2


def test_the_same_party_is_read_once(reads: list[str], config: dict[str, Any]) -> None:
    keep_party()
    assert read(config) is read(config) and len(reads) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"run": "b"},
        {"size": 64},
        {"text": lambda hasher: TextSettings(kind="hashing", buckets=64, idf=False)},
    ],
)
def test_another_party_is_read_anew(reads: list[str], config: dict[str, Any], other: dict[str, Any]) -> None:
    keep_party()
    first, second = read(config), read(config, **other)
    assert first is not second and read(config, **other) is second
    assert read({**config, "client": "other"}).client == "other" and len(reads) == 3


def test_what_counts_documents_reads_each_time(reads: list[str], config: dict[str, Any]) -> None:
    keep_party()
    for _ in range(2):
        counter = DocumentCounter(TextSettings(kind="hashing"))
        read(config, text=lambda hasher, counter=counter: counter)
    assert len(reads) == 2
