"""The trials of a run whose task is verification: claimed labels, of enrolled persons' records and of strangers'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Split
from fedalc.errors import ConfigError, FedalcError
from fedalc.evaluation.verification import TRIALS_LIMIT, Trials, make_trials

ScorerOf = Callable[[Split], Any]
"""Returns what scores a split: it has `of_labels`."""


def scored_trials(scorer: Any, truth: csr_matrix, held: np.ndarray, strangers: Any = None) -> Trials:
    """Return the trials of the records that a scorer scores. `strangers`: a scorer of strangers' records."""
    if truth.shape[0] * truth.shape[1] > TRIALS_LIMIT:
        raise ConfigError(
            f"verification compares each record with each label, and {truth.shape[0]} × {truth.shape[1]} are more than "
            f"{TRIALS_LIMIT:,}; give fewer records to test",
            "task",
        )
    everyone = slice(0, truth.shape[1])
    more = None if strangers is None else _numbers(strangers.of_labels(everyone))
    trials = make_trials(_numbers(scorer.of_labels(everyone)), truth, held, more)
    if trials is None:
        raise FedalcError(
            "verification needs records of at least two enrolled labels to test with, beside those to train on: give "
            "more records of each, or hold none out to choose by (--set selection.validation=0)"
        )
    return trials


def test_trials(scorer_of: ScorerOf, test: Split, strangers: Split | None, held: np.ndarray) -> Trials:
    return scored_trials(scorer_of(test), test.labels, held, None if strangers is None else scorer_of(strangers))


def enrolled_only(split: Split, held: np.ndarray) -> Split:
    """Return the records that have a label with a client: those that can be identified."""
    enrolled = np.flatnonzero(split.labels[:, held].getnnz(axis=1))
    return split if len(enrolled) == len(split) else split.rows(enrolled)


def _numbers(scores: Any) -> np.ndarray:
    return scores if isinstance(scores, np.ndarray) else np.asarray(scores.cpu().numpy())
