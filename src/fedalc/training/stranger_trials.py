"""Thresholds of verification that hold against strangers: trials of persons whom the model was not trained on.

A record of another enrolled person is refused more easily than a stranger's, because the model knows that person. So a
model is trained without a fifth of the persons and without a fifth of the others' records, and scores both; five times,
until every person was a stranger once. A person's own device can do all of it: the left-out persons score their own
records against the rows of the others, and count. It takes five trainings, so only methods of one round do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.registry import METHODS
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Dataset, Split
from fedalc.evaluation.calibrate import HeldOut, held_out_scores
from fedalc.models.calibration import Calibration
from fedalc.models.encoders import scale_rows
from fedalc.models.scoring import Scorer
from fedalc.models.verification import TrialCounts, count_trials
from fedalc.training.federated import knowledge_for, simulated

PARTS, FEWEST_PERSONS = 5, 10
_COLUMNS = ("scores", "labels", "truth", "weights")  # of a `HeldOut`


def with_stranger_trials(calibration: Calibration | None, settings: Experiment, dataset: Dataset) -> Calibration | None:
    """Return the calibration with trials of strangers, if the task and the method are such that there are any."""
    if calibration is None or calibration.trials is None or settings.engine == "flower":
        return calibration
    if not METHODS[settings.method].one_round or distributed.here().count > 1:
        return calibration
    trials = stranger_trials(settings, dataset)
    return calibration if trials is None else replace(calibration, trials=trials)


def stranger_trials(settings: Experiment, dataset: Dataset) -> TrialCounts | None:
    """Return the genuine trials of held-out records, and impostors' trials of left-out persons. None if there are too
    few persons."""
    train = replace(dataset.train, features=scale_rows(dataset.train.features, settings.encoder.features))
    if (train.labels.getnnz(axis=0) > 0).sum() < FEWEST_PERSONS:
        return None
    found: list[HeldOut] = []
    for rest, held_out, strangers in _parts(settings, train):
        training = simulated(settings, rest, knowledge_for(settings, rest, dataset.label_names))
        training.run_round()
        for part in (held_out, strangers):
            scorer = Scorer(training.averaged_model(), part.features, training.held, settings.memory_budget)
            pairs = held_out_scores(scorer, part.labels, training.held, seed=settings.seed)
            kept = pairs.truth if part is held_out else ~pairs.truth
            found.append(replace(pairs, **{name: getattr(pairs, name)[kept] for name in _COLUMNS}))
    scores, labels, truth, weights = (np.concatenate([getattr(pairs, name) for pairs in found]) for name in _COLUMNS)
    return count_trials(scores, labels, truth, weights, by_strangers=True)


def _parts(settings: Experiment, train: Split) -> Iterator[tuple[Split, Split, Split]]:
    """Yield what to train on, held-out records of the persons in it, and the records of persons who are not."""
    generator = numpy_generator(settings.seed, "stranger trials")
    group = generator.integers(PARTS, size=train.labels.shape[1])
    persons = np.flatnonzero(train.labels.getnnz(axis=0))
    group[persons] = generator.permutation(len(persons)) % PARTS
    record_part = np.empty(len(train), dtype=np.int64)
    for label in persons:  # of each person a fifth, as even as can be
        rows = train.labels[:, label].nonzero()[0]
        record_part[rows] = (generator.permutation(len(rows)) + generator.integers(PARTS)) % PARTS
    for part in range(PARTS):
        left_out = train.labels[:, group == part].getnnz(axis=1) > 0
        labelled = train.labels.getnnz(axis=1) > 0
        held_out = labelled & ~left_out & (record_part == part)
        rest = labelled & ~left_out & ~held_out
        if rest.any() and held_out.any() and left_out.any():
            yield tuple(train.rows(np.flatnonzero(rows)) for rows in (rest, held_out, left_out))  # type: ignore[misc]
