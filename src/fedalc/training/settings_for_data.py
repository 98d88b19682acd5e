"""Settings that depend on the size of the data: an axis for each label, one round or several, minibatches."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.config.schema import TuningSettings
from fedalc.data.dataset import Dataset
from fedalc.engines import sums

LARGEST = 2**28  # numbers in a matrix (1 GiB in float32) up to which every label gets an axis of its own


def with_axes(settings: Experiment, data: Dataset) -> Experiment:
    """Return the settings with an axis for each label (D = C), if θ and W then fit into `LARGEST` numbers each."""
    if max(data.feature_count, data.label_count) * data.label_count > LARGEST:
        return settings
    return settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"dim": data.label_count})})


def equations(data: Dataset) -> int:
    """Return the number of equations of the square loss: one for each feature, or for each record if they are fewer.
    Records of real parties are not here: these send sums over features."""
    return min(data.feature_count, len(data.train) or data.feature_count)


def can_solve(data: Dataset) -> bool:
    """Whether the square loss is solved in one round; otherwise by conjugate gradients."""
    return equations(data) ** 2 <= sums.LARGEST


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
