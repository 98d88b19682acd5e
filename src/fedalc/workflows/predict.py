"""Predict on a file with the model of a finished run, and write the predictions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fedalc.core.atomic_files import whole_file
from fedalc.core.progress_events import watching
from fedalc.data.images.loose_files import picture_blocks
from fedalc.data.text.encoded import EncodedText
from fedalc.errors import FedalcError
from fedalc.models.predicting import Predictor
from fedalc.workflows.counting import counting
from fedalc.workflows.load_model import light_model
from fedalc.workflows.new_instances import table_of
from fedalc.workflows.prediction_files import (
    Answer,
    FirstPictures,
    Format,
    PredictionWriter,
    predict_pictures,
    predict_rows,
)


def predict_file(
    run: Path,
    file: Path | str | Sequence[str],
    answer: Answer,
    *,
    form: Format,
    out: Path | None,
    broken: Literal["refuse", "skip"],
    sheet: Path | None,
    sheet_pictures: int,
    device: str,
    text_encoder: Path | None = None,
    pretrained: Sequence[str] = (),
    columns: Mapping[str, Any] | None = None,
) -> None:
    """Write the labels of instances to `out` or to standard output.

    `file`: of instances, or `-` for standard input, or for a model of raw texts a text, or a sequence of texts (which
    are never taken for files). `text_encoder`, `pretrained`: where the sentence encoder, or any frozen network, of
    training now is. `columns`: settings of tables that are other than in training.
    The first pictures go to `sheet`, if given. Notes and progress go to standard error.
    """
    model = light_model(run, file if isinstance(file, Path | str) else "", device)
    size = model.picture_size
    if size is None and sheet is not None:
        raise FedalcError("--sheet: this model was trained on features, not on pictures")
    if sheet is not None and isinstance(file, Path | str) and sheet.exists() and _is_input(sheet, Path(file)):
        raise FedalcError(f"--sheet: {sheet} is one of the pictures to predict for, and would be overwritten")
    if sheet is not None and (answer.threshold is not None or answer.abstain_below is not None):
        raise FedalcError("--sheet shows the best labels: leave out --threshold and --abstain-below")
    if answer.needs_probabilities:
        model.calibrated()  # before reading the file
    if text_encoder is not None:
        if not isinstance(model.text, EncodedText):
            raise FedalcError("--text-encoder: this model was not trained on the rows of a sentence encoder")
        model.text.look_in(text_encoder)
    if pretrained:
        _look_in(model, pretrained)
    table = table_of(run, columns)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)

    def tell(note: str) -> None:
        notes.print(f"note: {note}", markup=False)

    first = FirstPictures(sheet_pictures if sheet is not None else 0)
    with nullcontext(sys.stdout) if out is None else whole_file(out) as stream:
        writer = PredictionWriter(stream, model.label_names, form)
        if size is None or not isinstance(file, Path | str):
            with (
                counting(notes, "instances", shown=notes.is_terminal) as progress,
                watching(lambda what, done, total: progress(done, total, what)),
            ):
                predictions = predict_rows(model, file, answer, table)
            writer.write(predictions)
        else:
            with counting(notes, "pictures", shown=notes.is_terminal and not stream.isatty()) as progress:
                blocks = picture_blocks(Path(file), size, broken, progress=progress, tell=tell, fit=model.picture_fit)
                for images, predictions in predict_pictures(model, blocks, answer):
                    writer.write(predictions)
                    first.add(images, predictions)
    if sheet is not None:
        first.write_sheet(sheet, model.label_names)


def _is_input(sheet: Path, file: Path) -> bool:
    """Return whether a sheet is the input, or a file in its folder."""
    return sheet.samefile(file) if file.is_file() else sheet.resolve().is_relative_to(file.resolve())


def _look_in(model: Predictor, places: Sequence[str]) -> None:
    """Look for the frozen network of training in these places."""
    if model.pictures is not None:
        model.pictures.look_in(*places)
    elif isinstance(model.text, EncodedText) and len(places) == 1:
        model.text.look_in(places[0])
    else:
        raise FedalcError("--pretrained: this model was not trained on the features of one frozen network")
