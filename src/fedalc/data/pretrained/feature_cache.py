"""Rows of features on disk, one for each record, so that a record goes through a network once.

An entry is a folder for one network and one way to use it. Its files hold the rows of some records each, with a digest
of each record's content: train and test, other splits and other datasets share the rows of records that they share.
Files are added while rows are computed, so that interrupted work is not lost. The cache never causes a failure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedalc.core.progress_events import watched

FORMAT = 1
"""Raise it when the layout of an entry changes."""
WORTH_KEEPING = 64  # new rows: fewer are computed again next time
ROWS_PER_FILE = 1024

Batches = Callable[[np.ndarray], Sequence[Sequence[int]]]
"""From the places of records without a row, batches of places to compute. A place that is left out gets zeros."""


def cached_rows(
    key: str,
    width: int,
    digests: Sequence[bytes],
    batches: Batches,
    compute: Callable[[Sequence[int]], np.ndarray],
    what: str,
) -> np.ndarray:
    """Return a row of `width` numbers for each record, as float32. Records of equal digests have the same row.

    `key` says which network, and how it is used. `compute` returns the rows of the records at some places. `what`: the
    name of this step, for a progress bar. Memory: the rows.
    """
    rows = np.zeros((len(digests), width), dtype=np.float32)
    first: dict[bytes, int] = {}
    same = np.array([first.setdefault(digest, place) for place, digest in enumerate(digests)], dtype=np.int64)
    folder = _folder(key)
    missing = dict(first)
    if folder is not None:
        _read(folder, width, missing, rows)
    todo = batches(np.array(sorted(missing.values()), dtype=np.int64))
    total = sum(map(len, todo))
    keeping: list[int] = []
    for batch in watched(what, todo, total, len) if total else ():
        rows[batch] = compute(batch)
        keeping += batch
        if len(keeping) >= ROWS_PER_FILE:
            _write(folder, keeping, digests, rows)
            keeping = []
    if total >= WORTH_KEEPING:
        _write(folder, keeping, digests, rows)
    return rows if len(first) == len(digests) else rows[same]


def _folder(key: str) -> Path | None:
    from fedalc.data.cache import cache_dir  # below: it imports datasets, which import this

    try:
        return cache_dir() / f"features-{hashlib.sha256(f'{FORMAT} {key}'.encode()).hexdigest()[:40]}"
    except RuntimeError:  # a user without a home folder
        return None


def _files(folder: Path) -> Iterable[Path]:
    with suppress(OSError):
        return sorted(folder.glob("*.npz"))
    return ()


def _read(folder: Path, width: int, missing: dict[bytes, int], rows: np.ndarray) -> None:
    """Fill in the rows that are here, and remove them from `missing`."""
    for file in _files(folder):
        if not missing:
            return
        with suppress(Exception), np.load(file, allow_pickle=False) as arrays:  # damaged: compute these rows again
            here = [digest.tobytes() for digest in arrays["digests"]]
            wanted = [number for number, digest in enumerate(here) if digest in missing]
            if not wanted:
                continue
            found = arrays["rows"]
            if found.shape != (len(here), width) or found.dtype != np.float32 or not np.isfinite(found).all():
                continue
            for number in wanted:
                if (place := missing.pop(here[number], None)) is not None:
                    rows[place] = found[number]


def _write(folder: Path | None, places: Sequence[int], digests: Sequence[bytes], rows: np.ndarray) -> None:
    from fedalc.data.cache import store_arrays

    if folder is None or not places:
        return
    of_rows = np.stack([np.frombuffer(digests[place], dtype=np.uint8) for place in places])
    name = hashlib.sha256(of_rows.tobytes()).hexdigest()[:40]
    with suppress(OSError):
        store_arrays(folder / f"{name}.npz", {"digests": of_rows, "rows": rows[places]})
