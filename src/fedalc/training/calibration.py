"""Probabilities and thresholds for a run's model, from records that it did not train on (docs/predictions.md).

A run with validation data takes the scores that the chosen round gave it. A run without trains again on parts of train,
with the same settings, and scores the rest: in one round, or after a search, which did this many times anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.registry import METHODS
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Dataset, Split
from fedalc.engines.traffic import Ledger
from fedalc.evaluation.calibrate import (
    FEWEST_POSITIVES,
    HeldOut,
    fit_calibration,
    held_out_scores,
    log_shares,
    some_records,
)
from fedalc.models.calibration import Calibration
from fedalc.models.column_scoring import make_scorer
from fedalc.models.encoders import scale_rows
from fedalc.models.model import Model
from fedalc.training.federated import knowledge_for, simulated
from fedalc.training.settings_for_data import is_large

HELD_OUT, ENOUGH, MOST_PARTS = 0.2, 3000, 5  # share of train in a part, and the records to score
FEWEST_RECORDS = 50  # with labels


def refusal(settings: Experiment) -> str | None:
    """Return why a run gives no probabilities by itself; None if it does."""
    reasons = (
        (not settings.selection.calibrate, "selection.calibrate is false"),
        (
            settings.engine == "flower" and settings.secure_sums.on,
            "with secure sums no party counts scores for the server (docs/predictions.md)",
        ),
        (settings.privacy.mechanism is not None, "ε does not cover held-out records"),
        (settings.collection.correlations is not None, "label sets come from a collection, which may be private"),
        (distributed.here().count > 1, "several processes shared the training"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def why_no_thresholds(settings: Experiment, train: Split, validation: Split | None) -> str | None:
    """Return why a run of verification will have no thresholds, as far as that can be said before it; None if it will.

    `validation`: the records that are held out, if any are.
    """
    if (reason := refusal(settings)) is not None:
        return reason
    if validation is not None:
        trials, fewest = int(validation.labels.nnz), FEWEST_POSITIVES
        return None if trials >= fewest else f"{trials} held-out records of enrolled persons; {fewest} are needed"
    if settings.method in METHODS and (METHODS[settings.method].one_round or settings.tuning.search):
        labelled = int((train.labels.getnnz(axis=1) > 0).sum())
        return None if labelled >= FEWEST_RECORDS else f"{labelled} records with a name; {FEWEST_RECORDS} are needed"
    return "no record is held out (selection.validation = 0)"


def score_validation(
    scorer: Any, validation: Split, train: Split, model: Model, held: np.ndarray, settings: Experiment
) -> HeldOut:
    """Return the scores of validation data. `scorer` scores all of it; `train` is what the model was trained on."""
    some, budget = some_records(validation, settings.seed), settings.memory_budget
    if some is not validation:
        scorer = make_scorer(model, some.features, held, budget)
    return held_out_scores(scorer, some.labels, held, log_shares(train.labels), settings.seed, budget)


def calibrate_on_parts(
    settings: Experiment,
    dataset: Dataset,
    rounds: int,
    after_search: bool,
    done: Callable[[int, int], None],
) -> tuple[Calibration | None, dict[str, Any]]:
    """Train on parts of train, score the rest, and fit. Return what result.json says about it too.

    `done` is called after each round with the number of rounds so far and in all; it raises to stop.
    """
    if not (METHODS[settings.method].one_round or after_search):
        return None, {"left_out": "no record was held out (selection.validation = 0)"}
    found, facts = score_parts(settings, dataset, rounds, done)
    if not found:
        return None, {"left_out": "too few records with labels"}
    verifies = settings.task == "verification"
    calibration = fit_calibration(found, dataset.label_count, log_shares(dataset.train.labels), verifies)
    return calibration, summary(calibration) | facts


def score_parts(
    settings: Experiment, dataset: Dataset, rounds: int, done: Callable[[int, int], None] = lambda number, total: None
) -> tuple[list[HeldOut], dict[str, Any]]:
    """Train without each part of train and score it. Return the scores, and what it took."""
    train = replace(dataset.train, features=scale_rows(dataset.train.features, settings.encoder.features))
    parts = list(_parts(settings, dataset, train))
    began, traffic, found = time.perf_counter(), Ledger(), []
    for number, (rest, part) in enumerate(parts):
        training = simulated(settings, rest, knowledge_for(settings, rest, dataset.label_names))
        for round_number in range(1, rounds + 1):
            training.run_round()
            done(number * rounds + round_number, len(parts) * rounds)
        traffic.add(training.ledger)
        held, budget = training.held, settings.memory_budget
        scorer = make_scorer(training.averaged_model(), part.features, held, budget)
        shares = log_shares(rest.labels)
        found.append(held_out_scores(scorer, part.labels, held, shares, settings.seed + number, budget))
    seconds = time.perf_counter() - began
    return found, {"parts": len(parts), "seconds": seconds, "bytes_up": traffic.up, "bytes_down": traffic.down}


def _parts(settings: Experiment, dataset: Dataset, train: Split) -> Iterator[tuple[Split, Split]]:
    """Yield what to train on and what to score: the data's own validation data, or enough fifths of train."""
    if dataset.validation is not None:
        held_out = some_records(dataset.validation, settings.seed)
        yield train, replace(held_out, features=scale_rows(held_out.features, settings.encoder.features))
        return
    labelled = np.flatnonzero(train.labels.getnnz(axis=1))
    if len(labelled) < FEWEST_RECORDS:
        return
    order = labelled[numpy_generator(settings.seed, "calibration parts").permutation(len(labelled))]
    size = round(HELD_OUT * len(labelled))
    count = 1 if is_large(settings, dataset) else min(MOST_PARTS, -(-ENOUGH // size))
    for number in range(count):
        part = np.sort(order[number * size : (number + 1) * size])
        rest = np.setdiff1d(np.arange(len(train)), part)
        yield train.rows(rest), some_records(train.rows(part), settings.seed)


def summary(calibration: Calibration | None) -> dict[str, Any]:
    """Return what result.json says about a calibration."""
    if calibration is None:
        return {"left_out": "the held-out records have too few labels"}
    return {"records": calibration.records, "labels_with_own_threshold": len(calibration.counts.labels)}
