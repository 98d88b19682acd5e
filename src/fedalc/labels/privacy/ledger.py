"""The privacy ledger: what was spent on whose label sets, in all runs, and whether a further one fits a budget.

A file of JSON lines that is only ever appended to, outside run folders: to delete a run does not give its ε back. A run
is entered, and the entry is on disk, before anything that was made with its noise is used or written. The file has
neither noise nor exact counts; the marks of data are keyed digests, with the key in the first line.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
from filelock import lock_descriptor
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_matrix

from fedalc.config.schema import PRIVACY_LEDGER
from fedalc.core.atomic_files import failures_named, sync_folder
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.privacy.accounting import Release, epsilon_of

LEDGER = "FEDALC_PRIVACY_LEDGER"
_VERSION = 1
_HEAD = b'{"fedalc-privacy-ledger": '
GONE_ON = (
    "this run has gone on since, in a copy of its folder or before an older copy was restored. Going on from here "
    "would draw noise a second time, and it was charged once. To have it charged again, delete privacy.json in the run "
    "folder"
)


class BudgetError(FedalcError):
    """A run that would spend more than its budget. Says what was spent."""


class GoneOn(FedalcError):
    """A copy of a run folder, whose run has gone on elsewhere."""


@dataclass(frozen=True)
class Charge:
    """One run, or one file of counts. Two charges with a mark in common are on the same label sets."""

    subject: str
    marks: tuple[str, ...]
    what: str
    delta: float
    epsilon: float | None  # None: noise that protects nothing
    release: Release | None  # None with ε
    noise: Literal["system", "seeded"] = "system"
    run: str | None = None
    id: str = ""
    time: str = ""


class Ledger:
    """One file. Processes take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def charges(self) -> list[Charge]:
        """All of them, in the order of time. None where there is no file yet."""
        if not self.path.exists():
            return []
        with self._locked() as file:
            return self._read(file)[1]

    def mark_of(self, label_sets: csr_matrix) -> str:
        """Tells whether two collections of label sets are the same, whatever their order, and the labels' names."""
        sizes, counts = np.diff(label_sets.indptr), np.bincount(label_sets.indices)
        digest = hashlib.sha256()
        for numbers in (sizes, counts):
            digest.update(np.sort(numbers[numbers > 0]).astype("<i8").tobytes() + b"|")
        with self._locked() as file:
            key, *_ = self._read(file)
        return "data:" + hmac.new(key, digest.digest(), "sha256").hexdigest()[:32]

    def add(self, charge: Charge, budget: float | None = None) -> None:
        """Enter it, once: one whose id is there already changes nothing. Refused where it exceeds the budget."""
        with self._locked() as file:
            _, known, _ = self._read(file)
            if self._is_entered(charge, known):
                return
            check_budget(known, charge, budget)
            entered = asdict(charge) | {
                "id": charge.id or new_id(),
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            self._append(file, entered)

    def state_of(self, run: str) -> str | None:
        """Which state of the run with this id drew noise last. None where it has not been told."""
        if not self.path.exists():
            return None
        with self._locked() as file:
            return self._read(file)[2].get(run)

    def go_on(self, run: str, state: str | None, new: str) -> None:
        """From `state` the run draws noise now, and is in state `new`. So no other copy of it can go on from there."""
        with self._locked() as file:
            if self._read(file)[2].get(run) != state:
                raise GoneOn(f"{self.path}: {GONE_ON}")
            self._append(file, {"run": run, "state": new})

    def check(self, charge: Charge, budget: float | None) -> None:
        """Refuse what `add` would refuse, and enter nothing."""
        known = self.charges()
        if not self._is_entered(charge, known):
            check_budget(known, charge, budget)

    def _is_entered(self, charge: Charge, known: Sequence[Charge]) -> bool:
        """Under its id, with the same noise and on the same data. (The path of a dataset may have changed.)"""
        for earlier in known:
            if charge.id and earlier.id == charge.id:
                if earlier.release == charge.release and set(earlier.marks).intersection(charge.marks):
                    return True
                what = "on other data" if earlier.release == charge.release else "with other noise"
                raise FedalcError(
                    f"{self.path}: the run was entered {what} (id {charge.id}). To have it charged anew, "
                    "delete privacy.json in the run folder"
                )
        return False

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """To read from the start and append to. With its first line in it, whoever comes first."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise FedalcError(
                f"{self.path}: the privacy ledger cannot be written ({error.strerror or error}); "
                f"set {LEDGER} to a file that can"
            ) from None
        with failures_named(self.path), os.fdopen(descriptor, "r+b") as file:
            lock_descriptor(file.fileno())
            self._drop_torn_line(file)
            if not file.seek(0, os.SEEK_END):
                self._append(file, {"fedalc-privacy-ledger": _VERSION, "key": secrets.token_hex(32)})
                sync_folder(self.path.parent)
            file.seek(0)
            yield file

    def _drop_torn_line(self, file: IO[bytes]) -> None:
        """Half a line was being written when the power went: its run had not begun. A whole one lacks its end only."""
        file.seek(0)
        content = file.read()
        whole, end, torn = content.rpartition(b"\n")
        if not torn:
            return
        try:
            json.loads(torn)
        except (ValueError, RecursionError):
            if not end and not _HEAD.startswith(torn[: len(_HEAD)]):
                raise FedalcError(f"{self.path}: not a privacy ledger; move it away, or set {LEDGER}") from None
            file.truncate(len(whole + end))
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
            file.flush()

    @staticmethod
    def _append(file: IO[bytes], values: dict[str, Any]) -> None:
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())

    def _read(self, file: IO[bytes]) -> tuple[bytes, list[Charge], dict[str, str]]:
        """The key for marks, what was charged, and the state in which each run drew noise last."""
        file.seek(0)
        charges: list[Charge] = []
        states: dict[str, str] = {}
        number = 0
        try:
            for line in file:
                number += 1
                values = json.loads(line)
                if number > 1 and values.keys() == {"run", "state"}:
                    states[str(values["run"])] = str(values["state"])
                elif number > 1:
                    charges.append(_charge_from(values))
                elif values["fedalc-privacy-ledger"] == _VERSION:
                    key = bytes.fromhex(values["key"])
                else:
                    raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FedalcError(
                f"{self.path}:{number}: not a line of a privacy ledger. What was spent cannot be told without it: "
                "restore the file from a backup, or move it away, and what it says is forgotten"
            ) from None
        return key, charges, states


@dataclass(frozen=True)
class Total:
    """`epsilon` is that of all charges at `delta`, composed; `plain` the sum of each one's ε, at `plain_delta`."""

    epsilon: float
    delta: float
    plain: float
    plain_delta: float
    runs: int


@dataclass(frozen=True)
class Account:
    """On whose label sets a run spends, where that is entered, and how much may be spent in all."""

    ledger: Ledger
    subject: str
    marks: tuple[str, ...]
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not self.budget > 0:  # nan too
            raise ConfigError(f"expected a number above 0, found {self.budget}", "epsilon_budget")

    def charge(self, what: str, delta: float, epsilon: float | None, release: Release | None, **more: Any) -> Charge:
        return Charge(self.subject, self.marks, what, delta, epsilon, release, **more)


def default_path() -> Path:
    """$FEDALC_PRIVACY_LEDGER, or where programs keep state of a user's."""
    if path := os.environ.get(LEDGER):
        return Path(path)
    if folder := os.environ.get("XDG_STATE_HOME"):
        return Path(folder) / "fedalc" / PRIVACY_LEDGER
    try:
        return Path.home() / ".local" / "state" / "fedalc" / PRIVACY_LEDGER
    except RuntimeError:
        raise FedalcError(f"there is no home folder for the privacy ledger: set {LEDGER} to a file") from None


def new_id() -> str:
    return secrets.token_hex(16)


def on_same_data(charges: Sequence[Charge], marks: Iterable[str]) -> list[Charge]:
    """Those that share a mark with these, or with one that does, and so on."""
    known, found = set(marks), [False] * len(charges)
    grown = True
    while grown:
        grown = False
        for place, charge in enumerate(charges):
            if not found[place] and known.intersection(charge.marks):
                found[place] = grown = True
                known.update(charge.marks)
    return [charge for place, charge in enumerate(charges) if found[place]]


def by_subject(charges: Sequence[Charge]) -> list[list[Charge]]:
    """All charges, those on the same data together."""
    groups, left = [], list(charges)
    while left:
        group = on_same_data(left, left[0].marks)
        groups.append(group)
        left = [charge for charge in left if charge not in group]
    return groups


def total(charges: Iterable[Charge], delta: float) -> Total:
    """Of those that protect anything, at this δ. At a larger one, where published lists of labels take more than half
    of it: the noise has at least the other half."""
    counted = [charge for charge in charges if charge.release is not None]
    releases = [charge.release for charge in counted if charge.release is not None]
    plain = sum(charge.epsilon or 0.0 for charge in counted)
    plain_delta = sum(charge.delta for charge in counted)
    delta = max(delta, delta / 2 + sum(release.selection for release in releases))
    return Total(epsilon_of(releases, delta), delta, plain, plain_delta, len(counted))


def check_budget(known: Sequence[Charge], charge: Charge, budget: float | None) -> None:
    if budget is None or charge.release is None:
        return
    earlier = on_same_data(known, charge.marks)
    after = total([*earlier, charge], charge.delta)
    if after.epsilon <= budget:
        return
    before = total(earlier, charge.delta)
    raise BudgetError(
        f"this run would bring what was spent on {charge.subject} to ε = {after.epsilon:.4g} at δ = {after.delta:.3g}, "
        f"and the budget is {budget:g} (--epsilon-budget). Spent so far: ε = {before.epsilon:.4g} in {before.runs} "
        f"runs; this one: ε = {charge.epsilon:.4g}. `fedalc privacy` lists the runs"
    )


class _Noise(BaseModel):
    """A `Release`, as a line of the ledger has it. The bounds are far beyond what any run has."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: Literal["gaussian", "discrete"]
    noise: Annotated[float, Field(ge=1e-6, le=1e12)]
    times: Annotated[int, Field(ge=1, le=1_000_000_000)]
    sample_rate: Annotated[float, Field(ge=1e-12, le=1)] = 1.0
    selection: Annotated[float, Field(ge=0, lt=1)] = 0.0


class _Line(BaseModel):
    """A `Charge`, as a line of the ledger has it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    subject: str
    marks: Annotated[list[str], Field(min_length=1)]
    what: str
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    release: _Noise | None
    noise: Literal["system", "seeded"] = "system"
    run: str | None = None
    id: str = ""
    time: str = ""


def _charge_from(values: dict[str, Any]) -> Charge:
    line = _Line.model_validate(values)
    if (line.release is None) != (line.epsilon is None):
        raise ValueError("ε and the noise that gives it belong together")
    release = None if line.release is None else Release(**line.release.model_dump())
    return Charge(**line.model_dump() | {"marks": tuple(line.marks), "release": release})
