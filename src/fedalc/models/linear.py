"""A model with a linear encoder, in numpy: predicts without torch, whose import takes longer than a small prediction.

Its scores are those of `TrainedModel` up to rounding. Anything unusual is left to `TrainedModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import EncoderSettings
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.progress_events import watched
from fedalc.core.saved_parts import DAMAGE
from fedalc.core.tensor_folder import load_arrays, load_facts
from fedalc.data.images.images import Images
from fedalc.data.matrices import feature_matrix
from fedalc.data.text.base import TextFeatures
from fedalc.errors import DataError
from fedalc.models.calibration import PREFIX, Calibration
from fedalc.models.predicting import Predictor
from fedalc.models.row_scaling import scale_rows
from fedalc.models.text_parts import PREFIX as TEXT_PREFIX
from fedalc.models.text_parts import from_texts, text_of

OWN = {"encoder.embedding", "W", "held"}  # tensors


@dataclass(frozen=True, eq=False, repr=False)
class LinearModel(Predictor):
    """θ, the class embeddings and what else `TrainedModel` has."""

    theta: np.ndarray
    W: np.ndarray
    encoder: EncoderSettings
    label_names: tuple[str, ...]
    held: np.ndarray
    text: TextFeatures | None
    calibration: Calibration | None

    @property
    def feature_count(self) -> int:
        return len(self.theta) - (self.encoder.constant > 0)

    def scorer(self, features: Any) -> LinearScorer:
        if isinstance(features, Images):
            raise DataError("the model was trained on features, but these are pictures")
        features = feature_matrix(from_texts(features, self.text))
        if features.shape[1] != self.feature_count:
            raise DataError(
                f"the model was trained on {self.feature_count} features, but these have {features.shape[1]}"
            )
        return LinearScorer(self, scale_rows(features, self.encoder.features))


class LinearScorer:
    """Scores of instances: W g(x), -inf for labels without a client."""

    def __init__(self, model: LinearModel, features: csr_matrix) -> None:
        self._model, self._features = model, features.astype(model.theta.dtype)
        W = model.W
        ones = (W != 0).sum(1) == 1
        self._axes = W.argmax(1) if ones.all() and (W.max(1) == 1).all() else None  # each score is a coordinate

    def of_instances(self, rows: slice) -> np.ndarray:
        model = self._model
        g = self._features[rows] @ model.theta[: model.feature_count]
        if model.encoder.constant > 0:
            g = g + model.theta.dtype.type(model.encoder.constant) * model.theta[-1]
        if model.encoder.output == "unit":
            length = np.sqrt((g * g).sum(1, keepdims=True))
            g = g * np.divide(1, length, out=np.zeros_like(length), where=length > 1e-12)
        scores = g @ model.W.T if self._axes is None else g[:, self._axes]
        scores[:, ~model.held] = -np.inf
        return np.asarray(scores)

    def of_labels(self, labels: slice) -> np.ndarray:
        return self.of_instances(slice(0, self._features.shape[0]))[:, labels]

    def top(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        count, label_count = self._features.shape[0], len(self._model.label_names)
        k = min(k, int(self._model.held.sum()))
        index, value = np.zeros((count, k), np.int64), np.zeros((count, k))
        parts = blocks(count, 24 * (label_count + self._model.theta.shape[1]), DEFAULT_BUDGET)
        for rows in watched("instances ranked", parts, count, lambda part: part.stop - part.start):
            scores = self.of_instances(rows)
            index[rows] = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # of equal scores, the first label
            value[rows] = np.take_along_axis(scores, index[rows], axis=1)
        return index, value


def load_linear(folder: Path) -> LinearModel | None:
    """Load a model folder if it is a plain linear model; None if it is another or damaged: `TrainedModel` says how."""
    facts = load_facts(folder)
    encoder = facts.get("encoder")
    if facts.get("kind", "encoder") != "encoder" or facts.get("format") != 1 or facts.get("copies", 1) != 1:
        return None
    if not isinstance(encoder, Mapping) or encoder.get("name") != "linear":
        return None
    if "pictures" in facts:  # their network needs torch
        return None
    if facts.get("secret_rows", False) is not False:  # `TrainedModel` refuses to score with other rows than trained
        return None
    try:
        return _linear(*load_arrays(folder))
    except DAMAGE:
        return None


def _linear(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> LinearModel | None:
    settings = EncoderSettings.model_validate(facts["encoder"])
    names, features = facts["labels"], facts["features"]
    theta, W, held = arrays["encoder.embedding"], arrays["W"], arrays["held"]
    others = {name for name in arrays if not name.startswith((PREFIX, TEXT_PREFIX))}
    shapes = (
        others == OWN,
        isinstance(names, list) and all(isinstance(name, str) for name in names),
        theta.shape == (features + (settings.constant > 0), settings.dim),
        W.shape == (len(names), settings.dim) and W.dtype == theta.dtype,
        theta.dtype in (np.float32, np.float64),
        held.shape == (len(names),) and held.dtype == bool,
    )
    if not all(shapes) or not (np.isfinite(theta).all() and np.isfinite(W).all()):
        return None
    text, calibration = text_of(arrays, facts, features), Calibration.from_parts(arrays, len(names))
    return LinearModel(theta, W, settings, tuple(names), held, text, calibration)
