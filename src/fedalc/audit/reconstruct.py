"""Reconstruct records from vectors that are mixtures of them, as a curious server would.

A change of a linear encoder (or of a network's first matrix) is Σ_j x_j a_jᵀ: its columns are mixtures of the records
x_j, with unknown coefficients a_j. With one record it is that record. With k records and k different columns it has
their span, and what is left is to find them in it. Row f of the change is Σ_j x_jf a_j. If record j alone has feature
f, this row is a multiple of a_j, and so are the rows of all features that it alone has: lines through the origin on
which several rows lie are the a_j. Where records share all features (dense ones), independent components take their
place.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

SMALLEST_PART = 1e-5  # singular values below this part of the largest are rounding errors of 32 bits
MOST_ROWS = 3000  # features that are compared with each other, the largest first
ON_A_LINE = 1e-8  # 1 - |cosine| of rows that count as parallel
OFTEN = 0.1  # the part of all rows on lines, from which these are no coincidence


def reconstruct(mixtures: Iterable[np.ndarray], count: int) -> np.ndarray:
    """Return the best guess of `count` records, count × features, from matrices of features × mixtures.

    Every matrix is tried by itself, and in several ways. The server does not know the records, so it goes by signs:
    exact solutions first, then those that are never negative, as features of texts are, and of these the sparsest,
    because mixtures of records have more features than records.
    """
    found = [each for mixture in mixtures for each in _guesses(np.asarray(mixture, dtype=np.float64), count)]
    if not found:
        return np.zeros((count, 0))
    return min(found, key=lambda each: (not each[0], _is_negative(each[1]), _density(each[1])))[1]


def _guesses(mixture: np.ndarray, count: int) -> Iterator[tuple[bool, np.ndarray]]:
    """Yield guesses, and whether they are probably exact: `count` records explain more than `count` mixtures, or many
    features lie on lines."""
    if not mixture.any() or not np.isfinite(mixture).all():
        return
    components = _span(mixture, count + 1)
    exact = mixture.shape[1] > count == components.shape[1]
    basis = components[:, :count]
    if basis.shape[1] == 1:
        yield exact, np.repeat(_signed(basis.T), count, axis=0)
        return
    lines, often = _lines(basis)
    ways = (lines,) if often else (lines, _extremes(basis), _independent(basis))
    for directions in ways:
        if directions is not None:
            found = _signed(np.linalg.lstsq(directions.T, basis.T, rcond=None)[0])
            more = np.repeat(found[:1], count - len(found), axis=0)
            yield exact or (often and not len(more)), np.concatenate([found, more])


def _span(mixture: np.ndarray, count: int) -> np.ndarray:
    """Return an orthonormal basis of the largest part, features × components; fewer than `count` if the rank is."""
    present = np.flatnonzero(mixture.any(axis=1))
    kept = principal(mixture[present], count)
    basis = np.zeros((mixture.shape[0], kept.shape[1]))
    basis[present] = kept / np.linalg.norm(kept, axis=0)
    return basis


def principal(rows: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` largest principal components of the columns, with their lengths: rows × components. Those
    that are rounding errors are left out."""
    if rows.shape[0] > rows.shape[1]:
        squares, directions = np.linalg.eigh(rows.T @ rows)
        lengths, components = np.sqrt(np.maximum(squares[::-1], 0)), rows @ directions[:, ::-1]
    else:
        left, lengths, _ = np.linalg.svd(rows, full_matrices=False)
        components = left * lengths
    return components[:, :count][:, lengths[:count] > SMALLEST_PART * lengths[0]]


def _unit_rows(basis: np.ndarray) -> np.ndarray:
    """Return the largest rows, scaled to length 1."""
    lengths = np.linalg.norm(basis, axis=1)
    order = np.argsort(-lengths, kind="stable")[:MOST_ROWS]
    order = order[lengths[order] > 1e-3 * lengths[order[0]]]  # smaller ones have few exact digits
    return basis[order] / lengths[order, None]


def _lines(basis: np.ndarray) -> tuple[np.ndarray | None, bool]:
    """Return the lines through the origin on which most rows lie, as many as components, or None if there are fewer;
    and whether many rows lie on them."""
    rows, size = _unit_rows(basis), basis.shape[1]
    parallel = np.abs(rows @ rows.T) > 1 - ON_A_LINE
    chosen: list[np.ndarray] = []
    votes, left = parallel.sum(axis=1), np.ones(len(rows), dtype=bool)
    while len(chosen) < size:
        best = int(np.where(left, votes, 0).argmax())
        if not left[best] or votes[best] < 2:
            return None, False
        members = parallel[best] & left
        line = (rows[members] * np.sign(rows[members] @ rows[best])[:, None]).mean(axis=0)
        votes -= parallel[:, members].sum(axis=1)
        left &= ~members
        if not chosen or _outside(line, np.array(chosen)) > 1e-3:
            chosen.append(line)
    return np.array(chosen), bool((~left).sum() >= OFTEN * len(rows))


def _outside(line: np.ndarray, chosen: np.ndarray) -> float:
    """Return the length of the part of a line that is not in the span of others."""
    return float(np.linalg.norm(line - np.linalg.lstsq(chosen.T, line, rcond=None)[0] @ chosen))


def _extremes(basis: np.ndarray) -> np.ndarray | None:
    """Return the corners of the cone of rows (successive projections): for features that are never negative, rows of
    features that one record alone has. One such feature for each record is enough."""
    centre = basis.sum(axis=0)
    heights = basis @ centre
    kept = heights > 1e-4 * np.abs(heights).max(initial=0.0)
    if kept.sum() < basis.shape[1]:
        return None
    rows = basis[kept] / heights[kept, None]
    left, corners = rows.copy(), []
    for _ in range(basis.shape[1]):
        lengths = np.linalg.norm(left, axis=1)
        corner = int(lengths.argmax())
        if lengths[corner] < 1e-9:
            return None
        corners.append(rows[corner])
        direction = left[corner] / lengths[corner]
        left = left - np.outer(left @ direction, direction)
    return np.array(corners)


def _independent(basis: np.ndarray) -> np.ndarray | None:
    """Return directions by independent component analysis: for dense features."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    present = basis[basis.any(axis=1)]
    if len(present) <= 2 * basis.shape[1]:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = FastICA(whiten="unit-variance", random_state=0, max_iter=300)
        try:
            search.fit(present)
        except (ValueError, np.linalg.LinAlgError):
            return None
    directions = np.asarray(search.mixing_).T
    return directions if np.isfinite(directions).all() else None


def _signed(records: np.ndarray) -> np.ndarray:
    """Scale to length 1, and turn each so that most of it is positive."""
    lengths = np.linalg.norm(records, axis=1, keepdims=True)
    return records / np.maximum(lengths, 1e-300) * np.where(records.sum(axis=1, keepdims=True) < 0, -1, 1)


def _density(records: np.ndarray) -> float:
    """Return the mean of ‖x‖₁/‖x‖₂: the root of the number of features, if all are alike."""
    lengths = np.linalg.norm(records, axis=1)
    return float((np.abs(records).sum(axis=1) / np.maximum(lengths, 1e-300)).mean())


def _is_negative(records: np.ndarray) -> bool:
    """Return whether a considerable part of any record is negative."""
    return bool((np.minimum(records, 0) ** 2).sum(axis=1).max() > 1e-6)


def matched(guesses: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Return the |cosine| of each record with the guess that it is matched with. Each guess is matched once, so that
    the sum is the largest; a record without a guess has 0."""
    found = np.zeros(len(records))
    if guesses.size == 0:
        return found
    cosines = np.abs(_scaled(records) @ _scaled(guesses).T)
    at, of = linear_sum_assignment(-cosines)
    found[at] = cosines[at, of]
    return found


def _scaled(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)


def by_chance(records: np.ndarray, others: Sequence[np.ndarray], mean: np.ndarray) -> float:
    """Return the mean cosine of a server that knows the domain but not the answer: it guesses the mean record, or as
    many other records (the mean over several draws), whichever is better."""
    guesses = [float(matched(np.repeat(mean[None], len(records), axis=0), records).mean())]
    if len(others):
        guesses.append(float(np.mean([matched(drawn, records).mean() for drawn in others])))
    return max(guesses)
