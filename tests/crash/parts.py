"""The parts of the crash test. Each counts its attempts and stops at the first broken guarantee."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedalc.errors import FedalcError
from tests.crash.children import Ended, in_child
from tests.crash.disk import Content, Disk, Names, write_state
from tests.crash.operations import Operation, Torn, watching
from tests.crash.scenarios import Promise

CUTS: tuple[tuple[Names, Content], ...] = (
    ("lost", "lost"), ("kept", "lost"), ("kept", "torn"), ("kept", "zeros"), ("some", "any"),
)  # fmt: skip


class Broken(Exception):
    """A guarantee was broken."""


class Bench:
    """A scenario, its undisturbed result, and a folder to work in."""

    def __init__(self, scenario: Any, place: Path) -> None:
        self.scenario = scenario
        self.place = place
        self.prepared = self._new("prepared")
        scenario.prepare(self.prepared)
        self.begin(self._new("warm"))  # in this process: everything is loaded, and the children have it
        folder, other = self._fresh(), self._fresh()
        whole = _value(in_child(lambda promise: self.begin(folder, promise)))
        before = _value(in_child(lambda promise: scenario.go_on(other, promise)))
        self.expected = [whole["bits"]] + [before["bits"]] * bool(list(self.prepared.iterdir()))
        self.last = whole["start"]

    def _new(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.place))

    def _fresh(self, place: Path | None = None) -> Path:
        folder = Path(tempfile.mkdtemp(dir=place or self.place))
        shutil.copytree(self.prepared, folder, dirs_exist_ok=True)
        return folder

    @contextmanager
    def fresh(self, place: Path | None = None) -> Iterator[Path]:
        folder = self._fresh(place)
        try:
            yield folder
        except Broken as broken:
            raise Broken(f"{broken}\n(the folder is kept: {folder})") from None
        shutil.rmtree(folder)

    def begin(self, folder: Path, promise: Promise = lambda promise: None) -> Any:
        return self.scenario.begin(folder, promise)

    def check(self, folder: Path, promised: Any, what: str) -> Any:
        """Resume in another process: the result equals an undisturbed run bit by bit, and no saved state is lost."""
        ended = in_child(lambda promise: self.scenario.go_on(folder, promise))
        if ended.error:
            raise Broken(f"{self.scenario.name}, {what}: cannot be taken up\n{ended.error}")
        return self.compare(ended, promised, what)

    def compare(self, ended: Ended, promised: Any, what: str) -> Any:
        value = _value(ended)
        if value["bits"] not in self.expected:
            raise Broken(f"{self.scenario.name}, {what}: other bits than an undisturbed run")
        if promised is not None and value["start"] is not None and value["start"] < promised:
            raise Broken(f"{self.scenario.name}, {what}: {promised} was on the disk, and it began at {value['start']}")
        return value


def _value(ended: Ended) -> Any:
    if ended.error or ended.killed:
        raise Broken(ended.error or "killed")
    return ended.value


def kills_at_every_write(bench: Bench, step: int = 1) -> int:
    """Kill at each operation in turn, before it or in the middle of a write, until a run survives."""
    number, kills = 1, 0
    while True:
        with bench.fresh() as folder:
            ended = in_child(lambda promise, n=number, at=folder: _dies_at(bench, at, n, promise))
            if ended.error:
                raise Broken(ended.error)
            if not ended.killed:
                return kills
            kills += 1
            bench.check(folder, ended.promised, f"killed at operation {number}")
        number += step


def _dies_at(bench: Bench, folder: Path, number: int, promise: Promise) -> Any:
    count = 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(operation: Operation, do: Callable[[], Any]) -> Any:
        nonlocal count
        count += 1
        if count == number:
            if operation.kind == "write":
                raise Torn(die)
            die()
        return do()

    with watching(folder, hook):
        return bench.begin(folder, promise)


def kills_at_random(bench: Bench, kills: int, chance: random.Random) -> int:
    """Kill at random times; in half of the cases kill the resumed run too."""
    done = 0
    seconds = _seconds(bench)
    while done < kills:
        with bench.fresh() as folder:
            promised = None
            go: Callable[..., Any] = bench.begin
            for _ in range(chance.choice((1, 2))):
                ended = in_child(lambda promise, go=go: go(folder, promise), kill_after=chance.uniform(0, seconds))
                if ended.error:
                    raise Broken(ended.error)
                done += ended.killed
                promised = max(filter(None, (promised, ended.promised)), default=None)
                go = bench.scenario.go_on
            bench.check(folder, promised, "killed at random")
    return done


def _seconds(bench: Bench) -> float:
    import time

    with bench.fresh() as folder:
        began = time.monotonic()
        in_child(lambda promise: bench.begin(folder, promise))
        return time.monotonic() - began


def recorded(bench: Bench) -> list[Operation | Any]:
    """Return all operations of an undisturbed run, interleaved with the guarantees it gave."""
    seen: list[Operation | Any] = []

    def hook(operation: Operation, do: Callable[[], Any]) -> Any:
        result = do()
        seen.append(operation)
        return result

    with bench.fresh() as folder, watching(folder, hook):
        bench.begin(folder, seen.append)
    return seen


def power_cuts(bench: Bench, chance: random.Random, step: int = 1, shuffles: int = 2) -> tuple[int, int]:
    """Cut the power after each operation and try all possible disk states: (cuts, distinct states tried)."""
    disk, tried, cuts, promised = _disk_with(bench.prepared), set[int](), 0, None
    for number, operation in enumerate([None, *recorded(bench)]):
        if isinstance(operation, list):
            promised = operation
            continue
        if operation is not None:
            disk.do(operation)
        if number % step:
            continue
        cuts += 1
        for names, content in (*CUTS, *CUTS[-1:] * (shuffles - 1)):
            state = disk.after_cut(names, content, chance)
            known = hash((tuple(sorted(state.items(), key=lambda item: item[0])), str(promised)))
            if known not in tried:
                tried.add(known)
                with _state(bench, state) as folder:
                    bench.check(folder, promised, f"cut after operation {number}, names {names}, content {content}")
    return cuts, len(tried)


def _disk_with(folder: Path) -> Disk:
    """Return a disk that contains this whole folder."""
    disk = Disk()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            disk.do(Operation("mkdir", name))
        else:
            disk.do(Operation("create", name))
            disk.do(Operation("write", name, content=path.read_bytes()))
            disk.do(Operation("fsync", name))
        disk.do(Operation("fsync", str(path.relative_to(folder).parent)))
    return disk


@contextmanager
def _state(bench: Bench, state: dict[str, bytes | None]) -> Iterator[Path]:
    with bench.fresh() as folder:
        shutil.rmtree(folder)
        write_state(folder, state)
        yield folder


def full_disk(bench: Bench, steps: int) -> tuple[int, str]:
    """Fill the disk after so many bytes: the error is clear, and the run continues once there is space."""
    size = 8 << 20
    with bench.fresh() as folder:
        in_child(lambda promise: bench.begin(folder, promise))
        most = sum(file.stat().st_size + 4096 for file in folder.rglob("*"))
    with _small_disk(bench.place, size) as disk:
        failed = 0
        for number in range(steps):
            room = most * (number + 1) // steps
            with bench.fresh(disk) as folder:
                filler = None if disk is None else disk / "filler"
                if filler is not None:
                    filler.write_bytes(bytes(shutil.disk_usage(disk).free // 4096 * 4096 - room // 4096 * 4096))
                ended = in_child(lambda promise, at=folder, room=room: _on_full_disk(bench, at, room, disk is None))
                if ended.error:
                    raise Broken(f"not the error it should be:\n{ended.error}")
                if ended.value:
                    failed += 1
                    begun = (folder / "run" / "config.toml").exists()
                    if "cannot be written" not in ended.value or ("--resume" in ended.value) != begun:
                        raise Broken(f"not clear: {ended.value}")
                if filler is not None:
                    filler.unlink()
                bench.check(folder, ended.promised, f"the disk was full after {room} bytes")
        return failed, "no file may be larger than that" if disk is None else "a small tmpfs"


def _on_full_disk(bench: Bench, folder: Path, room: int, limited: bool) -> str:
    """Return the message to the user, or an empty text if there was enough space."""
    if limited:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room // 20, resource.RLIM_INFINITY))
    try:
        bench.begin(folder)
    except FedalcError as error:
        return str(error)
    return ""


@contextmanager
def _small_disk(place: Path, size: int) -> Iterator[Path | None]:
    """Yield a mounted disk of this size, or None without permission to mount."""
    disk = Path(tempfile.mkdtemp(prefix="disk-", dir=place))
    mounted = False
    with suppress(OSError):
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield disk if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)


def flipped_bits(bench: Bench, flips: int, chance: random.Random) -> int:
    """Flip bits in the newest checkpoint of a killed run: fedalc notices, says so, and uses the previous one."""
    saved = sum(isinstance(seen, list) for seen in recorded(bench))
    for _ in range(flips):
        with bench.fresh() as folder:
            number = chance.randint(2, saved)
            in_child(lambda promise, at=folder, n=number: _dies_with(bench, at, n))
            file = chance.choice(sorted(bench.scenario.newest(folder).iterdir()))
            content = bytearray(file.read_bytes())
            place = chance.randrange(len(content))
            content[place] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
            told = bench.check(folder, None, f"a bit flipped at byte {place} of {file.name}")["notes"]
            if not any("damaged" in note for note in told):
                raise Broken(f"nobody was told of the bit flipped at byte {place} of {file}")
    return flips


def _dies_with(bench: Bench, folder: Path, number: int) -> Any:
    """Die once so many checkpoints are saved."""
    left = number

    def promised(what: list[Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return bench.begin(folder, promised)
