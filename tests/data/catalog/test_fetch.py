"""Downloads from a local test server."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedalc.core.locks import lock_file
from fedalc.data import ImageOptions, load_dataset
from fedalc.data.catalog.datasets import ENTRIES, Download, Entry, ImageSet, entry
from fedalc.data.catalog.fetch import fetch
from fedalc.errors import DataError
from tests.data.layouts import coco, pack, voc

CONTENT = b"2 3 2\n0 1:1 2:2\n1 0:1\n" + b"\n" * 5000


class Server(ThreadingHTTPServer):
    """Serves one file, with the faults that the test asks for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.files: dict[str, bytes] = {}  # by path, where one content is not enough
        self.ranges = True
        self.content_type = "application/octet-stream"
        self.cut_after: int | None = None
        self.wrong_piece = False
        self.tag = '"one"'
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        content = server.files.get(self.path, server.content)
        start, total = 0, len(content)
        unchanged = self.headers.get("If-Range") in (None, server.tag)
        if wanted and server.ranges and unchanged:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.end_headers()
                return
            start = 1 if server.wrong_piece else start
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", server.content_type)
        self.send_header("ETag", server.tag)
        self.end_headers()
        self.wfile.write(body[: server.cut_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def dataset(
    server: Server, file_name: str = "train.txt", *, checked: bool = True, unpack: bool = False, size: int | None = None
) -> Entry:
    checksum = sha256(server.content) if checked else None
    download = Download(server.url, file_name, checksum, size, unpack)
    return Entry("set", "Set", None, "http://page", ("train.txt",), "", downloads=(download,))


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_download(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    folder = fetch(dataset(server), tmp_path, lambda *report: seen.append(report))
    assert folder == tmp_path / "set"
    assert names(folder) == ["train.txt"]
    assert (folder / "train.txt").read_bytes() == CONTENT
    assert seen[0] == ("train.txt", 0, len(CONTENT))
    assert seen[-1] == ("train.txt", len(CONTENT), len(CONTENT))


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch(dataset(server), tmp_path)
    fetch(dataset(server), tmp_path)
    assert len(server.asked) == 1


def test_a_broken_download_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.cut_after = 100
    with pytest.raises(DataError, match=f"broke after 100 of {len(CONTENT)} bytes; run the same command to continue"):
        fetch(dataset(server), tmp_path)
    server.cut_after = None
    folder = fetch(dataset(server), tmp_path)
    assert server.asked == [None, "bytes=100-"]
    assert (folder / "train.txt").read_bytes() == CONTENT
    assert names(folder) == ["train.txt"]


def test_a_server_that_ignores_ranges(server: Server, tmp_path: Path) -> None:
    server.cut_after = 100
    with pytest.raises(DataError):
        fetch(dataset(server), tmp_path)
    server.cut_after, server.ranges = None, False
    assert (fetch(dataset(server), tmp_path) / "train.txt").read_bytes() == CONTENT


def test_a_server_that_sends_another_piece(server: Server, tmp_path: Path) -> None:
    server.cut_after = 100
    with pytest.raises(DataError):
        fetch(dataset(server), tmp_path)
    server.cut_after, server.wrong_piece = None, True
    assert (fetch(dataset(server), tmp_path) / "train.txt").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100-", None]


@pytest.mark.parametrize("checked", [True, False])
def test_a_file_that_changed_in_between(server: Server, tmp_path: Path, checked: bool) -> None:
    """Even without a checksum, parts of two different files are never joined."""
    server.cut_after = 100
    with pytest.raises(DataError):
        fetch(dataset(server, checked=checked), tmp_path)
    server.cut_after, server.tag, server.content = None, '"two"', CONTENT[::-1]
    assert (fetch(dataset(server, checked=checked), tmp_path) / "train.txt").read_bytes() == CONTENT[::-1]


def test_a_part_of_unknown_origin_is_not_built_upon(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.txt.part").write_bytes(b"anything")
    assert (fetch(dataset(server, checked=False), tmp_path) / "train.txt").read_bytes() == CONTENT
    assert server.asked == [None]


@pytest.mark.parametrize("known_size", [True, False])
def test_a_part_that_is_already_complete(server: Server, tmp_path: Path, known_size: bool) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.txt.part").write_bytes(CONTENT)
    folder = fetch(dataset(server, size=len(CONTENT) if known_size else None), tmp_path)
    assert names(folder) == ["train.txt"]
    assert server.asked == ([] if known_size else [f"bytes={len(CONTENT)}-"])


@pytest.mark.parametrize("known_size", [True, False])
def test_a_part_that_is_too_long(server: Server, tmp_path: Path, known_size: bool) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.txt.part").write_bytes(CONTENT + b"more")
    folder = fetch(dataset(server, size=len(CONTENT) if known_size else None), tmp_path)
    assert (folder / "train.txt").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_what_was_good(server: Server, tmp_path: Path) -> None:
    expected = dataset(server)
    (tmp_path / "set").mkdir()
    good = tmp_path / "set" / "other.txt"
    good.write_bytes(b"good")
    server.content = CONTENT[::-1]
    with pytest.raises(DataError, match=r"SHA-256 is .* and should be .*the folder is unchanged"):
        fetch(expected, tmp_path)
    assert names(tmp_path / "set") == ["other.txt"]
    server.content = CONTENT
    assert names(fetch(expected, tmp_path)) == ["other.txt", "train.txt"]


def test_a_wrong_size(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{len(CONTENT)} bytes and should have 99999"):
        fetch(dataset(server, size=99999, checked=False), tmp_path)


def test_wrong_content_does_not_take_its_place(server: Server, tmp_path: Path) -> None:
    """The download matches its checksum, but a file in it is not the expected one: the existing file stays."""
    server.content = gzip.compress(CONTENT)
    wrong = dataset(server, "train.txt.gz", unpack=True)
    wrong.sha256["train.txt"] = "0" * 64  # type: ignore[index]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.txt").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"the downloaded train\.txt has SHA-256"):
        fetch(wrong, tmp_path)
    assert (tmp_path / "set" / "train.txt").read_bytes() == b"mine"


def test_a_web_page_is_no_dataset(server: Server, tmp_path: Path) -> None:
    server.content_type = "text/html"
    with pytest.raises(DataError, match="web page"):
        fetch(dataset(server), tmp_path)


def test_no_answer(tmp_path: Path) -> None:
    with Server() as gone:
        unreachable = dataset(gone)
    with pytest.raises(DataError, match="no connection"):
        fetch(unreachable, tmp_path)


def test_nothing_to_download_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bibtex\.rar.*datasets-mlc"):
        fetch(entry("bibtex"), tmp_path)


def make_zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def make_tar(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()


MEMBERS = {"Set/train.txt": CONTENT, "Set/more/test.txt": b"test"}


@pytest.mark.parametrize(
    ("file_name", "content", "unpacked"),
    [
        ("set.zip", make_zip(MEMBERS), ["more/test.txt", "train.txt"]),
        ("set.tar.gz", make_tar(MEMBERS), ["more/test.txt", "train.txt"]),
        ("set.zip", make_zip({"train.txt": CONTENT, "test.txt": b""}), ["test.txt", "train.txt"]),
        ("train.txt.gz", gzip.compress(CONTENT), ["train.txt"]),
    ],
    ids=["zip", "tar", "flat zip", "gzip"],
)
def test_archives_are_unpacked(
    server: Server, tmp_path: Path, file_name: str, content: bytes, unpacked: list[str]
) -> None:
    server.content = content
    folder = fetch(dataset(server, file_name, unpack=True), tmp_path)
    assert names(folder) == unpacked
    assert (folder / "train.txt").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [
        make_zip({"../evil.txt": b"x", "train.txt": b""}),
        make_zip({"/evil.txt": b"x"}),
        make_zip({"a\\..\\evil.txt": b"x"}),
        make_tar({"a/../../evil.txt": b"x"}),
        make_tar({"/evil.txt": b"x"}),
        make_tar({"train.txt": b""}, {"link": "/etc/passwd"}),
        make_zip({}),
        b"neither",
        make_tar(MEMBERS)[:-20],
    ],
    ids=["zip up", "zip absolute", "zip backslash", "tar up", "tar absolute", "tar link", "empty", "other", "cut"],
)
def test_bad_archives_leave_nothing_behind(server: Server, tmp_path: Path, content: bytes) -> None:
    server.content = content
    with pytest.raises(DataError, match=r"refused|empty|neither|cannot be unpacked"):
        fetch(dataset(server, "set.bin", unpack=True), tmp_path / "data")
    assert [name for name in names(tmp_path) if not name.endswith((".part", ".validator"))] == []


def test_a_link_in_a_zip_is_refused(server: Server, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    server.content = buffer.getvalue()
    with pytest.raises(DataError, match="is a link"):
        fetch(dataset(server, "set.zip", unpack=True), tmp_path)


def pictures(*downloads: Download) -> Entry:
    return Entry("set", "Set", None, "http://page", (), "", downloads=downloads, images=ImageSet("coco", "x", 1, 1, 1))


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_an_archive_is_unpacked_where_the_loader_looks(server: Server, tmp_path: Path) -> None:
    """Like COCO's: the archive's own folder, val2017, is the place for its files."""
    server.content = make_zip({"val2017/1.jpg": b"one", "val2017/2.jpg": b"two"})
    download = Download(server.url, "val2017.zip", unpack=True, md5=md5(server.content), unpacked="val2017")
    folder = fetch(pictures(download), tmp_path)
    assert names(folder) == ["val2017/1.jpg", "val2017/2.jpg"]
    assert (folder / "val2017" / "2.jpg").read_bytes() == b"two"
    fetch(pictures(download), tmp_path)
    assert len(server.asked) == 1


def test_an_archive_that_stays_packed(server: Server, tmp_path: Path) -> None:
    server.content = make_tar({"VOCdevkit/VOC2012/ImageSets/Main/trainval.txt": b""})
    shown_by = "VOCdevkit/VOC2012/ImageSets/Main/trainval.txt"
    download = Download(server.url, "voc.tar", md5=md5(server.content), unpacked=shown_by)
    folder = fetch(pictures(download), tmp_path)
    assert names(folder) == ["voc.tar"] and (folder / "voc.tar").read_bytes() == server.content
    fetch(pictures(download), tmp_path)
    (folder / "voc.tar").unlink()
    (folder / shown_by).parent.mkdir(parents=True)
    (folder / shown_by).touch()  # unpacked by hand
    fetch(pictures(download), tmp_path)
    assert len(server.asked) == 1


def test_only_what_is_missing_is_fetched(server: Server, tmp_path: Path) -> None:
    """Datasets share folders: coco has the files of coco-val2017, and more."""
    server.content = make_zip({"x/1.jpg": b"one"})
    val, train = (Download(server.url, f"{name}.zip", unpack=True, unpacked=name) for name in ("val", "train"))
    fetch(pictures(val), tmp_path)
    folder = fetch(pictures(val, train), tmp_path)
    assert names(folder) == ["train/1.jpg", "val/1.jpg"] and len(server.asked) == 2


def test_a_wrong_md5_and_then_a_broken_download(server: Server, tmp_path: Path) -> None:
    content = server.content = make_zip({"val2017/1.jpg": b"one"})
    download = Download(server.url, "val2017.zip", unpack=True, md5=md5(content), unpacked="val2017")
    server.content = content[::-1]
    with pytest.raises(DataError, match=f"MD5 is {md5(content[::-1])} and should be {md5(content)}"):
        fetch(pictures(download), tmp_path)
    assert names(tmp_path) == []
    server.content, server.cut_after = content, 20
    with pytest.raises(DataError, match="run the same command to continue"):
        fetch(pictures(download), tmp_path)
    server.cut_after = None
    assert names(fetch(pictures(download), tmp_path)) == ["val2017/1.jpg"]
    assert server.asked[-1] == "bytes=20-"


def test_a_bad_archive_leaves_no_folder(server: Server, tmp_path: Path) -> None:
    server.content = make_zip({"val2017/1.jpg": b"one", "val2017/../../2.jpg": b"two"})
    with pytest.raises(DataError, match="refused"):
        fetch(pictures(Download(server.url, "val2017.zip", unpack=True, unpacked="val2017")), tmp_path)
    assert not (tmp_path / "set" / "val2017").exists()


def test_leftovers_of_a_killed_process_go(server: Server, tmp_path: Path) -> None:
    half = tmp_path / "set" / ".unpacking-0a1b" / "val2017"
    half.mkdir(parents=True)
    (half / "1.jpg").write_bytes(b"half")
    assert names(fetch(dataset(server), tmp_path)) == ["train.txt"]


def test_two_at_once(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with (
        lock_file(tmp_path / "set" / ".fetching"),
        pytest.raises(DataError, match="another process is downloading into this folder"),
    ):
        fetch(dataset(server), tmp_path)


def served(server: Server, known: Entry, archives: dict[str, bytes]) -> Entry:
    """Return the catalog's entry with our server's address and checksums in place of the real ones."""
    server.files = {f"/{name}": content for name, content in archives.items()}
    root = server.url.removesuffix("/file")
    downloads = (replace(each, url=f"{root}/{each.file_name}") for each in known.downloads)
    return replace(known, downloads=tuple(replace(each, md5=md5(archives[each.file_name])) for each in downloads))


def test_fetched_pictures_load(server: Server, tmp_path: Path) -> None:
    files = coco({"val2017": (list(range(100, 120)), [(number, 17) for number in range(100, 115)])})
    notes = {name: content for name, content in files.items() if name.startswith("annotations/")}
    images = {name: content for name, content in files.items() if name not in notes}
    notes["annotations/captions_val2017.json"] = b"{}"
    archives = {"annotations_trainval2017.zip": make_zip(notes), "val2017.zip": make_zip(images)}
    fetch(served(server, entry("coco-val2017"), archives), tmp_path)
    assert len(load_dataset("coco-val2017", tmp_path, images=ImageOptions(size=8)).train) == 16
    archive = pack(tmp_path / "voc.tar", voc())
    fetch(served(server, entry("voc2012"), {"VOCtrainval_11-May-2012.tar": archive.read_bytes()}), tmp_path)
    assert len(load_dataset("voc2012", tmp_path, images=ImageOptions(size=8)).train) > 0


def test_addresses_of_the_catalog() -> None:
    """Every download has a checksum, and a place where the loader looks."""
    downloads = [download for known in ENTRIES for download in known.downloads]
    assert len({download.url for download in downloads}) == 6
    for download in downloads:
        assert download.url.endswith(f"/{download.file_name}") and download.unpacked
        assert download.md5 is not None and len(download.md5) == 32
    for known in ENTRIES:
        if known.images is not None and known.images.layout == "coco":
            assert [each.unpacked for each in known.downloads][:2] == ["annotations", "val2017"]
