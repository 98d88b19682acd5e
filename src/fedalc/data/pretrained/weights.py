"""Find pretrained weights on this machine, and tell them apart by a digest. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from fedalc.errors import ConfigError

FIELD = "encoder.pretrained"
PACKAGE = "package:"
FILES = (".pth", ".pt", ".onnx")  # weights in a single file
_LOCATION = re.compile(rb"\x0a\x08location\x12")  # the key of an entry whose value is a file's name
_LONGEST_NAME = 4096
READ = (".json", ".txt", ".model", ".safetensors")  # the files of a folder that decide about the rows


def find_weights(source: str | Path, field: str = FIELD) -> Path:
    """Return the file or folder of weights: a path, or `package:NAME`, an installed package that holds one."""
    if str(source).startswith(PACKAGE):
        return _in_package(str(source).removeprefix(PACKAGE), field)
    path = Path(source).expanduser().resolve()
    if path.is_file():
        if path.suffix not in FILES:
            raise ConfigError(f"{path}: expected {', '.join(FILES)}, or a folder with config.json", field)
        return path
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder", field)
    return _only_one(path, field)


def _in_package(name: str, field: str) -> Path:
    """Look into an installed package. Its code does not run."""
    try:
        found = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the package {name!r:.60} is not installed here", field)
    return _only_one(Path(next(iter(found.submodule_search_locations))), field)


def _only_one(folder: Path, field: str) -> Path:
    """Return the folder, if it has config.json; otherwise the only weights in it or below it."""
    if (folder / "config.json").is_file():
        return folder
    files = sorted(path for path in folder.rglob("*") if path.suffix in FILES and path.is_file())
    files += sorted(path.parent for path in folder.rglob("config.json") if any(path.parent.glob("*.safetensors")))
    if len(files) != 1:
        found = f"{len(files)} weights in it: name one of them" if files else "no weights in it"
        raise ConfigError(f"{folder}: has no config.json, which describes the network, and {found}", field)
    return files[0]


def check_folder(folder: Path, field: str = FIELD) -> None:
    """Refuse a folder that is not in transformers' layout."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", field)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: has no config.json, which describes the network", field)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder}: has no safetensors weights. Other formats are not read: a pickle can run any code", field
        )


def digest_of(path: Path, field: str = FIELD) -> str:
    """Return a digest of the file, with those that an ONNX model keeps its weights in, or of the folder's files that
    decide about the rows."""
    digest = hashlib.sha256()
    try:
        if path.is_file():
            folder, beside = path.parent, _external_files(path) if path.suffix == ".onnx" else []
            if not beside:
                return _content(path).hex()
            digest.update(_content(path))
        else:
            folder = path
            beside = sorted(each for each in path.rglob("*") if each.suffix in READ and each.is_file())
        for each in beside:
            digest.update(each.relative_to(folder).as_posix().encode() + b"\0")
            digest.update(_content(each))
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}", field) from None
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _external_files(path: Path) -> list[Path]:
    """Return the files in the folder of an ONNX model that it names as places of tensors. They are found as the model
    is written, without onnx, so that every machine has the same digest."""
    if not path.stat().st_size:
        return []
    names: set[bytes] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for found in _LOCATION.finditer(content):
            size, start = _number(content, found.end())
            names.add(content[start : start + size] if size <= _LONGEST_NAME else b"")
    # A file name as `bytes` that is no text names no file that onnxruntime would read.
    places = (path.parent / name.decode("utf-8", "replace").replace("\0", "") for name in sorted(names) if name)
    return [place for place in places if place.is_file() and place.is_relative_to(path.parent)]


def _number(content: mmap.mmap, at: int) -> tuple[int, int]:
    """Return the number that Protocol Buffers write here in groups of seven bits, lowest first, and where it ends."""
    number, shift = 0, 0
    while at < len(content) and shift < 64:
        group = content[at]
        number, at, shift = number | (group & 0x7F) << shift, at + 1, shift + 7
        if group < 0x80:
            break
    return number, at


def joint_digest(digests: Sequence[str]) -> str:
    """Return the digest of several networks side by side."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
