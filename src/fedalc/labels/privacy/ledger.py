"""The privacy ledger: how much privacy all runs spent on which label sets, and whether another run fits a budget.

It is an append-only file of JSON lines outside run folders, so that deleting a run does not give its ε back. A run is
charged, on disk, before anything made with its noise is used or written. The file holds neither noise nor exact counts;
data is marked by keyed digests, with the key in the first line.
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
from fedalc.errors import ConfigError, FedalcError, either
from fedalc.labels.privacy.accounting import Release, epsilon_of

LEDGER = "FEDALC_PRIVACY_LEDGER"
_VERSION = 1
_HEAD = b'{"fedalc-privacy-ledger": '
GONE_ON = (
    "this run has continued since, in a copy of its folder or before an older copy was restored. Continuing from here "
    "would draw noise a second time, but it was charged once. To charge it again, delete privacy.json in the run folder"
)


class BudgetError(FedalcError):
    """A run would exceed its budget. The message says what was spent."""


class GoneOn(FedalcError):
    """The folder is a copy, and its run has continued elsewhere."""


@dataclass(frozen=True)
class Charge:
    """The charge of one run or one file of counts. Charges that share a mark are for the same label sets."""

    subject: str
    marks: tuple[str, ...]
    what: str
    delta: float
    epsilon: float | None  # None: the noise protects nothing
    release: Release | None  # None if ε is None
    noise: Literal["system", "seeded"] = "system"
    run: str | None = None
    id: str = ""
    time: str = ""


class Ledger:
    """A ledger file. A lock makes processes take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def charges(self) -> list[Charge]:
        """Return all charges, oldest first; an empty list if there is no file yet."""
        if not self.path.exists():
            return []
        with self._locked() as file:
            return self._read(file)[1]

    def mark_of(self, label_sets: csr_matrix) -> str:
        """Return a mark that is the same for equal label sets, whatever their order and the labels' names."""
        sizes, counts = np.diff(label_sets.indptr), np.bincount(label_sets.indices)
        digest = hashlib.sha256()
        for numbers in (sizes, counts):
            digest.update(np.sort(numbers[numbers > 0]).astype("<i8").tobytes() + b"|")
        with self._locked() as file:
            key, *_ = self._read(file)
        return "data:" + hmac.new(key, digest.digest(), "sha256").hexdigest()[:32]

    def add(self, charge: Charge, budget: float | None = None) -> None:
        """Add a charge if its id is not there yet. Raises BudgetError if it exceeds the budget."""
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
        """Return the state in which the run with this id last drew noise, or None if none is recorded."""
        if not self.path.exists():
            return None
        with self._locked() as file:
            return self._read(file)[2].get(run)

    def go_on(self, run: str, state: str | None, new: str) -> None:
        """Move the run from `state` to `new`, because it draws noise now. No copy can then continue from `state`."""
        with self._locked() as file:
            if self._read(file)[2].get(run) != state:
                raise GoneOn(f"{self.path}: {GONE_ON}")
            self._append(file, {"run": run, "state": new})

    def check(self, charge: Charge, budget: float | None) -> None:
        """Refuse what `add` would refuse, without adding it."""
        known = self.charges()
        if not self._is_entered(charge, known):
            check_budget(known, charge, budget)

    def _is_entered(self, charge: Charge, known: Sequence[Charge]) -> bool:
        """Return whether the charge's id is there. Refuses an id with other noise or data. (Paths may have changed.)"""
        for earlier in known:
            if charge.id and earlier.id == charge.id:
                if earlier.release == charge.release and set(earlier.marks).intersection(charge.marks):
                    return True
                what = "on other data" if earlier.release == charge.release else "with other noise"
                raise FedalcError(
                    f"{self.path}: the run was charged {what} (id {charge.id}). To charge it again, "
                    "delete privacy.json in the run folder"
                )
        return False

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the file to read and append. Creates it with its first line if needed."""
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
        """Remove a half-written last line (a crash before its run began). Complete one that only lacks its newline."""
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
        """Return the key for marks, all charges, and the state in which each run last drew noise."""
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
                f"{self.path}:{number}: not a line of a privacy ledger, so what was spent is unknown: restore the file "
                "from a backup, or move it away to forget what it says"
            ) from None
        return key, charges, states


@dataclass(frozen=True)
class Total:
    """`epsilon` is the composed ε of all charges at `delta`; `plain` is the sum of their ε, at `plain_delta`."""

    epsilon: float
    delta: float
    plain: float
    plain_delta: float
    runs: int


@dataclass(frozen=True)
class Account:
    """The label sets that a run spends privacy on, the ledger to charge, and the budget for all runs."""

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
    """Return $FEDALC_PRIVACY_LEDGER, or the ledger in the user's state folder."""
    if path := os.environ.get(LEDGER):
        return Path(path)
    if folder := os.environ.get("XDG_STATE_HOME"):
        return Path(folder) / "fedalc" / PRIVACY_LEDGER
    try:
        return Path.home() / ".local" / "state" / "fedalc" / PRIVACY_LEDGER
    except RuntimeError:
        raise FedalcError(f"no home folder for the privacy ledger: set {LEDGER} to a file") from None


def new_id() -> str:
    return secrets.token_hex(16)


def on_same_data(charges: Sequence[Charge], marks: Iterable[str]) -> list[Charge]:
    """Return the charges that share a mark with `marks`, directly or through other charges."""
    known, same = set(marks), [False] * len(charges)
    grown = True
    while grown:
        grown = False
        for number, charge in enumerate(charges):
            if not same[number] and known.intersection(charge.marks):
                same[number] = grown = True
                known.update(charge.marks)
    return [charge for number, charge in enumerate(charges) if same[number]]


def by_subject(charges: Sequence[Charge]) -> list[list[Charge]]:
    """Return the charges in groups, one group for each set of data."""
    groups, left = [], list(charges)
    while left:
        group = on_same_data(left, left[0].marks)
        groups.append(group)
        left = [charge for charge in left if charge not in group]
    return groups


def total(charges: Iterable[Charge], delta: float) -> Total:
    """Return what the charges spent together at this δ, without those that protect nothing.

    If published lists of labels take more than half of δ, the total has a larger δ, so that half of the given δ is left
    for the noise.
    """
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
        f"this run would bring the privacy spent on {charge.subject} to ε = {after.epsilon:.4g} at "
        f"δ = {after.delta:.3g}, above the budget of {budget:g} "
        f"({either('--epsilon-budget', 'epsilon_budget=')}). Spent so far: "
        f"ε = {before.epsilon:.4g} in {before.runs} runs; this run: ε = {charge.epsilon:.4g}. "
        "`fedalc privacy` lists the runs"
    )


class _Noise(BaseModel):
    """A `Release` in a line of the ledger. The bounds are far beyond those of any run."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: Literal["gaussian", "discrete"]
    noise: Annotated[float, Field(ge=1e-6, le=1e12)]
    times: Annotated[int, Field(ge=1, le=1_000_000_000)]
    sample_rate: Annotated[float, Field(ge=1e-12, le=1)] = 1.0
    selection: Annotated[float, Field(ge=0, lt=1)] = 0.0


class _Line(BaseModel):
    """A `Charge` in a line of the ledger."""

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
        raise ValueError("ε and its noise must be given together")
    release = None if line.release is None else Release(**line.release.model_dump())
    return Charge(**line.model_dump() | {"marks": tuple(line.marks), "release": release})
