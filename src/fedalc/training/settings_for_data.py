"""Settings that depend on the size of the data: an axis for each label, one round or several, minibatches."""

from __future__ import annotations

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.config.schema import LARGEST_SECRET, TuningSettings
from fedalc.core import distributed
from fedalc.data.dataset import Dataset
from fedalc.engines.sums import LARGEST_GRAM

LARGE_PASS, LARGE_SOLUTION = 10**9, 5 * 10**10  # operations, of a pass over all labels and of a solution
LARGEST_MATRIX = 2**28  # numbers in a matrix (1 GiB in float32) up to which every label gets an axis of its own


def with_axes(settings: Experiment, data: Dataset) -> Experiment:
    """Return the settings with an axis for each label (D = C), if θ and W then stay within `LARGEST_MATRIX`. Secret
    axes are turned, and remain as many as there are labels, none nearer to another."""
    if max(data.feature_count, data.label_count) * data.label_count > LARGEST_MATRIX:
        return settings
    if settings.embeddings.secret and data.label_count > LARGEST_SECRET:
        return settings
    return settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"dim": data.label_count})})


def equations(settings: Experiment, data: Dataset, columns: int | None = None) -> int:
    """Return the number of equations of the square loss: one for each column of the design (by default the features).
    If there are fewer records, `fused` in one process has one for each of them; all others add up sums over columns."""
    columns = data.feature_count if columns is None else columns
    has_records = settings.engine == "fused" and distributed.here().count == 1
    return min(columns, len(data.train)) if has_records else columns


def can_solve(settings: Experiment, data: Dataset) -> bool:
    """Whether the square loss is solved in one round; otherwise by conjugate gradients. Private sums always are."""
    return settings.privacy.covers_records or equations(settings, data) ** 2 <= LARGEST_GRAM


def is_large(settings: Experiment, data: Dataset) -> bool:
    """Whether a pass over all labels, or a solution of the square loss, takes a second or more."""
    passes = getattr(data.train.features, "nnz", np.inf) * data.label_count  # pictures have none
    return passes > LARGE_PASS or equations(settings, data) ** 3 > LARGE_SOLUTION


def in_batches(settings: Experiment, data: Dataset) -> Experiment:
    """Return the settings with rounds of about `tuning.batch` records, for `tuning.epochs` passes over train."""
    tuning, selection = settings.tuning, settings.selection
    assert tuning.batch is not None
    share = 0.0 if data.validation is not None else selection.validation
    every = max(1, round((1 - share) * len(data.train) / tuning.batch))
    return (with_axes(settings, data) if tuning.axes else settings).model_copy(
        update={
            "rounds": every * tuning.epochs,
            "client": settings.client.model_copy(update={"sample": 1 / every}),
            "selection": selection.model_copy(update={"every": every}),
            "tuning": TuningSettings(),
        }
    )
