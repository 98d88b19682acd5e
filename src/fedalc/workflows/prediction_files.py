"""Predict on a file of instances or pictures, and write CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import numpy as np

from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.images.images import Images
from fedalc.data.images.loose_files import joined
from fedalc.models.predicting import LabelSets, Predictor, decide, features_count
from fedalc.models.thresholds import as_rule
from fedalc.workflows.new_instances import read_features

Format = Literal["csv", "jsonl"]


@dataclass(frozen=True)
class Answer:
    """Which labels an instance gets: the `top` best ones, or those that reach a `threshold` (models/thresholds)."""

    top: int | None = None  # None: 5, or all that reach the threshold
    threshold: str | None = None
    abstain_below: float | None = None  # no label if the best probability is smaller
    probabilities: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None:
            as_rule(self.threshold)

    @property
    def needs_probabilities(self) -> bool:
        return self.probabilities or self.threshold is not None or self.abstain_below is not None


class Predictions(NamedTuple):
    """The labels of each instance, best first, and their scores. Instances are row numbers or picture names."""

    instances: Sequence[int | str]
    labels: np.ndarray | list[np.ndarray]
    scores: np.ndarray | list[np.ndarray]
    probabilities: np.ndarray | list[np.ndarray] | None = None
    abstained: np.ndarray | None = None


def predictions_for(model: Predictor, features: Any, answer: Answer, instances: Sequence[int | str]) -> Predictions:
    """Predict what `answer` asks for."""
    if answer.threshold is None:
        labels, scores = model.predict(features, answer.top or 5)
        if not answer.needs_probabilities:
            return Predictions(instances, labels, scores)
        best = Predictions(instances, labels, scores, model.calibrated().probabilities(scores, labels))
        return best if answer.abstain_below is None else _without_abstained(best, _decided(model, features, answer))
    sets = _decided(model, features, answer)
    labels_of, scores_of, probabilities = (
        [part[: answer.top] for part in np.split(values, sets.starts[1:-1])] if len(sets.best) else []
        for values in (sets.labels, sets.scores, sets.probabilities)
    )
    abstained = None if answer.abstain_below is None else sets.abstained
    return Predictions(instances, labels_of, scores_of, probabilities, abstained)


def _decided(model: Predictor, features: Any, answer: Answer) -> LabelSets:
    scorer, count = model.scorer(features), features_count(features)
    return decide(model.calibrated(), scorer, count, answer.threshold or "f1", answer.abstain_below)


def _without_abstained(best: Predictions, sets: LabelSets) -> Predictions:
    assert best.probabilities is not None
    kept = [slice(0, 0) if abstained else slice(None) for abstained in sets.abstained]
    labels, scores, probabilities = (
        [row[part] for row, part in zip(values, kept, strict=True)]
        for values in (best.labels, best.scores, best.probabilities)
    )
    return Predictions(best.instances, labels, scores, probabilities, sets.abstained)


def predict_rows(
    model: Predictor, given: Path | str | Sequence[str], answer: Answer, table: TableSettings | None = None
) -> Predictions:
    """Predict on a text, on texts, or on all instances of a file at once."""
    features = read_features(model, given, table)
    return predictions_for(model, features, answer, range(features.shape[0]))


def predict_pictures(
    model: Predictor, blocks: Iterable[Images], answer: Answer
) -> Iterator[tuple[Images, Predictions]]:
    """Predict on pictures, block by block."""
    for images in blocks:
        yield images, predictions_for(model, images, answer, images.names)


class FirstPictures:
    """The first pictures and their predictions, for a contact sheet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._blocks: list[tuple[Images, Predictions]] = []

    def add(self, images: Images, predictions: Predictions) -> None:
        if sum(len(images) for images, _ in self._blocks) < self._most:
            self._blocks.append((images, predictions))

    def write_sheet(self, path: Path, names: tuple[str, ...]) -> None:
        from fedalc.report.contact_sheet import write_contact_sheet

        first = slice(0, self._most)
        images = joined([images for images, _ in self._blocks])[first]
        labels = np.concatenate([np.asarray(predictions.labels) for _, predictions in self._blocks])[first]
        scores = np.concatenate([np.asarray(predictions.scores) for _, predictions in self._blocks])[first]
        write_contact_sheet(path, images, labels, scores, names)


class PredictionWriter:
    """CSV: one line per instance and rank; an instance without labels has one line with empty fields. JSON lines: one
    line per instance, its labels best first. Probabilities and `abstained` are there if they were asked for.

    Scores rank labels and are not probabilities.
    """

    def __init__(self, out: TextIO, names: tuple[str, ...], form: Format = "csv") -> None:
        self._out, self._names, self._form = out, names, form
        self._begun = False

    def write(self, predictions: Predictions) -> None:
        if self._form == "csv":
            self._write_csv(predictions)
        else:
            self._write_jsonl(predictions)

    def _write_csv(self, predictions: Predictions) -> None:
        writer = csv.writer(self._out, lineterminator="\n")
        probable, marked = predictions.probabilities is not None, predictions.abstained is not None
        if not self._begun:
            more = ("probability",) * probable + ("abstained",) * marked
            writer.writerow(("instance", "rank", "label", "name", "score", *more))
            self._begun = True
        for instance, best, abstained in _labels_of(predictions):
            mark = ("true" if abstained else "false",) * marked
            for rank, (label, *numbers) in enumerate(best, 1):
                texts = (f"{number:.6f}" for number in numbers)
                writer.writerow((instance, rank, label, self._names[label], *texts, *mark))
            if not best:
                writer.writerow((instance, "", "", "", "", *("",) * probable, *mark))

    def _write_jsonl(self, predictions: Predictions) -> None:
        for line in as_objects(predictions, self._names):
            self._out.write(json.dumps(line, ensure_ascii=False) + "\n")


def as_objects(predictions: Predictions, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield each instance with its labels, best first, as JSON lines have it."""
    fields = ("score", "probability")
    for instance, best, abstained in _labels_of(predictions):
        labels = [
            {"label": label, "name": names[label]}
            | {field: round(number, 6) for field, number in zip(fields, numbers, strict=False)}
            for label, *numbers in best
        ]
        yield {"instance": instance, "labels": labels} | ({} if abstained is None else {"abstained": abstained})


def _labels_of(predictions: Predictions) -> Iterator[tuple[int | str, list[tuple[Any, ...]], bool | None]]:
    """Yield each instance with its labels, their scores and probabilities, and whether the model abstained. Bytes of a
    file name that are not UTF-8 are escaped: \\udcff."""
    columns = [predictions.labels, predictions.scores]
    columns += [] if predictions.probabilities is None else [predictions.probabilities]
    for place, instance in enumerate(predictions.instances):
        if isinstance(instance, str):
            instance = instance.encode("utf-8", "backslashreplace").decode()
        abstained = None if predictions.abstained is None else bool(predictions.abstained[place])
        yield instance, list(zip(*(column[place].tolist() for column in columns), strict=True)), abstained
