"""Label correlations: how often each label occurs, and how often each pair of labels occurs together.

All weights of the paper follow from the counts `n` and the sparse `c`; neither label sets nor negative pairs are
stored. Memory: 8 bytes per label, and 8 bytes per ordered pair of labels that occurs together. Counting additionally
takes at most about 50 bytes for each of `PAIRS_AT_ONCE` pairs (25 MB), or for each label if there are more labels, plus
5 bytes per instance, 16 per instance of the most frequent label, and one per label of an instance. Nothing grows with
labels².
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.schema import Weighting
from fedalc.data.formats.sparse_builder import GrowingArray
from fedalc.errors import ConfigError

PAIRS_AT_ONCE = 1 << 19
"""How many ordered pairs of labels are counted at a time. Bounds memory; does not change results."""
_EXACT_IN_FLOAT32 = 1 << 24


@dataclass(frozen=True)
class LabelCounts:
    """What sums show of the label sets: `counts` is n, `mean_set_size` the mean number of labels of an instance, if a
    method asked for it (docs/set-sizes.md)."""

    counts: np.ndarray
    mean_set_size: float | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the counts to save, together with `facts`."""
        return {"labels.counts": torch.from_numpy(self.counts.copy())}

    def facts(self) -> dict[str, float | None]:
        return {"mean_set_size": self.mean_set_size}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], mean_set_size: float | None) -> LabelCounts:
        return cls(tensors["labels.counts"].numpy(), mean_set_size)


@dataclass(frozen=True)
class Correlations:
    """`instances` is N, `counts` n (one per label), `together` c (labels × labels, sparse, symmetric, no diagonal)."""

    instances: int
    counts: np.ndarray
    together: csr_matrix

    def __post_init__(self) -> None:
        self.together.sort_indices()  # so that a pair is found by binary search

    @classmethod
    def from_label_sets(cls, labels: csr_matrix, weights: np.ndarray | None = None) -> Correlations:
        """Count Y, one instance per row. Instances without a label do not count: they belong to no client.

        With `weights`, instance j counts weights[j] times in n and c. N does not change.

        >>> Y = csr_matrix([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
        >>> known = Correlations.from_label_sets(Y)
        >>> known.instances, known.counts.tolist(), known.together.toarray().tolist()
        (2, [2, 1, 0], [[0, 1, 0], [1, 0, 0], [0, 0, 0]])
        """
        instances = int(np.count_nonzero(np.diff(labels.indptr)))
        weight = np.ones(labels.shape[0], dtype=np.int8) if weights is None else np.asarray(weights, dtype=np.float64)
        counts = _per_label(labels, weight)
        if weights is None:
            counts = counts.astype(np.int64)
        number = count_type(instances) if weights is None else np.float64
        return cls(instances, counts, _count_together(labels, counts, weights, number))

    def tensors(self) -> dict[str, Tensor]:
        """Return the counts as tensors to save, together with `instances`. `restored` reads them."""
        c = self.together
        arrays = {"counts": self.counts, "indptr": c.indptr, "indices": c.indices, "together": c.data}
        return {f"labels.{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def facts(self) -> dict[str, int]:
        return {"instances": self.instances}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], instances: int) -> Correlations:
        array = {name: tensors[f"labels.{name}"].numpy() for name in ("counts", "indptr", "indices", "together")}
        size = len(array["counts"])
        together = csr_matrix((array["together"], array["indices"], array["indptr"]), shape=(size, size))
        return narrowed(cls(instances, array["counts"], together))

    @property
    def label_count(self) -> int:
        return len(self.counts)

    @cached_property
    def _gamma_scale(self) -> np.ndarray:
        """1 / Σ_{v≠u} (n_u - c_uv), or 0 where the sum is 0: for labels that occur never, or always with all others."""
        total = (self.label_count - 1) * self.counts - np.asarray(self.together.sum(axis=1)).ravel()
        return np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)

    def apart(self, rows: slice, weighting: Weighting, like: Tensor) -> Tensor:
        """Return rows of the weights of negative pairs: (n_u - c_uv) times a scale per row, zero on the diagonal.

        The scale is 1/N for σ, 1 over the row's sum for γ, 1/n_u for `conditional` (the share of u's instances that
        lack v, between 0 and 1 for any size of dataset), and 1 for `counts`. The result is dense, so ask for a block of
        rows only. It has type and device of `like`.
        """
        weight = np.repeat(self.counts[rows, None].astype(np.float64), self.label_count, axis=1)
        block = self.together[rows].tocoo()
        weight[block.row, block.col] -= block.data
        weight[np.arange(len(weight)), np.arange(rows.start, rows.stop)] = 0.0
        weight *= self._scale(rows, weighting)[:, None]
        return torch.from_numpy(weight).to(like)

    def apart_at(self, rows: Tensor, columns: Tensor, weighting: Weighting, like: Tensor) -> Tensor:
        """Return these weights only at the given columns (one list per row). Takes about 40 bytes for each."""
        labels, wanted = rows.cpu().numpy(), columns.cpu().numpy()
        block = self.together[labels]  # scipy searches all rows that it is given, once per call
        row = np.repeat(np.arange(len(wanted)), wanted.shape[1])
        together = np.asarray(block[row, wanted.ravel()]).reshape(wanted.shape)
        weight = (self.counts[labels, None] - together) * self._scale(labels, weighting)[:, None]
        return torch.from_numpy(weight).to(like)

    def pairs_together(
        self, at_once: int, like: Tensor, within: slice | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the ordered pairs that occur together, `at_once` at a time, as (u, v, c_uv / N).

        `within` limits them to a range of the pairs.
        """
        c = self.together
        begin, end = (0, c.nnz) if within is None else (within.start, within.stop)
        for start in range(begin, end, at_once):
            stop = min(start + at_once, end)
            first = np.searchsorted(c.indptr, np.arange(start, stop), side="right") - 1
            yield (
                torch.from_numpy(first).to(like.device),
                torch.from_numpy(c.indices[start:stop].astype(np.int64)).to(like.device),
                torch.from_numpy(c.data[start:stop] / self.instances).to(like),
            )

    def weight_of_one(self, weighting: Weighting) -> float:
        """Return how much one more instance with u and without v adds to the weight of the pair (u, v).

        This is not defined for γ and `conditional`: they divide by counts, which all other instances change too.
        """
        if weighting not in ("sigma", "counts"):
            raise ConfigError(
                f"the gradient of one instance needs weighting 'sigma' or 'counts': {weighting!r} divides by counts "
                "that are themselves private"
            )
        return 1.0 if weighting == "counts" else 1.0 / max(self.instances, 1)

    def _scale(self, rows: slice | np.ndarray, weighting: Weighting) -> np.ndarray:
        if weighting == "gamma":
            return self._gamma_scale[rows]
        if weighting == "conditional":
            return 1.0 / np.maximum(self.counts[rows], 1)
        return np.full(len(self.counts[rows]), self.weight_of_one(weighting))


def narrowed(known: Correlations) -> Correlations:
    """Return the correlations with the narrowest integer type that fits: files may have a wider one."""
    c, number = known.together, count_type(known.instances)
    if c.dtype.kind != "i" or c.dtype == number:
        return known
    return replace(known, together=csr_matrix((c.data.astype(number), c.indices, c.indptr), shape=c.shape))


def count_type(instances: int) -> type[np.signedinteger]:
    """Return the integer type for counts of up to `instances`."""
    return np.int32 if instances < 1 << 31 else np.int64


def _count_together(
    labels: csr_matrix, counts: np.ndarray, weights: np.ndarray | None, number: type[np.number]
) -> csr_matrix:
    """Return c = YᵀY without its diagonal, computed in blocks of rows; with weights, Yᵀ diag(weights) Y.

    Uses float32 where all sums are exact, so that Y need not be copied.
    """
    kind = np.float32 if weights is None and counts.max(initial=0) < _EXACT_IN_FLOAT32 else np.float64
    usable = labels.dtype == kind and bool((labels.data == 1).all())
    ones = labels.data if usable else np.ones(labels.nnz, dtype=kind)
    Y = csr_matrix((ones, labels.indices, labels.indptr), shape=labels.shape)
    columns, pair_counts, lengths = GrowingArray(np.int32), GrowingArray(number), GrowingArray(np.int64)
    for rows in _label_blocks(labels):
        block = _carriers(labels, rows, weights, kind) @ Y
        block.sort_indices()
        row = np.repeat(np.arange(rows.start, rows.stop), np.diff(block.indptr))
        off_diagonal = (block.indices != row) & (block.data != 0)
        columns.append(block.indices[off_diagonal])
        pair_counts.append(block.data[off_diagonal])
        lengths.append(np.bincount(row[off_diagonal] - rows.start, minlength=rows.stop - rows.start))
    pointers = np.append(0, np.cumsum(lengths.take()))
    if pointers[-1] < 1 << 31:
        pointers = pointers.astype(np.int32)
    return csr_matrix((pair_counts.take(), columns.take(), pointers), shape=(len(counts), len(counts)), copy=False)


def _label_blocks(labels: csr_matrix) -> Iterator[slice]:
    """Yield ranges of labels whose instances have about `PAIRS_AT_ONCE` labels in all; at least one label each."""
    before, start = np.append(0, np.cumsum(_per_label(labels, np.diff(labels.indptr)))), 0
    while start < labels.shape[1]:
        stop = max(start + 1, int(np.searchsorted(before, before[start] + PAIRS_AT_ONCE, side="right")) - 1)
        yield slice(start, stop)
        start = stop


def _per_label(labels: csr_matrix, values: np.ndarray) -> np.ndarray:
    """Return for each label the sum of its instances' values."""
    sums = np.zeros(labels.shape[1])
    for part in _instance_blocks(labels):
        entries = slice(labels.indptr[part.start], labels.indptr[part.stop])
        sizes = np.diff(labels.indptr[part.start : part.stop + 1])
        sums += np.bincount(labels.indices[entries], np.repeat(values[part], sizes), minlength=len(sums))
    return sums


def _carriers(labels: csr_matrix, rows: slice, weights: np.ndarray | None, kind: type[np.floating]) -> csr_matrix:
    """Return the rows of Yᵀ for these labels: their instances, weighted."""
    instances, carried = [], []
    for part in _instance_blocks(labels):
        label_of = labels.indices[labels.indptr[part.start] : labels.indptr[part.stop]]
        chosen = np.flatnonzero((label_of >= rows.start) & (label_of < rows.stop))
        entries = labels.indptr[part.start] + chosen
        instances.append(np.searchsorted(labels.indptr, entries, side="right").astype(np.int32) - 1)
        carried.append(label_of[chosen] - rows.start)
    instance = np.concatenate(instances) if instances else np.zeros(0, dtype=np.int32)
    label = np.concatenate(carried) if carried else instance
    value = np.ones(len(instance), dtype=kind) if weights is None else np.asarray(weights, dtype=kind)[instance]
    return csr_matrix((value, (label, instance)), shape=(rows.stop - rows.start, labels.shape[0]))


def _instance_blocks(labels: csr_matrix) -> Iterator[slice]:
    """Yield ranges of instances with about `PAIRS_AT_ONCE` labels in all."""
    start = 0
    while start < labels.shape[0]:
        end = int(labels.indptr[start]) + PAIRS_AT_ONCE
        stop = max(start + 1, int(np.searchsorted(labels.indptr, end, side="right")) - 1)
        yield slice(start, stop)
        start = stop
