"""Every reader of external bytes, by name. Readers are built on request only: some need torch or Flower."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.fuzz.harness import Reader

PLACE = "FEDALC_FUZZ_PLACE"
"""An environment variable: where folders of workers go, so that their parent can clear up after a killed one."""
_MODULES = ("texts", "tables", "pictures", "archives", "settings", "runs", "collection", "wire", "deployment", "sums")
_BUILDERS: dict[str, Callable[[], Reader]] = {}


def reader(build: Callable[[], Reader]) -> Callable[[], Reader]:
    """Register a function that builds the reader of its name."""
    _BUILDERS[build.__name__.replace("_", "-")] = build
    return build


def names() -> list[str]:
    for module in _MODULES:
        import_module(f"tests.fuzz.readers.{module}")
    return list(_BUILDERS)


@cache
def built(name: str) -> Reader:
    for module in _MODULES:
        if name not in _BUILDERS:
            import_module(f"tests.fuzz.readers.{module}")
    return _BUILDERS[name]()


def in_memory() -> Path | None:
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else None


@cache
def workplace() -> Path:
    """Return a folder for this process, in memory if the system allows it: every input is written once."""
    folder = Path(tempfile.mkdtemp(prefix="fedalc-fuzz-", dir=os.environ.get(PLACE) or in_memory()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def as_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Turn a reader of a file into a reader of bytes, which it writes under this name into its own folder."""

    @cache
    def place() -> Path:
        folder = workplace() / name.replace("/", "-")
        folder.mkdir(exist_ok=True)
        return folder / name.rpartition("/")[2]

    def read_bytes(data: bytes) -> object:
        file = place()
        file.write_bytes(data)
        return read(file)

    return read_bytes
