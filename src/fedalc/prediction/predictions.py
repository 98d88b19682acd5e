"""From a file of instances, or of pictures, to predictions that people and programs read: CSV, or JSON lines."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import numpy as np
from rich.console import Console

from fedalc.data.images import Images
from fedalc.data.load import load_file
from fedalc.data.picture_files import joined, looks_like_pictures, picture_blocks
from fedalc.errors import DataError, FedalcError
from fedalc.files import whole_file
from fedalc.oracles import TrainedOracle
from fedalc.progress import counting
from fedalc.trained import TrainedModel, load_model
from fedalc.watched import watching

Format = Literal["csv", "jsonl"]


class Predictions(NamedTuple):
    """The best labels of each instance, best first, and their scores. An instance is a number, or a picture's name."""

    instances: Sequence[int | str]
    labels: np.ndarray
    scores: np.ndarray


def predict_file(
    run: Path,
    file: Path,
    k: int,
    *,
    form: Format,
    out: Path | None,
    broken: Literal["refuse", "skip"],
    sheet: Path | None,
    sheet_pictures: int,
    device: str,
) -> None:
    """What a finished run's model says of a file's instances, written to `out` or to standard output; and the first
    pictures to `sheet`. Notes and progress go where errors do."""
    model = _finished_model(run, device)
    size = model.picture_size if isinstance(model, TrainedModel) else None
    if size is None and sheet is not None:
        raise FedalcError("--sheet: this model was trained on features, so there are no pictures to show")
    notes = Console(stderr=True, highlight=False, soft_wrap=True)

    def tell(note: str) -> None:
        notes.print(f"note: {note}", markup=False)

    first = FirstPictures(sheet_pictures if sheet is not None else 0)
    with nullcontext(sys.stdout) if out is None else whole_file(out) as stream:
        writer = PredictionWriter(stream, model.label_names, form)
        if size is None:
            with (
                counting(notes, "instances", shown=notes.is_terminal) as progress,
                watching(lambda what, done, total: progress(done, total, what)),
            ):
                predictions = predict_rows(model, file, k)
            writer.write(predictions)
        else:
            assert isinstance(model, TrainedModel)
            with counting(notes, "pictures", shown=notes.is_terminal and not stream.isatty()) as progress:
                blocks = picture_blocks(file, size, broken, progress=progress, tell=tell)
                for images, predictions in predict_pictures(model, blocks, k):
                    writer.write(predictions)
                    first.add(images, predictions)
    if sheet is not None:
        first.write_sheet(sheet, model.label_names)


def _finished_model(run: Path, device: str) -> TrainedModel | TrainedOracle:
    """Of a run's folder, or of a model's own."""
    if (run / "config.toml").exists() and not (run / "model").is_dir():
        raise FedalcError(f"{run}: this run is not finished; go on with: fedalc train --resume {run}")
    return load_model(run / "model" if (run / "model").is_dir() else run, device)


def predict_rows(model: TrainedModel | TrainedOracle, file: Path, k: int) -> Predictions:
    """Of a file of features, all at once."""
    if looks_like_pictures(file):
        raise DataError(
            f"is of pictures, and this model was trained on {model.feature_count} features and not on pictures", file
        )
    labels, scores = model.predict(load_file(file, model.feature_count, len(model.label_names)).features, k)
    return Predictions(range(len(labels)), labels, scores)


def predict_pictures(model: TrainedModel, blocks: Iterable[Images], k: int) -> Iterator[tuple[Images, Predictions]]:
    """Block by block, as they come."""
    for images in blocks:
        yield images, Predictions(images.names, *model.predict(images, k))


class FirstPictures:
    """The first few that come by, with what was predicted for them: for a contact sheet."""

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
    """CSV: one line per instance and rank. JSON lines: one line per instance, its labels best first."""

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
    """Each instance with its labels and scores. Bytes of a file's name that are no UTF-8 are written out: \\udcff."""
    for instance, labels, scores in zip(
        predictions.instances, predictions.labels.tolist(), predictions.scores.tolist(), strict=True
    ):
        if isinstance(instance, str):
            instance = instance.encode("utf-8", "backslashreplace").decode()
        yield instance, list(zip(labels, scores, strict=True))
