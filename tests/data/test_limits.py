"""Decompression bombs are refused, with little memory, and with an error that says what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedalc.data.formats.arff import read_arff
from fedalc.data.formats.unpack import unpack
from fedalc.data.formats.xmlc import read_xmlc
from fedalc.data.limits import largest_content, longest_line
from fedalc.data.load import load_dataset
from fedalc.data.storage import Place
from fedalc.errors import ConfigError, DataError

PEAK = """
import resource
from collections import deque
from pathlib import Path
import fedalc.data.formats.xmlc as x, fedalc.data.storage as p
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {call}
except Exception as error:
    print(type(error).__name__, error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def refused(call: str) -> tuple[str, int]:
    """Return the error of a call in a separate process, and by how many MB the process grew."""
    done = subprocess.run([sys.executable, "-c", PEAK.format(call=call)], capture_output=True, text=True, check=True)
    error, grown = done.stdout.strip().splitlines()
    return error, int(grown) // 1024


@pytest.mark.long
def test_four_gigabytes_in_one_line(tmp_path: Path) -> None:
    """4 MB of gzip."""
    file = tmp_path / "train.txt.gz"
    with file.open("wb") as out:
        out.write(gzip.compress(b"1 1 1\n"))
        piece = gzip.compress(bytes(16 << 20))
        for _ in range(256):
            out.write(piece)
    assert file.stat().st_size < 5 << 20
    error, grown = refused(f"x.read_xmlc({str(file)!r})")
    assert error.startswith(f"DataError {file}:2: the line is longer than 16 MiB") and "FEDALC_MAX_LINE" in error
    assert grown < 150


@pytest.mark.long
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_many_short_lines_that_unpack_to_too_much(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    file = tmp_path / "train.txt"
    file.write_bytes(pack(b"99999999 1 1\n") + 8 * pack(b"\n" * (16 << 20)))
    error, grown = refused(f"deque(x.LineReader(Path({str(file)!r})).pieces(), 0)")
    assert error.startswith("DataError") and "unpacks to more than 64 MiB" in error and "FEDALC_MAX_EXPANSION" in error
    assert grown < 150


def test_both_limits_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train.txt"
    file.write_text("1 500 1\n0 " + " ".join(f"{feature}:1" for feature in range(500)) + "\n")
    monkeypatch.setenv("FEDALC_MAX_LINE", "1KiB")
    with pytest.raises(DataError, match=r"train.txt:2: the line is longer than 1 KiB"):
        read_xmlc(file)
    monkeypatch.setenv("FEDALC_MAX_LINE", "4KB")
    assert read_xmlc(file).features.nnz == 500
    assert largest_content(1 << 20) == 200 << 20
    monkeypatch.setenv("FEDALC_MAX_EXPANSION", "1000")
    assert largest_content(1 << 20) == 1000 << 20


@pytest.mark.parametrize("value", ["much", "0", "-1", "\u00b2", "9" * 5000])
def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FEDALC_MAX_LINE", value)
    with pytest.raises(ConfigError, match="FEDALC_MAX_LINE"):
        longest_line()
    monkeypatch.setenv("FEDALC_MAX_EXPANSION", value)
    with pytest.raises(ConfigError, match="FEDALC_MAX_EXPANSION"):
        largest_content(1)


@pytest.mark.parametrize("length", [1023, 1024, 1025])
def test_the_longest_line_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """In the header, in the middle and at the end of the file, with and without a final newline."""
    monkeypatch.setenv("FEDALC_MAX_LINE", "1024")
    long = b"0 " + b" " * (length - 7) + b"0:1\n"
    assert len(long) == length - 1
    for text in (b"2 1 1\n" + long + b"0 0:1\n", b"2 1 1\n0 0:1\n" + b" " + long):
        (tmp_path / "t.txt").write_bytes(text)
        too_long = max(map(len, text.splitlines(keepends=True))) > 1024
        if too_long:
            with pytest.raises(DataError, match="the line is longer than 1 KiB"):
                read_xmlc(tmp_path / "t.txt")
        else:
            assert len(read_xmlc(tmp_path / "t.txt")) == 2


def test_a_small_repetitive_file_is_read(tmp_path: Path) -> None:
    """A dense ARFF file of zeros compresses more than 200 times, and is valid."""
    rows = b"0,0,0,0,0,0,0,0,0,1\n" * 100_000
    header = b"@relation r\n" + b"".join(b"@attribute a%d {0,1}\n" % n for n in range(10)) + b"@data\n"
    file = tmp_path / "r.arff.gz"
    file.write_bytes(gzip.compress(header + rows))
    (tmp_path / "r.xml").write_bytes(b'<labels><label name="a9"/></labels>')
    assert file.stat().st_size * 200 < len(rows)
    assert len(read_arff(file).split) == 100_000


def member(name: bytes, size: bytes, kind: bytes = b"0", content: bytes = b"") -> bytes:
    """Return a tar member with the given size field, padded to whole blocks."""
    head = bytearray(512)
    head[: len(name)] = name
    head[100:108], head[124:136], head[156:157] = b"0000644\0", size.ljust(12, b"\0"), kind
    head[257:265], head[148:156] = b"ustar\x0000", b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + content.ljust(-(-len(content) // 512) * 512, b"\0")


def base256(size: int) -> bytes:
    return size.to_bytes(12, "big", signed=True) if size < 0 else bytes([0x80]) + size.to_bytes(11, "big")


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, (1 << 80) - 1, -1, -512, -(1 << 60)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_size_in_base_256(tmp_path: Path, size: int, pack: object) -> None:
    """Terabytes, more than a file can have, and a negative size, which would jump back to the beginning."""
    assert callable(pack)
    file = tmp_path / "a.tar"
    file.write_bytes(pack(member(b"a.jpg", base256(size), content=b"x") + bytes(1024)))
    with pytest.raises(DataError, match=r"a\.tar: "):
        list(Place(file).matching(re.compile(".*")))
    with pytest.raises(DataError):
        unpack(file, "a.tar", tmp_path / "out")


@pytest.mark.long
def test_a_long_name_of_gigabytes(tmp_path: Path) -> None:
    """`tarfile` reads the name as a whole: 3 MB of gzip became 3 GB of memory."""
    file = tmp_path / "a.tar.gz"
    with file.open("wb") as out:
        out.write(gzip.compress(member(b"././@LongLink", b"%011o\0" % (3 << 30), b"L")))
        piece = gzip.compress(b"a" * (16 << 20))
        for _ in range(192):
            out.write(piece)
    error, grown = refused(f"list(p.Place(Path({str(file)!r})).matching(p.re.compile('.*')))")
    assert "a member's extended header claims to have 3 GiB" in error
    assert grown < 100


@pytest.mark.long
def test_an_archive_that_unpacks_to_too_much(tmp_path: Path) -> None:
    into = tmp_path / "out"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "abcde":
            archive.writestr(f"{name}.txt", bytes(16 << 20))
    (tmp_path / "a.zip").write_bytes(out.getvalue())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=9) as tar:
        for name in "abcde":
            info = tarfile.TarInfo(name)
            info.size = 16 << 20
            tar.addfile(info, io.BytesIO(bytes(16 << 20)))
    (tmp_path / "a.tgz").write_bytes(packed.getvalue())
    (tmp_path / "a.gz").write_bytes(5 * gzip.compress(b"1" * (16 << 20)))
    for name in ("a.zip", "a.tgz", "a.gz"):
        with pytest.raises(DataError, match=r"unpacks to more than 64 MiB.*FEDALC_MAX_EXPANSION"):
            unpack(tmp_path / name, name, into / name)
    assert not (into / "a.zip").exists() and not (into / "a.tgz").exists()  # refused by what they say of themselves


def test_a_zip_that_cannot_be_unpacked_for_another_reason(tmp_path: Path) -> None:
    """A name that is too long for the disk, a file with the name of another's folder, a password."""
    for names in (["a" * 300, "b"], ["a", "a/b", "c"]):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name in names:
                archive.writestr(name, b"x")
        with pytest.raises(DataError, match=r"a.zip: .* cannot be written"):
            unpack(tmp_path / "a.zip", "a.zip", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"x")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + flags] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(DataError, match="password"):
        unpack(tmp_path / "a.zip", "a.zip", tmp_path / "more")


def test_more_labels_than_any_dataset_has_are_refused(tmp_path: Path) -> None:
    """Each label needs a name and counts: twenty bytes of input would fill the memory."""
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("1 5 300000000\n0 3:1\n")
    with pytest.raises(DataError, match="300000000 labels are more than the limit of 10,000,000"):
        load_dataset(str(tmp_path))
