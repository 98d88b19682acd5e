from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedalc.data.cache import Parsed, cache_dir, cached
from fedalc.data.formats import ReadOptions, xmlc
from fedalc.data.formats.arff import Arff
from fedalc.errors import DataError

Write = Callable[..., Path]
TEXT = "2 3 2\n0 1:1 2:2.5\n\n"


class Counting:
    """A parser that counts how often it is called."""

    def __init__(self, path: Path, names: tuple[str, ...] = ()) -> None:
        self.path = path
        self.names = names
        self.calls = 0

    def __call__(self) -> Parsed:
        self.calls += 1
        return Parsed(xmlc.read_xmlc(self.path), label_names=self.names)


def test_a_file_is_parsed_once(write: Write, own_cache: Path) -> None:
    path = write(TEXT)
    parse = Counting(path, ("ä", "b c"))
    first, second = cached(path, "p1", "", parse), cached(path, "p1", "", parse)
    assert parse.calls == 1
    np.testing.assert_array_equal(first.split.features.toarray(), second.split.features.toarray())
    np.testing.assert_array_equal(first.split.labels.toarray(), second.split.labels.toarray())
    assert second.split.features.dtype == np.float32
    assert second.split.features.indices.dtype == np.int32
    assert second.label_names == ("ä", "b c")
    assert second.feature_names == ()
    assert [entry.suffix for entry in own_cache.iterdir()] == [".npz"]


def test_content_version_and_options_tell_entries_apart(write: Write) -> None:
    path = write(TEXT)
    parse = Counting(path)
    cached(path, "p1", "", parse)
    cached(path, "p2", "", parse)
    cached(path, "p1", "option", parse)
    assert parse.calls == 3
    path.write_text(TEXT.replace("2.5", "3.5"))
    assert cached(path, "p1", "", parse).split.features[0, 2] == 3.5
    assert parse.calls == 4


def test_the_name_does_not_matter(write: Write) -> None:
    parse = Counting(write(TEXT))
    cached(parse.path, "p1", "", parse)
    cached(write(TEXT, "copy.txt"), "p1", "", parse)
    assert parse.calls == 1


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other", "array"])
def test_a_damaged_entry_is_parsed_again_and_replaced(write: Write, own_cache: Path, damage: str) -> None:
    path = write(TEXT)
    parse = Counting(path)
    cached(path, "p1", "", parse)
    (entry,) = own_cache.iterdir()
    content = bytearray(entry.read_bytes())
    if damage == "cut":
        entry.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        at = content.find(np.float32(2.5).tobytes())
        content[at] ^= 0xFF
        entry.write_bytes(content)
    elif damage == "empty":
        entry.write_bytes(b"")
    elif damage == "other":
        np.savez(entry, something=np.arange(3))
    else:
        with entry.open("wb") as file:
            np.save(file, np.arange(3))
    assert cached(path, "p1", "", parse).split.features[0, 2] == 2.5
    assert parse.calls == 2
    cached(path, "p1", "", parse)
    assert parse.calls == 2


def test_a_folder_that_cannot_be_written(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has the folder's name, so nobody can write there, not even root."""
    blocked = write("in the way", "blocked")
    monkeypatch.setenv("FEDALC_CACHE", str(blocked / "cache"))
    assert len(cached(write(TEXT), "p1", "", Counting(write(TEXT))).split) == 2


def test_a_failed_parse_leaves_nothing(write: Write, own_cache: Path) -> None:
    path = write("2 3 2\nbad\n")
    with pytest.raises(DataError):
        cached(path, "p1", "", Counting(path))
    assert not own_cache.exists()


def test_a_failed_write_leaves_nothing(write: Write, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", disk_full)
    path = write(TEXT)
    assert len(cached(path, "p1", "", Counting(path)).split) == 2
    assert list(own_cache.iterdir()) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == Path(os.environ["FEDALC_CACHE"])
    monkeypatch.delenv("FEDALC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "fedalc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "fedalc"


def test_names_that_would_come_back_as_others_are_refused(write: Write) -> None:
    path = write(TEXT)
    with pytest.raises(DataError, match=r"the name 'a\\x00b' has a null character in it"):
        cached(path, "p1", "", Counting(path, ("c", "a\0b")))


def test_another_list_of_labels_is_another_entry(write: Write) -> None:
    header = "@relation r\n@attribute a {0,1}\n@attribute b {0,1}\n@data\n{0 1}\n"
    path = write(header, "x.arff")
    for name in ("a", "b"):
        write(f'<labels><label name="{name}"/></labels>', "labels.xml")
        assert Arff().parse(path, ReadOptions()).label_names == (name,)
