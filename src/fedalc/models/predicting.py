"""What every trained model, encoder or oracle, can do: rank labels, give probabilities, and decide on label sets.

This module does not import torch, which takes seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core.arguments import as_count, check_scores
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.data.images.images import Fit
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.text.base import TextFeatures
from fedalc.errors import ConfigError, FedalcError, either
from fedalc.models.calibration import Calibration, sigmoid
from fedalc.models.thresholds import Rule
from fedalc.models.verification import TrialCounts, Verdicts, claimed_labels
from fedalc.models.verification import as_rule as as_verification_rule

if TYPE_CHECKING:
    from torch import Tensor

DENSE_LIMIT = 10**8  # instances × labels that `predict_proba` returns at once: 800 MB
BYTES_PER_SCORE = 48  # of a block: scores, in double precision too, log-odds and what they are computed from


class Scores(Protocol):
    """Scores of some instances for all labels, as tensors or arrays; -inf for labels that are never given."""

    def of_instances(self, rows: slice) -> Any: ...

    def of_labels(self, labels: slice) -> Any: ...

    def top(self, k: int) -> tuple[Any, Any]: ...


@dataclass(frozen=True, eq=False)
class LabelSets:
    """The labels that instances get. Instance i has labels[starts[i] : starts[i + 1]], the most probable first."""

    starts: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    probabilities: np.ndarray
    best: np.ndarray
    """The largest probability of each instance; NaN where it was not needed."""
    abstained: np.ndarray
    """Instances whose best probability is too small, so that they get no label."""

    def matrix(self, label_count: int) -> csr_matrix:
        """Return instances × labels, with ones."""
        shape = (len(self.starts) - 1, label_count)
        sets = csr_matrix((np.ones(len(self.labels), np.float32), self.labels, self.starts), shape=shape)
        sets.sort_indices()
        return sets


class Predictor(ABC):
    """A trained model that scores all labels."""

    label_names: tuple[str, ...]
    held: np.ndarray  # the labels that it can give: those that had a client
    text: TextFeatures | None  # what turns raw texts into features
    calibration: Calibration | None
    pictures: PictureFeatures | None = None  # what turns pictures into features

    @property
    @abstractmethod
    def feature_count(self) -> int: ...

    @property
    def picture_size(self) -> int | None:
        """Width and height of its input pictures in pixels, or None if it takes rows of features."""
        return None

    @property
    def picture_fit(self) -> Fit:
        """How its input pictures become squares."""
        return "crop" if self.pictures is None else self.pictures.views.fit

    @abstractmethod
    def scorer(self, features: Any) -> Scores:
        """Check features, scale them as in training, and return what scores them."""

    def predict(self, features: Any, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of each instance, best first, and their scores; fewer if fewer labels had a client.

        `features`: instances × features, as a sparse matrix, array, list of rows or data frame; pictures as `Images`;
        a list of texts, if the model was trained on raw texts. Values that are not finite are refused. Scores rank
        labels and are not probabilities (see `predict_proba`): a cosine in [-1, 1] where encoder.output is "unit" (the
        sum of one per sub-model for fedmlh), and any number where it is "raw" (as in fedalc-exact) and for oracles.
        """
        k = as_count(k, "k")
        labels, scores = map(_array, self.scorer(features).top(k))
        check_scores(scores)
        return labels, scores

    def scores(self, features: Any) -> np.ndarray:
        """Return the scores of all labels, instances × labels; -inf for a label without a client."""
        scores = _array(self.scorer(features).of_labels(slice(0, len(self.label_names))))
        check_scores(scores)
        return scores

    def predict_proba(self, features: Any, k: int | None = None) -> Any:
        """Return probabilities, instances × labels: how likely an instance has a label. 0 for labels without a client.

        With `k`, which many labels need, return the k best labels as `predict` does, and their probabilities. They are
        calibrated on held-out records (docs/predictions.md).
        """
        calibration = self.calibrated()
        if k is not None:
            labels, scores = self.predict(features, k)
            return labels, calibration.probabilities(scores, labels)
        scorer = self.scorer(features)
        count, label_count = features_count(features), len(self.label_names)
        if count * label_count > DENSE_LIMIT:
            raise ConfigError(f"{count} × {label_count} probabilities are too many at once: give k", "k")
        probabilities = np.empty((count, label_count))
        for rows in blocks(count, BYTES_PER_SCORE * label_count):
            probabilities[rows] = calibration.probabilities(_checked(scorer.of_instances(rows)))
        return probabilities

    def predict_sets(
        self, features: Any, threshold: str | float | Rule = "f1", abstain_below: float | None = None
    ) -> csr_matrix:
        """Return which labels each instance has: instances × labels, with ones.

        `threshold`: "f1" (each label's threshold is the best for its F1 on held-out records), "precision=0.9" (the
        smallest that reaches this precision there), or one probability for all labels, such as 0.5. `abstain_below`:
        an instance gets no label if its largest probability is smaller.
        """
        calibration, count = self.calibrated(), features_count(features)
        sets = decide(calibration, self.scorer(features), count, threshold, abstain_below)
        return sets.matrix(len(self.label_names))

    def verify(
        self, features: Any, claim: str | Sequence[str], *, far: float | None = None, genuine: float | None = None
    ) -> Verdicts:
        """Accept or refuse claimed identities: `claim` is the name of a label, for all records or one for each.

        `far`: the share of impostors' claims to accept (default 0.001). `genuine`: instead, the share of genuine claims
        to refuse. Thresholds come from held-out scores (docs/verification.md), so the model needs a run with
        task = "verification".
        """
        rule, trials = as_verification_rule(far, genuine), self.trials()
        labels = claimed_labels(claim, features_count(features), self.label_names, self.held)
        if not len(labels):
            return Verdicts((), np.zeros(0), np.zeros(0), rule)
        refuse_empty(features, "every such record scores alike, whose ever it is")
        scorer, scores = self.scorer(features), np.empty(len(labels))
        for rows in blocks(len(labels), BYTES_PER_SCORE * len(self.label_names)):
            scores[rows] = _checked(scorer.of_instances(rows))[np.arange(rows.stop - rows.start), labels[rows]]
        thresholds = trials.thresholds(rule, len(self.label_names))[labels]
        names = tuple(self.label_names[label] for label in labels)
        return Verdicts(names, scores, thresholds, rule, trials.note(rule, labels))

    def trials(self) -> TrialCounts:
        """Return what thresholds of verification follow from, or refuse."""
        if self.calibration is None or self.calibration.trials is None:
            raise FedalcError(
                "this model has no thresholds for verification: train it with "
                + either("--task verification", "task='verification'")
                + ", and records that "
                "are held out (selection.calibrate, docs/verification.md)"
            )
        return self.calibration.trials

    def calibrated(self) -> Calibration:
        """Return the calibration, or refuse."""
        if self.calibration is None:
            raise FedalcError(
                "this model has no probabilities: nothing was held out to fit them on. Fit them on labelled records "
                "that it was not trained on: fedalc calibrate RUN FILE, or run.calibrate(data)"
            )
        return self.calibration


def refuse_empty(features: Any, why: str, name: str = "records") -> None:
    """Refuse rows of features without any number other than 0."""
    if not hasattr(features, "sum"):
        return
    empty = np.flatnonzero(np.asarray(abs(features).sum(axis=1)).ravel() == 0)
    if len(empty):
        raise ConfigError(f"{len(empty)} have no number other than 0, the first is record {empty[0]}: {why}", name)


def features_count(features: Any) -> int:
    """Return the number of instances."""
    return int(features.shape[0]) if hasattr(features, "shape") else len(features)


def _array(numbers: Tensor | np.ndarray) -> np.ndarray:
    return numbers if isinstance(numbers, np.ndarray) else numbers.cpu().numpy()


def _checked(scores: Tensor | np.ndarray) -> np.ndarray:
    numbers = _array(scores).astype(np.float64)
    check_scores(numbers)
    return numbers


def decide(
    calibration: Calibration,
    scorer: Scores,
    count: int,
    threshold: str | float | Rule = "f1",
    abstain_below: float | None = None,
    budget: int = DEFAULT_BUDGET,
    with_best: bool = False,
) -> LabelSets:
    """Return the labels of `count` instances, as `predict_sets` does. `best` is there if needed, or `with_best`."""
    if abstain_below is not None and not 0 <= abstain_below <= 1:
        raise ConfigError(f"expected a probability, found {abstain_below!r:.60}", "abstain_below")
    least, parts = calibration.score_thresholds(threshold), []
    for rows in blocks(count, BYTES_PER_SCORE * calibration.label_count, budget):
        scores = _checked(scorer.of_instances(rows))
        best = np.full(len(scores), np.nan)
        if with_best or abstain_below is not None:
            best = sigmoid(calibration.log_odds(scores).max(axis=1))
        parts.append(_decided(calibration, scores, least, best, abstain_below))
    return _joined(parts)


def _decided(
    calibration: Calibration, scores: np.ndarray, least: np.ndarray, best: np.ndarray, abstain_below: float | None
) -> LabelSets:
    abstained = np.zeros(len(best), bool) if abstain_below is None else best < abstain_below
    row, label = np.nonzero((scores >= least) & ~abstained[:, None] & np.isfinite(scores))
    given = scores[row, label]
    log_odds = calibration.log_odds(given, label)
    order = np.lexsort((label, -log_odds, row))
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(best)))])
    return LabelSets(starts, label[order], given[order], sigmoid(log_odds[order]), best, abstained)


def _joined(parts: Sequence[LabelSets]) -> LabelSets:
    sizes = [np.diff(part.starts) for part in parts]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]) if parts else np.zeros(1, np.int64)
    names = ("labels", "scores", "probabilities", "best", "abstained")
    kinds = (np.int64, np.float64, np.float64, np.float64, bool)
    joined = [
        np.concatenate([getattr(part, name) for part in parts]) if parts else np.zeros(0, kind)
        for name, kind in zip(names, kinds, strict=True)
    ]
    return LabelSets(starts.astype(np.int64), *joined)
