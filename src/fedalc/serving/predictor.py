"""From the records of requests to predictions. One thread uses it; it knows nothing of HTTP."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedalc.data.images.images import Images
from fedalc.data.images.loose_files import joined, pictures_in
from fedalc.data.matrices import feature_matrix
from fedalc.errors import DataError
from fedalc.models.predicting import features_count
from fedalc.models.trained import TrainedModel
from fedalc.oracles import TrainedOracle
from fedalc.serving.schema import KINDS, PredictRequest, SparseRecord
from fedalc.workflows.prediction_files import Answer, Predictions, predictions_for

DEFAULT_TOP = 5
Records: TypeAlias = Any
"""A csr_matrix, Images, or a list of texts."""


class RecordPredictor:
    """A model, and which kinds of records it takes."""

    def __init__(self, model: TrainedModel | TrainedOracle) -> None:
        self.model = model
        self._size = model.picture_size if isinstance(model, TrainedModel) else None
        self._text = model.text if isinstance(model, TrainedModel) else getattr(model, "text", None)
        if self._size is not None:
            self.kinds: tuple[str, ...] = ("pictures",)
        else:
            self.kinds = (*(("texts",) if self._text is not None else ()), "features", "sparse")

    @property
    def takes(self) -> str:
        """What the model takes, in words."""
        if self._size is not None:
            return f"pictures, which are scaled to {self._size} × {self._size}"
        rows = f"{self.model.feature_count:,} features, as full or sparse rows"
        return rows if self._text is None else f"texts, or {rows}"

    def records(self, request: PredictRequest) -> Records:
        """Return the records of a request. Texts and pictures stay as they came: `best` converts them."""
        given = [kind for kind in KINDS if getattr(request, kind) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise DataError(f"give exactly one of {', '.join(self.kinds)}; found {found}")
        if given[0] not in self.kinds:
            raise DataError(f"{given[0]}: this model takes {self.takes}")
        return getattr(self, f"_{given[0]}")(request)

    def answer(self, request: PredictRequest) -> Answer:
        """Return which labels a request asks for."""
        asked = Answer(request.top, request.threshold, request.abstain_below, request.probabilities)
        if asked.needs_probabilities:
            self.model.calibrated()
        return asked

    def predict(self, records: Sequence[Records], answers: Sequence[Answer]) -> list[Predictions]:
        """Return the predictions for each of several requests. Those that ask for the same are predicted together."""
        done: list[Predictions | None] = [None] * len(records)
        alike: dict[Answer, list[int]] = {}
        for number, answer in enumerate(answers):
            alike.setdefault(replace(answer, top=None), []).append(number)
        for answer, numbers in alike.items():
            tops = [answers[number].top or (None if answer.threshold else DEFAULT_TOP) for number in numbers]
            most = None if None in tops else max(top for top in tops if top is not None)
            joint = self._joint([records[number] for number in numbers])
            whole = predictions_for(self.model, joint, replace(answer, top=most), range(features_count(joint)))
            ends = np.cumsum([len_of(records[number]) for number in numbers]).tolist()
            for number, top, start, end in zip(numbers, tops, [0, *ends], ends, strict=False):
                done[number] = _part(whole, slice(start, end), top)
        return [each for each in done if each is not None]

    def warm_up(self) -> None:
        """Predict once, so that the first request does not wait for what is computed on first use."""
        if self._size is not None:
            black = np.zeros((1, self._size, self._size, 3), dtype=np.uint8)
            self.model.predict(Images(black, ["nothing"]), 1)
            return
        self.model.predict(csr_matrix((1, self.model.feature_count), dtype=np.float32), 1)
        if self._text is not None:
            self._text.transform(["nothing"], workers=1)

    def _joint(self, records: Sequence[Records]) -> Any:
        if self._size is not None:
            return joined([each for each in records if isinstance(each, Images)])
        texts = [text for each in records if isinstance(each, list) for text in each]
        rows = None if self._text is None or not texts else self._text.transform(texts, workers=1)
        parts, done = [], 0
        for each in records:
            if isinstance(each, list):
                assert rows is not None
                parts.append(rows[done : done + len(each)])
                done += len(each)
            else:
                parts.append(each)
        return parts[0] if len(parts) == 1 else vstack(parts, format="csr")

    def _texts(self, request: PredictRequest) -> list[str]:
        return request.texts or []

    def _features(self, request: PredictRequest) -> csr_matrix:
        rows, count = request.features or [], self.model.feature_count
        for number, row in enumerate(rows):
            if len(row) != count:
                raise DataError(f"features: row {number} has {len(row)} numbers, but the model takes {count}")
        return feature_matrix(np.array(rows, dtype=np.float64).reshape(len(rows), count))

    def _sparse(self, request: PredictRequest) -> csr_matrix:
        rows, count = request.sparse or [], self.model.feature_count
        for number, row in enumerate(rows):
            _check_sparse(number, row, count)
        indices = np.array([at for row in rows for at in row.indices], dtype=np.int64)
        values = np.array([value for row in rows for value in row.values], dtype=np.float64)
        starts = np.cumsum([0, *(len(row.indices) for row in rows)])
        return feature_matrix(csr_matrix((values, indices, starts), shape=(len(rows), count)))

    def _pictures(self, request: PredictRequest) -> Images:
        contents = []
        for number, text in enumerate(request.pictures or []):
            try:
                contents.append(base64.b64decode(text, validate=True))
            except (binascii.Error, ValueError):
                raise DataError(f"pictures: number {number} is not base64") from None
        assert self._size is not None
        return pictures_in(contents, self._size, self.model.picture_fit)


def _part(whole: Predictions, rows: slice, top: int | None) -> Predictions:
    """Return the predictions of some records, at most `top` labels each."""

    def cut(values: Any) -> Any:
        return None if values is None else [row[:top] for row in values[rows]]

    abstained = None if whole.abstained is None else whole.abstained[rows]
    labels, scores, probabilities = map(cut, (whole.labels, whole.scores, whole.probabilities))
    return Predictions(range(rows.stop - rows.start), labels, scores, probabilities, abstained)


def len_of(records: Records) -> int:
    return int(records.shape[0]) if isinstance(records, csr_matrix) else len(records)


def _check_sparse(number: int, row: SparseRecord, count: int) -> None:
    if len(row.indices) != len(row.values):
        raise DataError(f"sparse: record {number} has {len(row.indices)} indices but {len(row.values)} values")
    for at in row.indices:
        if not 0 <= at < count:
            raise DataError(f"sparse: record {number} has feature {at}, but the model takes features 0 to {count - 1}")
    if len(set(row.indices)) < len(row.indices):
        raise DataError(f"sparse: record {number} has a feature twice")
