"""Run a reader on mutated inputs. A value or a FedalcError is a correct outcome; anything else is an escape.

Inputs come in independent chunks, each with its own seed. So chunk 7 of a reader is the same on every run and machine,
work can stop and continue between chunks, and two processes can share it.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fedalc.errors import FedalcError
from tests.fuzz.mutate import TOKENS, mutated

CHUNK = 5_000
SECONDS = 10.0
"""Of processor time that one input may take."""
MEMORY = 1 << 30
"""Bytes that all of a chunk may take beside what the process has at its beginning."""
CORPUS = Path(__file__).parent / "corpus"
"""Inputs that once escaped, by reader: each is read again in every test run."""
MOST_LEARNT = 200


@dataclass(frozen=True)
class Reader:
    """A function that reads external bytes.

    `read` takes an input and returns, or raises a FedalcError. `make` turns a seed into an input in the right format
    (a matching checksum, valid JSON), so that mutations get past the first check; half of the inputs use it.
    """

    name: str
    what: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    make: Callable[[bytes, Random], bytes] | None = None
    tokens: Sequence[bytes] = ()


@dataclass
class Escape:
    """An input whose outcome was neither a value nor a FedalcError."""

    data: bytes
    error: str
    trace: str

    @property
    def key(self) -> str:
        return hashlib.sha256(self.data).hexdigest()[:16]


@dataclass
class Outcome:
    """The outcome of a chunk of inputs."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    """Of processor time, as is the next: other work on the machine does not count."""
    slowest: float = 0.0
    kinds: set[str] = field(default_factory=set)
    """The different refusals."""
    escapes: list[Escape] = field(default_factory=list)


class TooLong(BaseException):
    """Not an Exception, so that readers that catch Exception do not catch it."""


def inputs(reader: Reader, seed: int, chunk: int, learnt: list[bytes]) -> Iterator[bytes]:
    """Yield a chunk's inputs. Inputs that the caller adds to `learnt` become seeds too."""
    rng = Random(f"{seed}/{reader.name}/{chunk}")
    tokens = (*TOKENS, *reader.tokens)
    while True:
        pool = learnt if learnt and rng.random() < 0.4 else reader.seeds
        source = rng.choice(pool)
        if reader.make is not None and rng.random() < 0.5:
            yield reader.make(rng.choice(reader.seeds), rng)
        else:
            yield mutated(source, reader.seeds, rng, tokens)


def run_chunk(
    reader: Reader, seed: int, chunk: int, count: int = CHUNK, present: Callable[[bytes], None] | None = None
) -> Outcome:
    """Run one chunk of inputs. `present` gets each input before it is read.

    Inputs with a new kind of refusal become seeds: a cheap substitute for branch coverage, since every refusal is a
    branch with its own message.
    """
    outcome, learnt = Outcome(), []
    with suppress(FedalcError):
        reader.read(reader.seeds[0])  # what is imported on first use is not the first input's fault
    begun = time.process_time()
    source = inputs(reader, seed, chunk, learnt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data, _ in zip(source, range(count), strict=False):
            if present is not None:
                present(data)
            started = time.process_time()
            kind, escape = outcome_of(reader, data)
            outcome.slowest = max(outcome.slowest, time.process_time() - started)
            outcome.inputs += 1
            outcome.accepted += kind == "" and escape is None
            if escape is not None:
                outcome.escapes.append(escape)
            elif kind not in outcome.kinds:
                outcome.kinds.add(kind)
                if len(learnt) < MOST_LEARNT:
                    learnt.append(data)
    outcome.seconds = time.process_time() - begun
    return outcome


def outcome_of(reader: Reader, data: bytes) -> tuple[str, Escape | None]:
    """Return the kind of refusal (empty: accepted) and, if there was one, the escape."""
    try:
        with time_limit(SECONDS):
            reader.read(data)
        return "", None
    except FedalcError as error:
        return _kind(str(error)), None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also of Rust libraries that panic, and the time limit
        trace = "".join(traceback.format_exception(error)[-8:])
        return "", Escape(data, f"{type(error).__name__}: {str(error)[:200]}", trace)


def _kind(message: str) -> str:
    """Return a message without its variable parts: quoted text, numbers, paths."""
    return re.sub(r"[^a-z]+", " ", re.sub(r"'[^']*'|\"[^\"]*\"|\S*/\S*", "", message.lower()[:400]))[:120]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooLong(f"took more than {seconds:g} seconds")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(more: int = MEMORY) -> None:
    """Limit the memory of this process from now on: a reader that needs more gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Present:
    """Stores the current input where another process finds it if this one dies or hangs."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(1 << 20))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 1 << 20)
        self._count = 0

    def __call__(self, data: bytes) -> None:
        self._count += 1
        self._map[: 16 + len(data)] = self._count.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data

    @staticmethod
    def left(file: Path) -> tuple[int, bytes]:
        """Return the input's number, and the input."""
        content = file.read_bytes()
        return int.from_bytes(content[:8], "little"), content[16 : 16 + int.from_bytes(content[8:16], "little")]


def regressions(reader: Reader) -> dict[str, bytes]:
    """Return inputs that once escaped, by file name."""
    return {file.name: file.read_bytes() for file in sorted((CORPUS / reader.name).glob("*"))}


def keep(reader: str, escape: Escape) -> Path:
    file = CORPUS / reader / escape.key
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(escape.data)
    return file


def as_record(outcome: Outcome) -> dict[str, Any]:
    return {
        "inputs": outcome.inputs,
        "accepted": outcome.accepted,
        "seconds": round(outcome.seconds, 3),
        "slowest": round(outcome.slowest, 4),
        "kinds": sorted(outcome.kinds),
        "escapes": [escape.error for escape in outcome.escapes],
    }
