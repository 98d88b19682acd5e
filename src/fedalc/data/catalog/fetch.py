"""Download a dataset of the catalog into its folder.

A `.part` file collects the bytes, and a broken download continues from it. A complete file with the right checksum
moves into the folder in one step; until then the folder is unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import Timeout

from fedalc.core.atomic_files import move_into_place, replace_folder
from fedalc.core.locks import lock_file
from fedalc.data.catalog.datasets import Download, Entry
from fedalc.data.catalog.locate import dataset_dir
from fedalc.data.check import content_sha256, find_file
from fedalc.data.formats.unpack import unpack
from fedalc.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Called with the file name, the number of bytes received, and the total if known."""

_NUMBER = "[0-9]{1,18}"
_PIECE = 1 << 18
_TIMEOUT = 60.0
_UNPACKING = ".unpacking-"


def fetch(entry: Entry, data_dir: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Download the files that are missing and return the dataset's folder."""
    folder = dataset_dir(entry, data_dir)
    if is_complete(entry, folder):
        return folder
    if entry.is_embedded:
        raise DataError(f"{entry.name} needs no files: fedalc generates it")
    if not entry.downloads:
        raise DataError(f"{entry.name} cannot be downloaded directly. {entry.how_to_get} The page: {entry.page}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_file(folder / ".fetching", wait=False):
            for leftover in folder.glob(f"{_UNPACKING}*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            for download in entry.downloads:
                if not _is_placed(download, folder):
                    part = folder / f"{download.file_name}.part"
                    _download(download, part, progress or _silent)
                    _verify(download, part)
                    _put_in_place(entry, download, part, folder)
    except Timeout:
        raise DataError("another process is downloading into this folder", folder) from None
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", folder) from None
    return folder


def is_complete(entry: Entry, folder: Path) -> bool:
    """Return whether all files of the dataset exist, and match their checksums if known."""
    for name in entry.files:
        path = find_file(folder, name)
        if path is None:
            return False
        try:
            if name in entry.sha256 and content_sha256(path) != entry.sha256[name]:
                return False
        except DataError:  # a damaged compressed file
            return False
    return bool(entry.files) or (bool(entry.downloads) and all(_is_placed(each, folder) for each in entry.downloads))


def _is_placed(download: Download, folder: Path) -> bool:
    """Return whether pictures exist, packed or unpacked. (Other datasets have known file names and checksums.)"""
    packed = not download.unpack and (folder / download.file_name).exists()
    return bool(download.unpacked) and (packed or (folder / download.unpacked).exists())


def _download(download: Download, part: Path, progress: Progress) -> None:
    """Bring the `.part` file to its full length."""
    if not download.url.startswith(("http://", "https://")):
        raise DataError(f"not an http or https address: {download.url}")
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
            # The part is longer than the file, or belongs to another file: start again.
            _discard(part)
            return _download(download, part, progress)
        raise DataError(f"the server answered {error.code} {error.reason}: {download.url}") from None
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"no connection ({getattr(error, 'reason', error)}): {download.url}") from None
    with response:
        if response.headers.get_content_type() == "text/html" and not download.file_name.endswith(".html"):
            raise DataError(f"the server sent a web page instead of the file; open it in a browser: {download.url}")
        if response.status != 206:  # the server sends the whole file
            have = 0
        elif _first_byte(response.headers) != have:
            if not have:
                raise DataError(f"the server sent only a part of the file: {download.url}")
            _discard(part)
            return _download(download, part, progress)
        return _receive(response, part, have, download, progress)


def _receive(response: Any, part: Path, have: int, download: Download, progress: Progress) -> None:
    announced = response.headers.get("Content-Length")
    length = re.fullmatch(_NUMBER, announced or "")
    total = have + int(length[0]) if length else download.size
    validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if validator and not validator.startswith("W/"):  # a weak one does not guarantee equal bytes
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
            f"the connection broke after {have} of {total or 'unknown'} bytes; run the same command to continue: "
            f"{download.url}"
        )


def _read_piece(response: Any) -> bytes | None:
    """Return the next bytes: empty at the end, None if the connection broke."""
    try:
        return bytes(response.read(_PIECE))
    except (OSError, http.client.HTTPException):
        return None


def _resumable_bytes(download: Download, part: Path) -> int:
    """Return how many bytes of an earlier attempt can be reused: 0 if nothing proves that the file is the same."""
    if not part.is_file():
        return 0
    have = part.stat().st_size
    is_too_long = download.size is not None and have > download.size
    if is_too_long or (_checksum(download) is None and _read_validator(part) is None):
        _discard(part)
        return 0
    return have


def _checksum(download: Download) -> tuple[str, str] | None:
    """Return the algorithm and the expected checksum."""
    if download.sha256 is not None:
        return "sha256", download.sha256
    return None if download.md5 is None else ("md5", download.md5)


def _verify(download: Download, part: Path) -> None:
    size, wrong = part.stat().st_size, ""
    if download.size is not None and size != download.size:
        wrong = f"it has {size} bytes and should have {download.size}"
    elif checksum := _checksum(download):
        algorithm, expected = checksum
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, algorithm).hexdigest()
        if digest != expected:
            wrong = f"its {'SHA-256' if algorithm == 'sha256' else 'MD5'} is {digest} and should be {expected}"
    if wrong:
        _discard(part)
        raise DataError(
            f"{download.url} sent a different file than expected: {wrong}. The download was deleted; otherwise the "
            "folder is unchanged"
        )


def _put_in_place(entry: Entry, download: Download, part: Path, folder: Path) -> None:
    if not download.unpack:
        _verify_content(entry, download.file_name, part)
        move_into_place(part, folder / download.file_name)
        _discard(part)
        return
    with tempfile.TemporaryDirectory(prefix=_UNPACKING, dir=folder) as temporary:
        unpacked = Path(temporary) / download.unpacked
        files = unpack(part, download.file_name, unpacked)
        for file in files:
            _verify_content(entry, str(file), unpacked / file)
        if download.unpacked:  # all files at once, so that the folder is always complete
            os.sync()
            replace_folder(unpacked, folder / download.unpacked)
        else:
            for file in files:
                move_into_place(unpacked / file, folder / file)
    _discard(part)


def _verify_content(entry: Entry, name: str, path: Path) -> None:
    plain = name.removesuffix(".gz").removesuffix(".bz2")
    expected = entry.sha256.get(plain)
    if expected is not None and (digest := content_sha256(path)) != expected:
        raise DataError(
            f"the downloaded {name} has SHA-256 {digest} and should have {expected}. The folder is unchanged"
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
