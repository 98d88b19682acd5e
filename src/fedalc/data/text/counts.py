"""In how many documents terms occur. These numbers add up over parts of the data, and over parties."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

MOST_IN_MEMORY = 1_000_000
"""Distinct terms in memory, about 200 MB. More are sorted and written to temporary files."""


class TermCounts:
    """Terms, each with the number of documents that have it, and the number of all documents.

    Holds at most `most_in_memory` terms in memory, and the others in temporary files, which are deleted with it.
    """

    def __init__(
        self, documents: int = 0, terms: Mapping[str, int] | None = None, most_in_memory: int = MOST_IN_MEMORY
    ) -> None:
        self.documents = 0
        self._most = most_in_memory
        self._terms: dict[str, int] = {}
        self._folder: TemporaryDirectory[str] | None = None
        self._files: list[Path] = []
        self.add(documents, terms or {})

    def add(self, documents: int, terms: Mapping[str, int]) -> None:
        """Add the counts of other documents."""
        self.documents += documents
        known = self._terms
        for term, count in terms.items():
            known[term] = known.get(term, 0) + count
        if len(known) > self._most:
            self._write()

    def merge(self, other: TermCounts) -> None:
        """Add the counts of another party."""
        self.add(other.documents, {})
        for term, count in other.items():
            self.add(0, {term: count})

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield all terms with their numbers, in the order of their characters' code points."""
        parts: list[Iterable[tuple[str, int]]] = [sorted(self._terms.items()), *map(_read, self._files)]
        for term, same in groupby(heapq.merge(*parts), key=itemgetter(0)):
            yield term, sum(count for _, count in same)

    def _write(self) -> None:
        self._folder = self._folder or TemporaryDirectory(prefix="fedalc-terms-")
        path = Path(self._folder.name) / str(len(self._files))
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{term}\t{count}\n" for term, count in sorted(self._terms.items()))
        self._files.append(path)
        self._terms = {}


def _read(path: Path) -> Iterator[tuple[str, int]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            term, _, count = line.rpartition("\t")
            yield term, int(count)


class BucketCounts:
    """For each bucket of a hash, the number of documents with a term in it, and the number of all documents."""

    def __init__(self, documents: int, buckets: np.ndarray) -> None:
        self.documents, self.buckets = documents, np.asarray(buckets, dtype=np.int64)

    def add(self, documents: int, buckets: np.ndarray) -> None:
        """Add the counts of other documents."""
        self.documents += documents
        self.buckets += buckets

    def merge(self, other: BucketCounts) -> None:
        """Add the counts of another party."""
        self.add(other.documents, other.buckets)


DocumentCounts = TermCounts | BucketCounts
