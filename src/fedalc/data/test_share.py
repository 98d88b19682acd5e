"""Hold out a share of the records for testing: by content, so that equal records are never on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.places import Places
from fedalc.errors import DataError, either

if TYPE_CHECKING:
    from fedalc.data.dataset import Split

_TEST = either("--test FILE", "test=(X, Y) or table={'test': FILE}")


def choose_test(records: Iterable[bytes], share: float, seed: int, name: str) -> np.ndarray:
    """Return which records are for testing: about `share` of them. It depends on each record's content and on the seed,
    not on the order of the records."""
    digests = np.fromiter((_digest(record, seed) for record in records), dtype=np.uint64)
    values, group, counts = np.unique(digests, return_inverse=True, return_counts=True)
    wanted = max(round(len(digests) * share), 1)
    taken = int(np.searchsorted(np.cumsum(counts), wanted)) + 1
    if taken >= len(values):
        raise DataError(
            f"{name}: {len(digests)} records, {len(values)} of them different, are too few to hold out a share of "
            f"{share:g} for testing; give test records ({_TEST}), or train without: "
            + either("--test-share 0", "table={'test_share': 0}")
        )
    return np.asarray(group < taken)


def _digest(record: bytes, seed: int) -> int:
    return int.from_bytes(blake2b(record, digest_size=8, key=seed.to_bytes(4, "big")).digest(), "big")


def text_contents(texts: Sequence[str]) -> Iterator[bytes]:
    """Yield what makes texts equal: their words. White space does not count."""
    return (" ".join(text.split()).encode("utf-8", errors="surrogatepass") for text in texts)


def text_digests(texts: Sequence[str]) -> np.ndarray:
    """Return 16 bytes for each text, the same for equal ones."""
    digests = b"".join(blake2b(content, digest_size=16).digest() for content in text_contents(texts))
    return np.frombuffer(digests, np.uint8).reshape(-1, 16)


def row_contents(features: csr_matrix) -> Iterator[bytes]:
    """Yield what makes rows of features equal: the columns and values of each."""
    features = features if features.has_sorted_indices else features.sorted_indices()
    indices, data = features.indices.astype("<i8", copy=False), features.data.astype("<f4", copy=False)
    for start, stop in zip(features.indptr[:-1].tolist(), features.indptr[1:].tolist(), strict=True):
        yield indices[start:stop].tobytes() + data[start:stop].tobytes()


def split_off_test(train: Split, share: float, seed: int, name: str) -> tuple[Split, Split]:
    """Return (train, test)."""
    train = replace(train, places=train.places or Places.counted(len(train)))
    test = choose_test(row_contents(train.features), share, seed, name)
    return train.rows(np.flatnonzero(~test)), train.rows(np.flatnonzero(test))


def share_in_words(share: float, count: int) -> str:
    return f"{100 * share:g} % held out for testing ({count:,} records)"
