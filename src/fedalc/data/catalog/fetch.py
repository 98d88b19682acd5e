"""Downloading a dataset of the catalog into its folder.

What arrives goes into a `.part` file, from which a broken download is taken up again. Only when it is complete and its
checksum is right does it take its place, in one step: whatever was in the folder before stays as it was until then.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalc.core.atomic_files import move_into_place
from fedalc.data.catalog.datasets import Download, Entry
from fedalc.data.catalog.locate import dataset_dir
from fedalc.data.check import content_sha256, find_file
from fedalc.data.formats.unpack import unpack
from fedalc.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Told the file's name, how many bytes are there, and how many there will be, if known."""

_NUMBER = "[0-9]{1,18}"
_PIECE = 1 << 18
_TIMEOUT = 60.0


def fetch(entry: Entry, data_dir: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Gets the files that are not there yet and returns the dataset's folder."""
    folder = dataset_dir(entry, data_dir)
    if is_complete(entry, folder):
        return folder
    if entry.is_embedded:
        raise DataError(f"{entry.name} needs no files: it is made on the spot")
    if not entry.downloads:
        raise DataError(f"{entry.name} cannot be downloaded directly. {entry.how_to_get} The page: {entry.page}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in entry.downloads:
            part = folder / f"{download.file_name}.part"
            _download(download, part, progress or _silent)
            _verify(download, part)
            _put_in_place(entry, download, part, folder)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", folder) from None
    return folder


def is_complete(entry: Entry, folder: Path) -> bool:
    """Whether all of the dataset's files are there, and those with a known checksum are as they should be."""
    for name in entry.files:
        path = find_file(folder, name)
        if path is None:
            return False
        try:
            if name in entry.sha256 and content_sha256(path) != entry.sha256[name]:
                return False
        except DataError:  # a damaged compressed file
            return False
    return bool(entry.files)


def _download(download: Download, part: Path, progress: Progress) -> None:
    """Brings the `.part` file to its full length."""
    if not download.url.startswith(("http://", "https://")):
        raise DataError(f"only http and https addresses are fetched, and not {download.url}")
    have = _resumable_bytes(download, part)
    if download.size is not None and have == download.size:
        return
    headers = {"User-Agent": "fedalc", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if validator := _read_validator(part):
            # The server sends the whole file instead if it has changed since.
            headers["If-Range"] = validator
    try:
        response = urllib.request.urlopen(urllib.request.Request(download.url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            if _total_length(error.headers) == have:
                return
            # The part is longer than the file, or of another file: begin anew.
            _discard(part)
            return _download(download, part, progress)
        raise DataError(f"the server answered {error.code} {error.reason}: {download.url}") from None
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"no connection ({getattr(error, 'reason', error)}): {download.url}") from None
    with response:
        if response.headers.get_content_type() == "text/html" and not download.file_name.endswith(".html"):
            raise DataError(f"the server sent a web page in place of the file; open it in a browser: {download.url}")
        if response.status != 206:  # the whole file, whatever was asked for
            have = 0
        elif _first_byte(response.headers) != have:
            if not have:
                raise DataError(f"the server sent a piece in place of the file: {download.url}")
            _discard(part)
            return _download(download, part, progress)
        return _receive(response, part, have, download, progress)


def _receive(response: Any, part: Path, have: int, download: Download, progress: Progress) -> None:
    announced = response.headers.get("Content-Length")
    length = re.fullmatch(_NUMBER, announced or "")
    total = have + int(length[0]) if length else download.size
    validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if validator and not validator.startswith("W/"):  # a weak one does not vouch for every byte
        _validator_file(part).write_text(validator, encoding="utf-8")
    else:
        _validator_file(part).unlink(missing_ok=True)
    with part.open("ab" if have else "wb") as file:
        progress(download.file_name, have, total)
        while piece := _read_piece(response):
            file.write(piece)
            have += len(piece)
            progress(download.file_name, have, total)
    if piece is None or (total is not None and have < total):
        raise DataError(
            f"the connection broke after {have} of {total or 'unknown'} bytes; the same command goes on from there: "
            f"{download.url}"
        )


def _read_piece(response: Any) -> bytes | None:
    """The next bytes: empty at the end, None if the connection broke."""
    try:
        return bytes(response.read(_PIECE))
    except (OSError, http.client.HTTPException):
        return None


def _resumable_bytes(download: Download, part: Path) -> int:
    """How much of an earlier attempt can be used: nothing, if there is no way to tell that it is of the same file."""
    if not part.is_file():
        return 0
    have = part.stat().st_size
    is_too_long = download.size is not None and have > download.size
    if is_too_long or (download.sha256 is None and _read_validator(part) is None):
        _discard(part)
        return 0
    return have


def _verify(download: Download, part: Path) -> None:
    size = part.stat().st_size
    with part.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    wrong = ""
    if download.size is not None and size != download.size:
        wrong = f"it has {size} bytes and should have {download.size}"
    elif download.sha256 is not None and sha256 != download.sha256:
        wrong = f"its SHA-256 is {sha256} and should be {download.sha256}"
    if wrong:
        _discard(part)
        raise DataError(
            f"what {download.url} sent is not the file expected: {wrong}. It was thrown away; "
            "what was in the folder before is untouched"
        )


def _put_in_place(entry: Entry, download: Download, part: Path, folder: Path) -> None:
    if not download.unpack:
        _verify_content(entry, download.file_name, part)
        move_into_place(part, folder / download.file_name)
        _discard(part)
        return
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as temporary:
        files = unpack(part, download.file_name, Path(temporary))
        for file in files:
            _verify_content(entry, str(file), Path(temporary) / file)
        for file in files:
            move_into_place(Path(temporary) / file, folder / file)
    _discard(part)


def _verify_content(entry: Entry, name: str, path: Path) -> None:
    plain = name.removesuffix(".gz").removesuffix(".bz2")
    wanted = entry.sha256.get(plain)
    if wanted is not None and (found := content_sha256(path)) != wanted:
        raise DataError(
            f"{name}, as downloaded, has SHA-256 {found} and should have {wanted}. "
            "What was in the folder before is untouched"
        )


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".validator")


def _read_validator(part: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _validator_file(part).read_text(encoding="utf-8") or None
    return None


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def _first_byte(headers: Any) -> int | None:
    match = re.match(rf"bytes ({_NUMBER})-", headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _total_length(headers: Any) -> int | None:
    match = re.fullmatch(rf"bytes \*/({_NUMBER})", headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _silent(_name: str, _done: int, _total: int | None) -> None:
    pass
