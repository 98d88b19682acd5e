"""Membership inference: can someone who has a trained model tell whether a record was in its training data?

Each model is trained on a random half of the records. The attacker gets it, the records and their labels, and gives
each record a score. Two attacks: the scores of the record's own labels (a threshold on the loss), and the likelihood
ratio of Carlini et al. (2022), which compares them with those of shadow models, half of them trained with the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.audit.statistics import Power, power_of
from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment, for_labels
from fedalc.core.progress_events import watched
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import DataError, FedalcError
from fedalc.methods import METHODS
from fedalc.models.encoders import scale_rows
from fedalc.models.scoring import AT_ONCE, Scorer
from fedalc.models.trained import TrainedModel
from fedalc.training.federated import knowledge_for, simulated

SHADOWS = 8
MOST_RECORDS = 4000
LARGEST_AXES = 4096  # labels up to which the one-round model has an axis for each
FEWEST_RECORDS = 20
EPSILONS = (4, 1)  # of private models


@dataclass(frozen=True)
class Trained:
    """Settings to train with, and how the table names them."""

    name: str
    settings: Experiment

    @property
    def rounds(self) -> int:
        return 1 if METHODS[self.settings.method].one_round else self.settings.rounds


@dataclass(frozen=True)
class Attacked:
    """A row of the table: a model, and the power of both attacks on it. `ratio`: None without shadow models."""

    name: str
    threshold: Power
    ratio: Power | None


@dataclass(frozen=True)
class Membership:
    rows: tuple[Attacked, ...]
    records: int
    of_records: int
    shadows: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def usual_settings(labels: int, seed: int = 0) -> list[Trained]:
    """Return the settings that the audit trains with unless told otherwise."""
    dim = {"encoder": {"dim": labels}} if labels <= LARGEST_AXES else {}
    one_round = {"method": "fedalc-oneshot", "seed": seed, **dim}
    private = [] if find_spec("dp_accounting") is None else [_private(one_round, epsilon) for epsilon in EPSILONS]
    return [
        Trained("fedalc-oneshot", experiment(one_round)),
        Trained("… penalty 10", experiment(one_round, overrides=["server.ridge=10"])),
        *private,
        Trained("fedalc, 30 rounds", experiment({"method": "fedalc", "seed": seed, "rounds": 30})),
    ]


def _private(one_round: dict[str, Any], epsilon: float) -> Trained:
    """Its noise is drawn anew for each model: the same noise in all of them would cancel."""
    noise = ["privacy.mechanism=sums", f"privacy.epsilon={epsilon}"]
    return Trained(f"… private, ε = {epsilon:g}", experiment(one_round, overrides=noise))


def infer_membership(
    split: Split,
    trained: Sequence[Trained] | None = None,
    *,
    shadows: int = SHADOWS,
    most: int = MOST_RECORDS,
    seed: int = 0,
) -> Membership:
    """Train a model with each of the settings on half of the records, and attack it. `shadows`: an even number."""
    if shadows < 2 or shadows % 2:
        raise FedalcError(f"shadow models come in pairs, which train on the two halves of the records: not {shadows}")
    usable = np.flatnonzero((np.diff(split.labels.indptr) > 0) & (np.diff(split.features.indptr) > 0))
    if len(usable) < FEWEST_RECORDS:
        raise DataError(f"{len(usable)} records with labels and features: too few to attack membership")
    random = numpy_generator(seed, "audit membership")
    pool = split.rows(np.sort(random.permutation(usable)[:most]))
    trained = usual_settings(split.labels.shape[1], seed) if trained is None else trained
    halves = _halves(len(pool), shadows, random)
    steps = [(each, half) for each in trained for half in halves]
    found = [_own_scores(each, pool, half) for each, half in watched("models to attack", steps, len(steps))]
    scores = np.array(found).reshape(len(trained), len(halves), len(pool))
    rows = [_attacked(each.name, of_models, halves) for each, of_models in zip(trained, scores, strict=True)]
    return Membership(tuple(rows), len(pool), len(usable), shadows)


def attack_model(name: str, model: TrainedModel, data: Dataset) -> Attacked:
    """Attack a finished model with the threshold: its training records against the test records. What else differs
    between the two counts as membership too."""
    if tuple(model.label_names) != tuple(data.label_names):
        raise DataError(f"the model has other labels than {data.name}: give the dataset that it was trained on")
    if not len(data.test):
        raise DataError(f"{data.name} has no test records to compare the training records with")
    splits = (data.train.in_one_place, data.test)
    labelled = [split.rows(np.flatnonzero(np.diff(split.labels.indptr) > 0)) for split in splits]
    members, others = (_mean_own(model.scorer(split.features), split.labels) for split in labelled)
    return Attacked(name, power_of(members, others), None)


def _halves(records: int, shadows: int, random: np.random.Generator) -> np.ndarray:
    """Return which records each model is trained on: first that under attack, then pairs of shadow models."""
    drawn = [np.isin(np.arange(records), random.permutation(records)[: records // 2]) for _ in range(1 + shadows // 2)]
    return np.array([drawn[0], *(side for half in drawn[1:] for side in (half, ~half))])


def _own_scores(trained: Trained, pool: Split, members: np.ndarray) -> np.ndarray:
    """Train on the members. Return for every record of the pool the mean score of its own labels."""
    settings = for_labels(trained.settings, pool.labels.shape[1])
    scaled = replace(pool, features=scale_rows(pool.features, settings.encoder.features))
    part = scaled.rows(np.flatnonzero(members))
    training = simulated(settings, part, knowledge_for(settings, part))
    for _ in range(trained.rounds):
        training.run_round()
    return _mean_own(Scorer(training.averaged_model(), scaled.features, training.held), pool.labels)


def _mean_own(scorer: Scorer, labels: csr_matrix) -> np.ndarray:
    """Return the mean score of each record's own labels; of labels that the model has."""
    means = []
    for start in range(0, labels.shape[0], AT_ONCE):
        rows = slice(start, min(start + AT_ONCE, labels.shape[0]))
        scores, own = scorer.of_instances(rows).double().cpu().numpy(), labels[rows].toarray() > 0
        known = own & np.isfinite(scores)
        means.append(np.where(known, scores, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))
    return np.concatenate(means)


def _attacked(name: str, scores: np.ndarray, halves: np.ndarray) -> Attacked:
    """`scores`, `halves`: models × records, the model under attack first."""
    member, likelihood = halves[0], likelihood_ratio(scores[0], scores[1:], halves[1:])
    powers = [power_of(each[member], each[~member]) for each in (scores[0], likelihood)]
    return Attacked(name, *powers)


def likelihood_ratio(score: np.ndarray, shadows: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return log N(score; with the record) - log N(score; without it), for every record. Means are the record's own,
    over the shadow models that were trained with it and without it. With few of these, variances are those of all
    records together."""
    means, deviations = [], []
    for took_part in (members, ~members):
        count = np.maximum(took_part.sum(axis=0), 1)
        mean = np.where(took_part, shadows, 0).sum(axis=0) / count
        spare = np.maximum(took_part.sum(axis=0) - 1, 0).sum()
        squares = (np.where(took_part, shadows - mean, 0) ** 2).sum()
        means.append(mean)
        deviations.append(max(float(np.sqrt(squares / max(spare, 1))), 1e-12))
    (with_it, without), (spread_with, spread_without) = means, deviations
    return np.asarray(
        ((score - without) / spread_without) ** 2 / 2
        - ((score - with_it) / spread_with) ** 2 / 2
        + np.log(spread_without / spread_with)
    )
