from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from fedalc.data.formats.flair import VARIANTS as FLAIR
from fedalc.data.formats.flair import read_flair
from fedalc.data.formats.voc import VARIANTS as VOC
from fedalc.data.formats.voc import read_voc
from fedalc.data.storage import Place
from fedalc.errors import DataError
from tests.data.layouts import pack, write_files

FILES = {"a/one.txt": b"1", "a/two.txt": b"22", "b/three.bin": b"333"}
TEXT = re.compile(r"(?:.*/)?[a-z]+\.txt")


def contents(files: object) -> dict[str, bytes]:
    return {file.name: file.read(1 << 20) for file in files}  # type: ignore[attr-defined]


@pytest.fixture(params=["loose", "set.tar", "set.tar.gz", "set.tgz", "archive itself"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "loose":
        return Place(write_files(tmp_path / "set", FILES))
    if request.param == "archive itself":
        return Place(pack(tmp_path / "x.tar.gz", FILES))
    pack(tmp_path / "set" / request.param, {f"./{name}": content for name, content in FILES.items()})
    return Place(tmp_path / "set")


def test_files_are_found_wherever_they_are(place: Place) -> None:
    assert contents(place.matching(TEXT)) == {"a/one.txt": b"1", "a/two.txt": b"22"}
    assert contents(place.files(["b/three.bin", "./a//one.txt", "none.txt"])) == {
        "a/one.txt": b"1",
        "b/three.bin": b"333",
    }


def test_what_is_loose_comes_first(tmp_path: Path) -> None:
    pack(tmp_path / "old.tar", {**FILES, "a/one.txt": b"old"})
    place = Place(write_files(tmp_path, {"a/one.txt": b"new"}))
    assert contents(place.files(FILES)) == {**FILES, "a/one.txt": b"new"}
    assert contents(place.matching(TEXT)) == {"a/one.txt": b"new"}


def test_several_archives_are_parts_of_a_whole(tmp_path: Path) -> None:
    pack(tmp_path / "p-00.tar.gz", {"a/one.txt": b"1", "a/both.txt": b"first"})
    pack(tmp_path / "p-01.tar", {"a/two.txt": b"22", "a/both.txt": b"second"})
    expected = {"a/one.txt": b"1", "a/two.txt": b"22", "a/both.txt": b"first"}
    assert contents(Place(tmp_path).files(expected)) == expected
    assert contents(Place(tmp_path).matching(TEXT)) == expected


def test_an_archive_is_read_front_to_back_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "x.tar.gz", {f"{at}.bin": os.urandom(5000) for at in range(50)})
    unpacked, back = 0, 0
    read, rewind = gzip.GzipFile.read, gzip._GzipReader._rewind  # type: ignore[attr-defined]

    def counting(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        nonlocal unpacked
        got = read(self, size)
        unpacked += len(got)
        return got

    def rewinding(self: object) -> None:
        nonlocal back
        back += 1
        rewind(self)

    monkeypatch.setattr(gzip.GzipFile, "read", counting)
    monkeypatch.setattr(gzip._GzipReader, "_rewind", rewinding)  # type: ignore[attr-defined]
    found = contents(Place(path).files([f"{at}.bin" for at in reversed(range(50))]))
    assert list(found) == [f"{at}.bin" for at in range(50)]
    assert back == 0 and 0 < unpacked < 1.2 * 50 * 6000


def test_a_stamp_tells_whether_something_has_changed(tmp_path: Path) -> None:
    place = Place(write_files(tmp_path / "set", FILES))
    known = place.stamp(list(FILES))
    assert place.stamp(list(FILES)) == known != place.stamp(["a/one.txt"])
    archive = pack(tmp_path / "set" / "more.tar", {"c.txt": b""})
    both = Place(tmp_path / "set")
    assert both.stamp(list(FILES)) == known, "an archive that is not needed has no say"
    with_archive = both.stamp([*FILES, "c.txt"])
    os.utime(archive, ns=(1, 1))
    assert both.stamp([*FILES, "c.txt"]) != with_archive
    os.utime(tmp_path / "set/a/one.txt", ns=(1, 1))
    assert place.stamp(list(FILES)) != known
    assert Place(write_files(tmp_path / "other", FILES)).stamp(list(FILES)) != known


def test_links_in_a_folder_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write_files(tmp_path / "disk", FILES)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "a" / "again").symlink_to(tmp_path / "disk")
    assert Place(tmp_path / "set").loose(TEXT) == ["data/a/one.txt", "data/a/two.txt"]


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


HOSTILE: dict[str, Callable[[], tarfile.TarInfo]] = {
    "climbs": lambda: _member("../../etc/passwd"),
    "absolute": lambda: _member("/etc/passwd"),
    "backslash": lambda: _member("..\\x"),
    "symbolic link": lambda: _member("a/link.txt", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": lambda: _member("a/link.txt", tarfile.LNKTYPE, "a/one.txt"),
    "device": lambda: _member("a/zero.txt", tarfile.CHRTYPE),
    "pipe": lambda: _member("a/pipe.txt", tarfile.FIFOTYPE),
    "twice": lambda: _member("a/one.txt"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_hostile_archives_are_refused(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w") as archive:
        first = _member("a/one.txt")
        first.size = 1
        archive.addfile(first, io.BytesIO(b"1"))
        archive.addfile(HOSTILE[kind]())
    with pytest.raises(DataError, match=rf"x{re.escape(suffix)}: refused: "):
        contents(Place(path).matching(TEXT))
    with pytest.raises(DataError, match="refused"):
        contents(Place(path).files(["a/one.txt", "a/two.txt"]))


@pytest.mark.parametrize("name", ["../x.txt", "/etc/passwd", "a/../../x", "c:x", "a\0b"])
def test_names_that_lead_out_are_not_opened(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, {"x.txt": b"secret", "set/y.txt": b""})
    with pytest.raises(DataError, match="leads out of the folder"):
        list(Place(tmp_path / "set").files([name]))


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_damaged_archives(tmp_path: Path, suffix: str, damage: str) -> None:
    path = pack(tmp_path / f"x{suffix}", {f"{at}.txt": os.urandom(20000) for at in range(5)})
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else os.urandom(5000))
    with pytest.raises(DataError, match=r"cut short or is damaged \(.*\); get it again"):
        contents(Place(path).files([f"{at}.txt" for at in range(5)]))


def test_a_damaged_archive_of_an_unexpected_compression(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w:xz") as archive:
        member = tarfile.TarInfo("1.txt")
        member.size = 50_000
        archive.addfile(member, io.BytesIO(os.urandom(50_000)))
    content = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(content[:20_000] + bytes(100) + content[20_100:])
    with pytest.raises(DataError, match=r"x\.tar: cannot be read as an archive: .*damaged \(.*\); get it again"):
        contents(Place(tmp_path / "x.tar").files(["1.txt"]))


@pytest.mark.parametrize(
    ("size", "read", "message"),
    [
        ((2 << 30) + 1, lambda place: read_flair(place, FLAIR["coarse"]), "_metadata.json: is larger than 2048 MB"),
        ((64 << 20) + 1, lambda place: read_voc(place, VOC["2012"]), "Main/train.txt: is larger than 64 MB"),
        (1 << 62, lambda place: contents(place.matching(TEXT)), "a/one.txt: is larger than 1 MB"),
    ],
)  # fmt: skip
def test_what_an_archive_says_of_a_size_is_not_believed(
    tmp_path: Path, size: int, read: Callable[[Place], object], message: str
) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("labels_and_metadata.json", "VOC2012/ImageSets/Main/train.txt", "a/one.txt"):
            if name.endswith(message.partition(":")[0]):
                member = _member(name)
                member.size = size
                archive.addfile(member)
    tracemalloc.start()
    with pytest.raises(DataError, match=f"{message}, which no file of its kind is"):
        read(Place(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder or archive"):
        Place(tmp_path / "none")
