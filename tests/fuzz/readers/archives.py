"""Tar and zip archives: of datasets, of downloads, and the answers of a download server."""

from __future__ import annotations

import gzip
import http.client
import io
import re
import shutil
import tarfile
import urllib.error
import zipfile
from pathlib import Path
from random import Random
from typing import Any

from fedalc.data.catalog import fetch as fetch_module
from fedalc.data.catalog.datasets import Download
from fedalc.data.formats.unpack import unpack
from fedalc.data.storage import Place
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import TOKENS, mutated
from tests.fuzz.registry import as_file, reader, workplace

FILES = {"set/train.txt": b"1 1 1\n0 0:1\n", "set/a/b.jpg": b"\xff\xd8\xff" + bytes(300), "set/c.jpg": b"x" * 700}


def tar(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if form == tarfile.PAX_FORMAT:
                member.pax_headers = {"comment": "a", "mtime": "1.5"}
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()[:8192]


def zipped(files: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


TARS = [tar(FILES), tar(FILES, tarfile.GNU_FORMAT), tar({"a" * 150 + "/" + "b" * 90: b"1"}, tarfile.GNU_FORMAT)]
SIZES = (
    b"\x80" + bytes(7) + b"\xff" * 4,
    b"\xff" * 12,
    b"\x80" + bytes(10) + b"\x01",
    b"77777777777\0",
    b"00000000000 ",
)
TYPES = (b"0", b"5", b"1", b"x", b"g", b"L", b"K", b"S", b"7", b"X", b"\0")


def tar_with_sums(seed: bytes, rng: Random) -> bytes:
    """Change fields of members' headers and correct the checksums."""
    data = bytearray(seed)
    heads = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    for at in rng.sample(heads, min(len(heads), rng.randrange(1, 4))):
        act = rng.randrange(5)
        if act == 0:
            data[at + 124 : at + 136] = rng.choice(SIZES)
        elif act == 1:
            data[at + 156 : at + 157] = rng.choice(TYPES)
        elif act == 2:
            name = rng.choice((b"../x", b"/x", b"a" * 100, b"\xff\xfe", b"a\\b", b"a\nb", b".", b"c:d")).ljust(
                100, b"\0"
            )
            data[at : at + 100] = name
        elif act == 3:
            data[at + 512 : at + 512 + rng.randrange(64)] = rng.choice(TOKENS)[:64]
        else:
            data[at + rng.randrange(512)] = rng.randrange(256)
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


@reader
def tar_archive() -> Reader:
    def read(file: Path) -> None:
        for member in Place(file).matching(re.compile(".*")):
            member.read(1 << 20)

    def make(seed: bytes, rng: Random) -> bytes:
        made = tar_with_sums(rng.choice(TARS), rng)
        return gzip.compress(made, 1) if rng.random() < 0.2 else made

    seeds = [*TARS, gzip.compress(TARS[0])]
    return Reader("tar-archive", "pictures and annotations in tar archives", seeds, as_file("a/x.tar", read), make)


@reader
def downloaded_archive() -> Reader:
    seeds = [zipped(FILES), zipped(FILES, zipfile.ZIP_STORED), zipped({"a.txt": b"1"}, zipfile.ZIP_LZMA), *TARS,
             gzip.compress(b"1 1 1\n0 0:1\n")]  # fmt: skip
    into = workplace() / "unpacked"

    def read(file: Path) -> None:
        shutil.rmtree(into, ignore_errors=True)
        unpack(file, "train.txt.gz", into)

    def make(seed: bytes, rng: Random) -> bytes:
        act = rng.randrange(4)
        if act == 0:
            return tar_with_sums(rng.choice(TARS), rng)
        if act == 1:
            return gzip.compress(tar_with_sums(rng.choice(TARS), rng), 1)
        names = {
            mutated(name.encode(), [b"a"], rng).decode("utf-8", "replace")[:300]: data for name, data in FILES.items()
        }
        made = zipped({name.replace("\0", "") or "x": data for name, data in names.items()})
        return made if act == 2 else mutated(made, [made], rng)

    return Reader(
        "downloaded-archive", "zip, tar and gzip of `fedalc data fetch`", seeds, as_file("z/x.zip", read), make
    )


@reader
def server_answer() -> Reader:
    """A web server's answer to `fedalc data fetch`: status, headers and body."""
    folder = workplace() / "answers"
    folder.mkdir(exist_ok=True)
    download = Download("http://127.0.0.1/t.txt", "t.txt")
    body = b"1 1 1\n0 0:1\n"
    seeds = [
        b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nETag: "abc"\r\nContent-Type: text/plain\r\n\r\n' + body,
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 4-11/12\r\nContent-Length: 8\r\n\r\n" + body[4:],
        b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nLast-Modified: x\r\n\r\n6\r\n1 1 1\n\r\n0\r\n\r\n",
    ]

    class Socket:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def makefile(self, _mode: str) -> io.BytesIO:
            return io.BytesIO(self.data)

    def opened(data: bytes) -> Any:
        response = http.client.HTTPResponse(Socket(data), method="GET")  # type: ignore[arg-type]
        response.begin()
        if response.status >= 400:
            raise urllib.error.HTTPError("http://127.0.0.1/", response.status, response.reason, response.headers, None)
        return response

    def read(data: bytes) -> None:
        part = folder / "t.txt.part"
        part.write_bytes(b"1 1 ")
        fetch_module._validator_file(part).write_text('"abc"')
        before = fetch_module.urllib.request.urlopen
        fetch_module.urllib.request.urlopen = lambda *_, **__: opened(data)
        try:
            fetch_module._download(download, part, lambda *_: None)
            fetch_module._verify(download, part)
        finally:
            fetch_module.urllib.request.urlopen = before

    tokens = (b"Content-Range: bytes 4-", b"Content-Length: ", b"206", b"416", b"200", b"\xb2", b"W/", b"text/html",
              b"Transfer-Encoding: chunked\r\n", b"bytes */")  # fmt: skip
    return Reader("server-answer", "a web server's answer to `fedalc data fetch`", seeds, read, tokens=tokens)
