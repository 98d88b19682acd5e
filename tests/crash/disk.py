"""Compute the possible contents of a disk after a power cut from a process's file operations.

Only the guarantees of POSIX hold: the content of a file is there up to its last fsync, and a folder has the names of
its last fsync. Of later changes anything may be there: some of the names, in any combination, and none, some or all of
the bytes. (Real file systems guarantee more: ext4, for example, keeps the order of names.)
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.crash.operations import Operation

Names = Literal["lost", "kept", "some"]
Content = Literal["lost", "torn", "zeros", "any"]


@dataclass
class File:
    now: bytes = b""
    synced: bytes = b""


@dataclass
class Change:
    """A change to a folder since its last fsync. After a cut it is either there or not, never in part."""

    gone: str | None
    name: str | None = None
    node: File | Folder | None = None


@dataclass
class Folder:
    now: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)
    since: list[Change] = field(default_factory=list)

    def change(self, gone: str | None, name: str | None = None, node: File | Folder | None = None) -> None:
        self.since.append(Change(gone, name, node))
        _apply(self.now, self.since[-1])

    def sync(self) -> None:
        self.synced, self.since = dict(self.now), []


def _apply(names: dict[str, File | Folder], change: Change) -> None:
    if change.gone is not None:
        names.pop(change.gone, None)
    if change.name is not None and change.node is not None:
        names[change.name] = change.node


class Disk:
    """The operations so far: the state now, and the possible states after a cut."""

    def __init__(self) -> None:
        self.root = Folder()

    def do(self, operation: Operation) -> None:
        folder, name = self._parent(operation.path)
        node = folder.now.get(name) if name else self.root
        if operation.kind == "create":
            if isinstance(node, File):
                node.now = b""
            else:
                folder.change(None, name, File())
        elif operation.kind == "mkdir":
            folder.change(None, name, Folder())
        elif operation.kind in ("unlink", "rmdir"):
            folder.change(name)
        elif operation.kind == "rename":
            to, target = self._parent(operation.target)
            if to is folder:
                folder.change(name, target, node)
            else:
                folder.change(name)
                to.change(None, target, node)
        elif isinstance(node, File) and operation.kind == "write":
            content = node.now.ljust(operation.at, b"\0")
            node.now = content[: operation.at] + operation.content + content[operation.at + len(operation.content) :]
        elif isinstance(node, File) and operation.kind == "fsync":
            node.synced = node.now
        elif isinstance(node, Folder) and operation.kind == "fsync":
            node.sync()

    def _parent(self, path: str) -> tuple[Folder, str]:
        *folders, name = [part for part in path.split("/") if part != "."] or [""]
        at = self.root
        for folder in folders:
            found = at.now[folder]
            assert isinstance(found, Folder)
            at = found
        return at, name

    def after_cut(self, names: Names, content: Content, chance: random.Random) -> dict[str, bytes | None]:
        """Return a map from path to content; None stands for a folder."""
        return dict(_left(self.root, "", names, content, chance))


def _left(
    folder: Folder, path: str, names: Names, content: Content, chance: random.Random
) -> Iterable[tuple[str, bytes | None]]:
    there = dict(folder.synced)
    for change in folder.since:
        if names == "kept" or (names == "some" and chance.random() < 0.5):
            _apply(there, change)
    for name, node in there.items():
        if isinstance(node, Folder):
            yield f"{path}{name}", None
            yield from _left(node, f"{path}{name}/", names, content, chance)
        else:
            yield f"{path}{name}", _bytes_left(node, content, chance)


def _bytes_left(file: File, content: Content, chance: random.Random) -> bytes:
    if file.now == file.synced:
        return file.now
    how = chance.choice(["lost", "torn", "zeros", "all"]) if content == "any" else content
    if how == "lost":
        return file.synced
    if how == "all":
        return file.now
    kept = (len(file.synced) + len(file.now)) // 2
    return file.now[:kept] if how == "torn" else file.now[:kept] + bytes(max(len(file.now) - kept, 0))


def write_state(folder: Path, state: dict[str, bytes | None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in sorted(state.items()):
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
