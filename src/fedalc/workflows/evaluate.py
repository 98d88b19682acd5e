"""Evaluate the model of a run on labelled records, and calibrate it on others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.data.dataset import Split
from fedalc.errors import DataError
from fedalc.evaluation.calibrate import FEWEST_POSITIVES, fit_calibration, held_out_scores, some_records
from fedalc.evaluation.evaluate import MAP_LIMIT, SETS_LIMIT, measure
from fedalc.evaluation.metrics import f1_scores, set_counts
from fedalc.evaluation.probability_metrics import probability_metrics
from fedalc.evaluation.score_blocks import average_precisions
from fedalc.models.calibration import Calibration
from fedalc.models.predicting import Predictor, Scores, decide
from fedalc.models.thresholds import Rule
from fedalc.runs.folder import only_writer, read_settings
from fedalc.workflows.labelled import Labelled, labelled
from fedalc.workflows.load_model import finished_model

P = TypeVar("P", bound=Predictor)


class _WithUnknown:
    """Scores with a column of -inf for each label that the model does not know."""

    def __init__(self, scorer: Scores, label_count: int) -> None:
        self._scorer, self._label_count = scorer, label_count
        self.of_instances, self.top = scorer.of_instances, scorer.top

    def of_labels(self, labels: slice) -> Tensor:
        known = self._scorer.of_labels(slice(min(labels.start, self._label_count), min(labels.stop, self._label_count)))
        missing = labels.stop - labels.start - known.shape[1]
        return torch.cat([known.cpu(), torch.full((len(known), missing), -torch.inf, dtype=known.dtype)], dim=1)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model makes of labelled records."""

    model: Predictor
    data: Labelled
    budget: int = DEFAULT_BUDGET

    @cached_property
    def _scorer(self) -> Scores:
        scorer = self.model.scorer(self.data.features)
        return _WithUnknown(scorer, len(self.model.label_names)) if self.data.unknown else scorer

    @property
    def _size(self) -> int:
        return int(self.data.truth.shape[0] * self.data.truth.shape[1])

    @property
    def records(self) -> int:
        return len(self.data)

    @property
    def unknown_labels(self) -> tuple[str, ...]:
        """Labels of the records that the model does not have. They count as missed."""
        return tuple(name for name, count in zip(self.data.unknown, self._unknown_counts, strict=True) if count)

    @property
    def _unknown_counts(self) -> np.ndarray:
        return np.asarray(self.data.truth.getnnz(axis=0))[len(self.model.label_names) :]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """All metrics, in percent, as result.json has them for the test set."""
        inverse = self.data.inverse_propensity
        return measure(self._scorer, self.data.truth, inverse, True, self.budget, self.model.calibration)

    @cached_property
    def probabilities(self) -> dict[str, Any] | None:
        """How good the probabilities are (`evaluation/probability_metrics.py`); None without or if that is too much."""
        if self.model.calibration is None or self._size > SETS_LIMIT:
            return None
        return probability_metrics(self.model.calibration, self._scorer, self.data.truth, self.budget)

    def per_label(self, threshold: str | float | Rule = "f1") -> list[dict[str, Any]]:
        """Return figures of each label that occurs or is given: `positives`, average precision `AP`, and with
        thresholds `precision`, `recall`, `F1` (percent, None where undefined) and the `threshold` (probability)."""
        truth, calibration = self.data.truth, self.model.calibration
        true = np.asarray(truth.getnnz(axis=0))
        columns: dict[str, np.ndarray] = {"positives": true}
        if self._size <= MAP_LIMIT:
            columns["AP"] = 100 * average_precisions(self._scorer.of_labels, truth, self.budget)
        given = np.zeros_like(true)
        if calibration is not None:
            sets = decide(calibration, self._scorer, len(self.data), threshold, budget=self.budget)
            right, given, _ = set_counts(sets.matrix(truth.shape[1]), truth)
            with np.errstate(divide="ignore", invalid="ignore"):
                columns |= {"precision": 100 * right / given, "recall": 100 * right / true}
            columns["F1"] = np.where(given + true > 0, 100 * f1_scores(right, given, true), np.nan)
            columns["threshold"] = np.full(len(true), np.inf)
            columns["threshold"][: calibration.label_count] = calibration.thresholds(threshold)
        names = (*self.model.label_names, *self.data.unknown)
        known = len(self.model.label_names)
        return [
            {"label": label if label < known else None, "name": names[label]}
            | {name: _plain(column[label]) for name, column in columns.items()}
            for label in np.flatnonzero((true > 0) | (given > 0)).tolist()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return what `fedalc evaluate --json` writes."""
        unknown = {"labels": len(self.unknown_labels), "of_records": int(self._unknown_counts.sum())}
        return {
            "data": self.data.name,
            "records": self.records,
            "unknown": unknown,
            "metrics": self.metrics,
            "probabilities": self.probabilities,
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.2f}" for name, value in list(self.metrics.items())[:3])
        return f"<fedalc evaluation of {self.records:,} records: {shown}>"


def _plain(value: Any) -> int | float | None:
    """Return a number for JSON; None if it is not finite."""
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if np.isfinite(value) else None


def calibrated_on(model: P, data: Labelled, seed: int = 0) -> P:
    """Return the model with probabilities and thresholds fitted on these records, which it must not have trained on."""
    known = len(model.label_names)
    some = some_records(Split(data.features, data.truth[:, :known]), seed)
    scored = held_out_scores(model.scorer(some.features), some.labels, model.held, seed=seed)
    calibration = fit_calibration([scored], known)
    if calibration is None:
        raise DataError(
            f"{data.name}: has {int(scored.truth.sum())} labels that the model knows, and probabilities need at least "
            f"{FEWEST_POSITIVES}, and records without them"
        )
    return replace(model, calibration=calibration)  # type: ignore[type-var]


def evaluate_folder(
    run: Path,
    data: Any = None,
    data_dir: Path | str | None = None,
    device: str = "cpu",
    columns: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate the model of a run folder, or of a model folder. `columns`: settings of tables that are other than in
    training."""
    model = finished_model(run, device)
    settings = read_settings(run) if (run / "config.toml").exists() else None
    budget = DEFAULT_BUDGET if settings is None else settings.memory_budget
    return Evaluation(model, labelled(model, data, settings, data_dir, columns=columns), budget)


def calibrate_folder(
    run: Path, data: Any, data_dir: Path | str | None = None, columns: Mapping[str, Any] | None = None
) -> Calibration:
    """Fit probabilities and thresholds of the model in a run folder, or a model folder, and save them with it."""
    model = finished_model(run)
    settings = read_settings(run) if (run / "config.toml").exists() else None
    model = calibrated_on(model, labelled(model, data, settings, data_dir, "validation", columns=columns))
    is_run = (run / "model").is_dir()
    with only_writer(run) if is_run else nullcontext():
        model.save(run / "model" if is_run else run)
    return model.calibrated()
