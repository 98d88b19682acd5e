"""Verification of identities: error rates of accepting or refusing a claimed label.

A trial is a record and a claimed label with a client (an enrolled person); the claim is accepted if the score is at
least the threshold. A trial is *genuine* if the record has that label. The others are impostors' trials: of records of
*other* enrolled persons, or of *strangers*, records without any enrolled label.

    FAR(t)   share of the impostors' trials with score >= t   (false accepts)
    FRR(t)   share of the genuine trials with score < t       (false rejects); TPR = 1 - FRR

Equal scores are accepted or refused together. Thresholds are the scores that occur, and one above all of them: the
vertices of the ROC curve, as scikit-learn's `roc_curve` with drop_intermediate=False has them.

EER is where FAR = FRR on the straight lines between neighbouring vertices. TPR at a FAR f is the largest TPR of a
vertex with FAR <= f: no line is drawn, as no threshold gives a point between two vertices. With n impostors' trials no
FAR between 0 and 1/n can be seen, so TPR at a FAR below 1/n is not measured, rather than given as that of FAR 0.

This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.evaluation.metrics import Metric, Ranked

FARS = (0.01, 0.001, 0.0001)
TRIALS_LIMIT = 5 * 10**7  # records × labels; beyond it the metrics of verification are left out
CURVE_POINTS = 150
Against = Literal["all", "others", "strangers"]
_AGAINST: dict[Against, str] = {
    "all": "others and strangers",
    "others": "other enrolled persons",
    "strangers": "strangers",
}


@dataclass(frozen=True, eq=False)
class Curve:
    """FAR and FRR at all thresholds, the highest threshold first: FAR rises from 0 to 1, FRR falls from 1 to 0."""

    far: np.ndarray
    frr: np.ndarray
    impostors: int

    @cached_property
    def eer(self) -> float:
        """The equal error rate, from 0 to 1."""
        end = int(np.argmax(self.far >= self.frr))  # the first vertex at or beyond the diagonal; never the first of all
        before, after = self.frr[end - 1] - self.far[end - 1], self.far[end] - self.frr[end]
        part = before / (before + after)
        return float(self.far[end - 1] + part * (self.far[end] - self.far[end - 1]))

    def tpr(self, far: float) -> float | None:
        """Return the largest TPR with at most this FAR; None if there are too few trials to see such a FAR."""
        if far * self.impostors < 1 - 1e-9:
            return None
        return float(1 - self.frr[np.searchsorted(self.far, far * (1 + 1e-12), side="right") - 1])

    def points(self, count: int = CURVE_POINTS) -> list[list[float]]:
        """Return about `count` of the vertices as [FAR, FRR], for plots: close to each other where FAR is small."""
        lowest = 1 / max(self.impostors, 1)
        wanted = np.concatenate([[0.0], np.geomspace(lowest, 1, count)])
        index = np.unique(np.searchsorted(self.far, wanted * (1 + 1e-9), side="right") - 1)
        return [[float(self.far[at]), float(self.frr[at])] for at in index]


def error_curve(genuine: np.ndarray, impostors: np.ndarray) -> Curve:
    """Return the error rates of genuine and impostors' scores.

    >>> round(error_curve(np.array([0.9, 0.8, 0.4]), np.array([0.5, 0.3, 0.2])).eer, 4)
    0.3333
    """
    thresholds = np.unique(np.concatenate([genuine, impostors]))[::-1]
    accepted, accepted_impostors = (
        len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left") for scores in (genuine, impostors)
    )
    far = np.concatenate([[0.0], accepted_impostors / len(impostors)])
    return Curve(far, np.concatenate([[1.0], 1 - accepted / len(genuine)]), len(impostors))


@dataclass(frozen=True, eq=False)
class Trials:
    """The scores of all trials."""

    genuine: np.ndarray
    others: np.ndarray
    strangers: np.ndarray

    @cached_property
    def curves(self) -> dict[Against, Curve]:
        """The curves for which there are trials. Against all: others' and strangers' trials together, each counts 1."""
        impostors: dict[Against, np.ndarray] = {"all": np.concatenate([self.others, self.strangers])}
        impostors |= {"others": self.others, "strangers": self.strangers}
        return {kind: error_curve(self.genuine, found) for kind, found in impostors.items() if len(found)}

    def summary(self) -> dict[str, Any]:
        """Return what result.json says: how many trials, the curves, and which figures could not be measured."""
        missing = [
            name_of(f"TPR@FAR{far:g}", kind)
            for kind, curve in self.curves.items()
            for far in FARS
            if curve.tpr(far) is None
        ]
        trials = {"genuine": len(self.genuine), "others": len(self.others), "strangers": len(self.strangers)}
        curves = {kind: curve.points() for kind, curve in self.curves.items()}
        return {"trials": trials, "not_measured": missing, "curves": curves}


def make_trials(scores: Any, truth: csr_matrix, held: np.ndarray, strangers: Any = None) -> Trials | None:
    """Return the trials of records, from their scores of all labels; None if there is no genuine one or no impostor.

    `truth`: records × labels. `held`: the labels that have a client. A record without any of them is a stranger's.
    `strangers`: the scores of more strangers' records.
    """
    labels = np.flatnonzero(held)
    claimed, true = np.asarray(scores)[:, labels], truth[:, labels].toarray() > 0
    enrolled = true.any(axis=1)
    unknown = [claimed[~enrolled].ravel()]
    if strangers is not None:
        unknown.append(np.asarray(strangers)[:, labels].ravel())
    trials = Trials(claimed[true], claimed[enrolled][~true[enrolled]], np.concatenate(unknown))
    return trials if len(trials.genuine) and len(trials.others) + len(trials.strangers) else None


def name_of(metric: str, against: Against) -> str:
    return metric if against == "all" else f"{metric}-{against}"


def _eer(ranked: Ranked, against: Against) -> float:
    curve = ranked.trials.curves.get(against)
    return math.nan if curve is None else 100 * curve.eer


def _tpr(ranked: Ranked, against: Against, far: float) -> float:
    curve = ranked.trials.curves.get(against)
    tpr = None if curve is None else curve.tpr(far)
    return math.nan if tpr is None else 100 * tpr


def _metrics_of_eer() -> Iterator[Metric]:
    for kind, whom in _AGAINST.items():
        yield Metric(f"equal error rate against {whom}", partial(_eer, against=kind), "trials", larger_is_better=False)


def _metrics_of_tpr(far: float) -> Iterator[Metric]:
    for kind, whom in _AGAINST.items():
        help_ = f"genuine claims accepted if {100 * far:g} % of the claims of {whom} are"
        yield Metric(help_, partial(_tpr, against=kind, far=far), "trials")


EER, EER_OTHERS, EER_STRANGERS = _metrics_of_eer()
TPR_1, TPR_1_OTHERS, TPR_1_STRANGERS = _metrics_of_tpr(FARS[0])
TPR_01, TPR_01_OTHERS, TPR_01_STRANGERS = _metrics_of_tpr(FARS[1])
TPR_001, TPR_001_OTHERS, TPR_001_STRANGERS = _metrics_of_tpr(FARS[2])
