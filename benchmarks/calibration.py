"""How good probabilities and thresholds are on test sets, beside simpler ways: docs/results/calibration.md.

Run: python benchmarks/calibration.py [DATASET …]     (default: demo bibtex eurlex15k; needs FEDALC_DATA)
Trains each dataset as `fedalc train --no-tune` does, fits on records that were held out of train, and measures on test.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

import numpy as np

import fedalc
from fedalc.evaluation.calibrate import HeldOut, fit_calibration, log_shares
from fedalc.evaluation.probability_metrics import probability_metrics
from fedalc.models.calibration import Calibration, sigmoid
from fedalc.models.predicting import decide
from fedalc.training.calibration import score_parts

FLAT = 1e-9  # a slope: it has to be positive


def constant(log_odds: np.ndarray, like: Calibration) -> Calibration:
    """The same probability for all records."""
    return replace(like, knots=np.zeros(1), slopes=np.full(2, FLAT), offsets=log_odds.astype(np.float32))


def one_sigmoid(parts: list[HeldOut], like: Calibration) -> Calibration:
    """Platt's sigmoid for all labels, by Newton steps on the same pairs."""
    scores, truth, weights = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("scores", "truth", "weights")
    )
    design, x = np.stack([scores, np.ones_like(scores)], axis=1), np.array([1.0, -3.0])
    for _ in range(50):
        p = sigmoid(design @ x)
        curvature = (design * (weights * p * (1 - p))[:, None]).T @ design
        x -= np.clip(np.linalg.solve(curvature, design.T @ (weights * (p - truth))), -3, 3)
    return replace(
        like, knots=np.zeros(1), slopes=np.full(2, x[0]), offsets=np.full(like.label_count, x[1], np.float32)
    )


def score_as_probability(like: Calibration) -> Calibration:
    """Scores clipped to [0.001, 0.999], as a curve in log-odds with a knot for each thousandth."""
    knots = np.linspace(0.001, 0.999, 999)
    log_odds = np.log(knots / (1 - knots))
    slopes = np.concatenate([[FLAT], np.diff(log_odds) / np.diff(knots), [FLAT]])
    return replace(like, knots=knots, slopes=slopes, offsets=np.full(like.label_count, log_odds[0], np.float32))


def measure(name: str) -> None:
    data = fedalc.load_dataset(name)
    run = fedalc.train(data, tune=False)
    ours = run.model.calibration
    assert ours is not None
    parts, facts = score_parts(run.settings, data, run.result["rounds"])
    shares = log_shares(data.train.labels)
    again = fit_calibration(parts, data.label_count, shares)
    assert again is not None and np.array_equal(again.offsets, ours.offsets)
    frequency = np.exp(shares)
    ways = {
        "label frequency": constant(np.log(frequency / (1 - frequency)), ours),
        "score, clipped to [0, 1]": score_as_probability(ours),
        "one sigmoid": one_sigmoid(parts, ours),
        "ours": ours,
    }
    scorer, truth = run.model.scorer(data.test.features), data.test.labels
    size = f"{len(data.test):,} test records, {data.label_count:,} labels"
    print(f"\n### {name}\n{size}; fitted on {ours.records:,} held-out records in {facts['parts']} part(s) of train.\n")
    print("| probabilities | log loss ·10³ | Brier ·10³ | calibration error ·10³ |\n|---|---|---|---|")
    for way, calibration in ways.items():
        found = probability_metrics(calibration, scorer, truth)
        figures = (1000 * found[figure] for figure in ("log_loss", "brier", "calibration_error"))
        print(f"| {way} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |")
    print("\n| thresholds | micro-P | micro-R | micro-F1 | macro-F1 | labels per record |\n|---|---|---|---|---|---|")
    for rule in ("0.5", "f1", "precision=0.7", "precision=0.9"):
        sets = decide(ours, scorer, len(data.test), rule).matrix(data.label_count)
        right = sets.multiply(truth).tocsc().getnnz(axis=0)
        given, true = sets.getnnz(axis=0), truth.getnnz(axis=0)
        f1 = 2 * right / np.maximum(given + true, 1)
        micro = (right.sum() / given.sum(), right.sum() / true.sum(), 2 * right.sum() / (given.sum() + true.sum()))
        figures = " | ".join(f"{100 * value:.1f}" for value in (*micro, f1[true > 0].mean()))
        print(f"| {rule} | {figures} | {given.sum() / len(data.test):.2f} |")
    print("\n| abstain below | records with an answer, % | P@1 of these |\n|---|---|---|")
    for row in probability_metrics(ours, scorer, truth)["abstention"][::3]:
        print(f"| {row['abstain_below']} | {row['coverage']:.1f} | {row['P@1']:.1f} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for dataset in sys.argv[1:] or ("demo", "bibtex", "eurlex15k"):
        measure(dataset)
