"""Thresholds of verification that hold against strangers: trials of persons whom the model was not trained on.

A record of another enrolled person is refused more easily than a stranger's, because the model knows that person. So a
model is trained without a fifth of the persons and without a fifth of the others' records, and scores both; five times,
until every person was a stranger once. With at most ten persons each is left out alone. A person's own device can do
all of it: the left-out persons score their own records against the rows of the others, and count. It takes five to ten
trainings, so only methods of one round do it.

A person who is enrolled afterwards in a model of fedalc-plda gets a row that training would not have given: the model
knows neither that person nor the stranger. So left-out persons are also enrolled afterwards, with 1, 2, 5, … records,
and claimed by the other left-out persons; with at most ten persons, each pair is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.registry import METHODS
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Dataset, Split
from fedalc.evaluation.calibrate import HeldOut, held_out_scores
from fedalc.methods.fedalc_plda import row_of_new_person
from fedalc.models.calibration import Calibration
from fedalc.models.encoders import SparseRows, scale_rows
from fedalc.models.encoders.squares import Squares
from fedalc.models.model import Model
from fedalc.models.scoring import Scorer
from fedalc.models.verification import FEWEST_PERSONS, TrialCounts, count_trials
from fedalc.training.federated import knowledge_for, simulated

PARTS, FEW_PERSONS = 5, 10
FEWEST_FOR_LATE = 6  # persons. With fewer, a model without two of them is too unlike that of all
WIDEST_FOR_PAIRS = 2048  # features: up to 45 trainings
LATE_RECORDS = (1, 2, 5, 10, 20)
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
    persons = int((train.labels.getnnz(axis=0) > 0).sum())
    if persons < FEWEST_PERSONS:
        return None
    generator = numpy_generator(settings.seed, "records of persons enrolled afterwards")
    found: list[HeldOut] = []
    late = LateTrials(generator)
    for rest, held_out, strangers in _parts(settings, train):
        training = _trained(settings, rest, dataset)
        for part in (held_out, strangers):
            scorer = Scorer(training.averaged_model(), part.features, training.held, settings.memory_budget)
            pairs = held_out_scores(scorer, part.labels, training.held, seed=settings.seed)
            kept = pairs.truth if part is held_out else ~pairs.truth
            found.append(replace(pairs, **{name: getattr(pairs, name)[kept] for name in _COLUMNS}))
        if persons > FEW_PERSONS:
            late.add(training.averaged_model(), strangers)
    is_apart = isinstance(training.averaged_model().encoder, Squares)
    if is_apart and FEWEST_FOR_LATE <= persons <= FEW_PERSONS and train.features.shape[1] <= WIDEST_FOR_PAIRS:
        for rest, strangers in _pairs(train):
            late.add(_trained(settings, rest, dataset).averaged_model(), strangers)
    scores, labels, truth, weights = (np.concatenate([getattr(pairs, name) for pairs in found]) for name in _COLUMNS)
    counts = count_trials(scores, labels, truth, weights, by_strangers=True)
    return replace(counts, late=late.counts()) if is_apart else counts


class LateTrials:
    """Scores of strangers' claims to be persons who were enrolled afterwards."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._scores: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {count: [] for count in LATE_RECORDS}

    @torch.no_grad()
    def add(self, model: Model, strangers: Split) -> None:
        """Enrol each of these persons afterwards, and score the claims of the others."""
        if not isinstance(model.encoder, Squares):
            return
        truth = strangers.labels.toarray() > 0
        for person in np.flatnonzero(truth.any(axis=0)):
            own = self._generator.permutation(np.flatnonzero(truth[:, person]))
            counts = [count for count in LATE_RECORDS if count <= len(own)]
            rows = torch.cat([self._row(model, strangers.features[np.sort(own[:count])]) for count in counts])
            others = strangers.features[np.flatnonzero(~truth[:, person])]
            scorer = Scorer(Model(model.encoder, rows), others, np.ones(len(rows), dtype=bool))
            scores = scorer.of_instances(slice(0, others.shape[0])).double().cpu().numpy()
            for at, count in enumerate(counts):
                self._scores[count].append((scores[:, at], np.full(len(scores), person)))

    def counts(self) -> dict[int, TrialCounts]:
        """Return the trials by the number of records that persons were enrolled with."""
        found = {count: _impostors(pairs) for count, pairs in self._scores.items() if pairs}
        return found or {0: _impostors([(np.zeros(0), np.zeros(0))])}

    @staticmethod
    def _row(model: Model, features: Any) -> torch.Tensor:
        W = model.W
        return row_of_new_person(model, SparseRows(features, np.zeros(features.shape[0]), W.dtype, W.device))


def _impostors(pairs: list[tuple[np.ndarray, np.ndarray]]) -> TrialCounts:
    scores, labels = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return count_trials(scores, labels, np.zeros(len(scores), dtype=bool), np.ones(len(scores)), by_strangers=True)


def _trained(settings: Experiment, train: Split, dataset: Dataset) -> Any:
    training = simulated(settings, train, knowledge_for(settings, train, dataset.label_names))
    training.run_round()
    return training


def _parts(settings: Experiment, train: Split) -> Iterator[tuple[Split, Split, Split]]:
    """Yield what to train on, held-out records of the persons in it, and the records of persons who are not."""
    generator = numpy_generator(settings.seed, "stranger trials")
    group = generator.integers(PARTS, size=train.labels.shape[1])
    persons = np.flatnonzero(train.labels.getnnz(axis=0))
    count = len(persons) if len(persons) <= FEW_PERSONS else PARTS
    group[persons] = generator.permutation(len(persons)) % count
    record_part = np.empty(len(train), dtype=np.int64)
    for label in persons:  # of each person a fifth, as even as can be
        rows = train.labels[:, label].nonzero()[0]
        record_part[rows] = (generator.permutation(len(rows)) + generator.integers(PARTS)) % PARTS
    labelled = train.labels.getnnz(axis=1) > 0
    for part in range(count):
        left_out = train.labels[:, group == part].getnnz(axis=1) > 0
        held_out = labelled & ~left_out & (record_part == part % PARTS)
        rest = labelled & ~left_out & ~held_out
        if rest.any() and held_out.any() and left_out.any():
            yield tuple(train.rows(np.flatnonzero(rows)) for rows in (rest, held_out, left_out))  # type: ignore[misc]


def _pairs(train: Split) -> Iterator[tuple[Split, Split]]:
    """Yield what to train on, and the records of two persons who are not in it."""
    labelled = train.labels.getnnz(axis=1) > 0
    for pair in combinations(np.flatnonzero(train.labels.getnnz(axis=0)), 2):
        left_out = train.labels[:, list(pair)].getnnz(axis=1) > 0
        if (labelled & ~left_out).any():
            yield train.rows(np.flatnonzero(labelled & ~left_out)), train.rows(np.flatnonzero(left_out))
