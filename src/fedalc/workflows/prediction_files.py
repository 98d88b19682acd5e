"""Predict on a file of instances or pictures, and write CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import numpy as np

from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.images.images import Images
from fedalc.data.images.loose_files import joined
from fedalc.models.trained import TrainedModel
from fedalc.oracles import TrainedOracle
from fedalc.workflows.new_instances import read_features

Format = Literal["csv", "jsonl"]


class Predictions(NamedTuple):
    """The best labels of each instance, best first, and their scores. Instances are row numbers or picture names."""

    instances: Sequence[int | str]
    labels: np.ndarray
    scores: np.ndarray


def predict_rows(
    model: TrainedModel | TrainedOracle, given: str, k: int, table: TableSettings | None = None
) -> Predictions:
    """Predict on a text, or on all instances of a file at once."""
    labels, scores = model.predict(read_features(model, given, table), k)
    return Predictions(range(len(labels)), labels, scores)


def predict_pictures(model: TrainedModel, blocks: Iterable[Images], k: int) -> Iterator[tuple[Images, Predictions]]:
    """Predict on pictures, block by block."""
    for images in blocks:
        yield images, Predictions(images.names, *model.predict(images, k))


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
        labels = np.concatenate([predictions.labels for _, predictions in self._blocks])[first]
        scores = np.concatenate([predictions.scores for _, predictions in self._blocks])[first]
        write_contact_sheet(path, images, labels, scores, names)


class PredictionWriter:
    """CSV: one line per instance and rank. JSON lines: one line per instance, its labels best first.

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
        if not self._begun:
            writer.writerow(("instance", "rank", "label", "name", "score"))
            self._begun = True
        for instance, best in _best_of(predictions):
            for rank, (label, score) in enumerate(best, 1):
                writer.writerow((instance, rank, label, self._names[label], f"{score:.6f}"))

    def _write_jsonl(self, predictions: Predictions) -> None:
        for instance, best in _best_of(predictions):
            labels = [{"label": label, "name": self._names[label], "score": round(score, 6)} for label, score in best]
            self._out.write(json.dumps({"instance": instance, "labels": labels}, ensure_ascii=False) + "\n")


def _best_of(predictions: Predictions) -> Iterator[tuple[int | str, list[tuple[int, float]]]]:
    """Yield each instance with its labels and scores. Bytes of a file name that are not UTF-8 are escaped: \\udcff."""
    for instance, labels, scores in zip(
        predictions.instances, predictions.labels.tolist(), predictions.scores.tolist(), strict=True
    ):
        if isinstance(instance, str):
            instance = instance.encode("utf-8", "backslashreplace").decode()
        yield instance, list(zip(labels, scores, strict=True))
