"""Chooses the loss, penalty, label power, features and D of the exact methods on held-out records (docs/tuning.md).

The search is small and stated. For each kind of features it solves the square loss for a few penalties: they all follow
from the same sums of the clients, and so do all label powers, as a power only scales a label's scores. Then it tries
the squared hinge and the logistic loss, each by Newton steps, and drops one that is clearly behind. A penalty is halved
or doubled as long as that helps.

A setting is judged by `selection.metric` (P@k or nDCG@k) on held-out records. Positive-only parties can count it exactly:
each ranks all labels for its own held-out records and counts the hits of its own label.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.core.interrupt import Interrupt
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Dataset, Split
from fedalc.engines.base import Sums
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.errors import ConfigError, Interrupted
from fedalc.evaluation.evaluate import evaluate
from fedalc.evaluation.metrics import find_metric
from fedalc.models.class_embeddings import frequency_rows
from fedalc.models.encoders import scale_rows
from fedalc.models.model import Model
from fedalc.training.callbacks import Callback
from fedalc.training.federated import FederatedTraining, knowledge_for, simulated

POWERS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
FIRST_PENALTY = {"square": 1.0, "squared-hinge": 0.5, "logistic": 0.05}
FACTOR = 2.0  # between neighbouring penalties
MOST_STEPS = 4  # penalties tried beyond the first, in each direction
BEHIND = 1.5  # a loss whose first setting is this many points behind is dropped
RECORDS = 3000  # held-out records that one choice should rest on; small data is split several times to reach it
NEWTON_ROUNDS = (10, 15, 20, 25)  # rounds after which a Newton training is judged
RANDOM_FEATURES_UP_TO = 2000  # features: sparse text with more of them gains little from random features
LARGEST = 2**28  # numbers in θ (1 GiB in float32) up to which every label gets an axis of its own


@dataclass(frozen=True)
class Trial:
    """One setting that was tried, with its cost. `changes`: the settings that differ from the run's."""

    changes: dict[str, Any]
    value: float  # of `selection.metric` on held-out records, in percent
    metrics: dict[str, float]
    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int


def with_axes(settings: Experiment, data: Dataset) -> Experiment:
    """Return the settings with an axis for each label (D = C), if θ then has at most `LARGEST` numbers."""
    fits = data.feature_count * data.label_count <= LARGEST and data.label_count**2 <= LARGEST
    encoder = settings.encoder.model_copy(update={"dim": data.label_count} if fits else {})
    return settings.model_copy(update={"encoder": encoder})


class Search:
    """Tries settings on held-out records. `known`: trials of an interrupted search, which are not run again."""

    def __init__(
        self,
        settings: Experiment,
        data: Dataset,
        callbacks: Sequence[Callback],
        interrupt: Interrupt,
        known: Sequence[Trial] = (),
        record: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.settings = settings
        self.data = data
        self.callbacks = callbacks
        self.interrupt = interrupt
        self.metric = settings.selection.metric
        self.trials: list[Trial] = []
        self._known = {repr(trial.changes): trial for trial in known}
        self._record = record
        if find_metric(self.metric).needs == "scores":
            raise ConfigError("positive-only parties cannot compute it; use P@k or nDCG@k", "selection.metric")

    def run(self) -> Experiment:
        """Return the settings to train with on all of train."""
        for features in self._kinds_of_features():
            self._climb("square", features)
        for loss in ("squared-hinge", "logistic"):
            self._climb(loss, {"name": "linear", "constant": 1.0})
        return self._changed(self.best.changes)

    @property
    def best(self) -> Trial:
        better = find_metric(self.metric).is_better
        best = self.trials[0]
        for trial in self.trials[1:]:
            best = trial if better(trial.value, best.value) else best
        return best

    # --- what is tried ---

    def _kinds_of_features(self) -> Iterator[dict[str, Any]]:
        yield {"name": "linear"}
        if self.data.feature_count <= RANDOM_FEATURES_UP_TO:
            yield {"name": "random-features", "constant": 1.0}

    def _climb(self, loss: str, encoder: dict[str, Any]) -> None:
        """Halve or double the penalty while that helps, from the loss's first one."""
        first = FIRST_PENALTY[loss]
        value = self._try(loss, encoder, first)
        if value < self.best.value - BEHIND:
            return
        for factor in (FACTOR, 1 / FACTOR):
            reached, penalty = value, first
            for _ in range(MOST_STEPS):
                penalty *= factor
                next_value = self._try(loss, encoder, penalty)
                if next_value <= reached:
                    break
                reached = next_value
            if reached > value:
                return  # the other direction leads away from it

    def _try(self, loss: str, encoder: dict[str, Any], penalty: float) -> float:
        """Try a setting, on all splits. Return the best value of it."""
        began = len(self.trials)
        trials = self._square(encoder, penalty) if loss == "square" else self._newton(loss, encoder, penalty)
        for trial in trials:
            self.trials.append(trial)
        return max(trial.value for trial in self.trials[began:])
