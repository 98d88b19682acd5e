"""Watch the file operations of a process below a folder. Linux only: reads the paths of open files from /proc.

Patches the functions from outside, so the code under test needs no hooks.
"""

# ruff: noqa: PTH100, PTH110, PTH115
from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch


@dataclass(frozen=True)
class Operation:
    """`path` and `target` are relative to the watched folder. For a write: `content`, and its offset `at`."""

    kind: str  # create, write, fsync, rename, unlink, mkdir, rmdir
    path: str
    target: str = ""
    content: bytes = b""
    at: int = 0


Hook = Callable[[Operation, Callable[[], Any]], Any]
"""Is given what is about to happen and how to do it. A write may be done in part: see `Torn`."""


class Torn(Exception):
    """Raised by a hook: do half of this write, then call the given function."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then


@contextmanager
def watching(root: Path, hook: Hook) -> Iterator[None]:
    """Pass every operation below `root` to the hook."""
    root = root.resolve()
    real_open = io.open
    real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")}
    real_os_open, real_save = os.open, safetensors.torch.save_file

    def below(path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}").removesuffix(" (deleted)")
        elif dir_fd is not None:
            path = Path(os.readlink(f"/proc/self/fd/{dir_fd}")) / path
        path = Path(os.path.abspath(path))
        return str(path.relative_to(root)) if path.is_relative_to(root) else None

    class Raw(io.FileIO):
        def write(self, content: Any) -> int:
            path, at = below(self.fileno()), self.tell()
            if path is None:
                return super().write(content)
            content = bytes(content)
            try:
                return int(
                    hook(Operation("write", path, content=content, at=at), lambda: io.FileIO.write(self, content))
                )
            except Torn as torn:
                io.FileIO.write(self, content[: len(content) // 2])
                torn.then()
                raise

    def watched_open(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
                     newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        path = below(file)
        if path is None or not set(mode) & set("wax+"):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("t", "").replace("b", "")

        def make() -> Raw:
            return Raw(file, plain, closefd)

        fresh = not isinstance(file, int) and ("w" in mode or not os.path.exists(file))
        raw = hook(Operation("create", path), make) if fresh else make()
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

    def os_open(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        place = below(path, more.get("dir_fd"))
        if place is None or not flags & os.O_CREAT or os.path.exists(path):
            return real_os_open(path, flags, *rest, **more)
        return int(hook(Operation("create", place), lambda: real_os_open(path, flags, *rest, **more)))

    def one(name: str, kind: str) -> Callable[..., Any]:
        def watched(path: Any, *rest: Any, **more: Any) -> Any:
            place = below(path, more.get("dir_fd"))
            do = lambda: real[name](path, *rest, **more)  # noqa: E731
            if place is None or (kind == "mkdir" and os.path.exists(path)):
                return do()
            return hook(Operation(kind, place), do)

        return watched

    def rename(source: Any, target: Any, **more: Any) -> Any:
        a, b = below(source), below(target)
        do = lambda: real["replace"](source, target, **more)  # noqa: E731
        return do() if a is None or b is None else hook(Operation("rename", a, b), do)

    def save(tensors: Any, path: Any) -> None:
        """Rust writes the file out of our sight, so report it as one write of the whole content."""
        place = below(path)
        if place is None:
            return real_save(tensors, path)
        from safetensors.torch import save as as_bytes

        content = as_bytes(tensors)
        hook(Operation("create", place), lambda: None)
        try:
            hook(Operation("write", place, content=content), lambda: real_save(tensors, path))
        except Torn as torn:
            Path(path).write_bytes(content[: len(content) // 2])
            torn.then()
            raise

    patches = {
        "fsync": one("fsync", "fsync"), "replace": rename, "rename": rename, "unlink": one("unlink", "unlink"),
        "remove": one("remove", "unlink"), "mkdir": one("mkdir", "mkdir"), "rmdir": one("rmdir", "rmdir"),
        "open": os_open,
    }  # fmt: skip
    with (
        mock.patch.multiple(os, **patches),
        mock.patch.object(io, "open", watched_open),
        mock.patch.object(builtins, "open", watched_open),
        mock.patch.object(safetensors.torch, "save_file", save),
    ):
        yield
