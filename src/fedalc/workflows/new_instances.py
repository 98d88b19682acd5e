"""What `fedalc predict` gets: a text, a file of texts or of features, or standard input."""

from __future__ import annotations

import re
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scipy.sparse import csr_matrix

from fedalc.core.explain import checked_section
from fedalc.data.formats import file_format
from fedalc.data.formats.table import TableFormat
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.formats.text_stream import LineReader, not_text
from fedalc.data.images.images import Images
from fedalc.data.images.loose_files import looks_like_pictures, read_pictures
from fedalc.data.load import load_file
from fedalc.data.text.base import TextFeatures
from fedalc.errors import DataError, FedalcError
from fedalc.models.predicting import Predictor

STANDARD_INPUT = "-"
_LINES = re.compile(r"\.(txt|text)(\.gz|\.bz2)?", re.IGNORECASE)
_HEADER = re.compile(rb"\s*\d+\s+(\d+)\s+\d+\s*")  # of the XML repository: instances, features, labels


def read_records(model: Predictor, given: Path | str, table: TableSettings | None = None) -> csr_matrix | Images:
    """Return the same, or pictures of a file, folder or archive if the model takes pictures."""
    if model.picture_size is None or given == STANDARD_INPUT:
        return read_features(model, given, table)
    return read_pictures(given, model.picture_size, fit=model.picture_fit)


def read_features(
    model: Predictor, given: Path | str | Sequence[str], table: TableSettings | None = None
) -> csr_matrix:
    """Return a row of features for each instance: of a file, of standard input (`-`), for a single text, or for each
    text of a sequence.

    `table`: which columns of a table are what, as in training.
    """
    table = table or TableSettings()
    if not isinstance(given, Path | str):
        if model.text is None:
            raise DataError("--text: this model was not trained on raw texts: it cannot read a text")
        return of_texts(model.text, list(given))
    given = str(given)
    if given == STANDARD_INPUT:
        with TemporaryDirectory(prefix="fedalc-") as folder:
            file = Path(folder) / "standard-input.txt"
            file.write_bytes(sys.stdin.buffer.read())
            if not file.stat().st_size:
                raise DataError("standard input is empty: expected a text per line")
            try:
                return _of_file(model, file, table)
            except DataError as error:
                raise DataError(str(error).replace(str(file), "standard input")) from None
    if not given.strip():
        raise DataError("the text is empty")
    if is_file(given):
        return _of_file(model, Path(given), table)
    if model.text is None:
        raise DataError(
            f"no such file or folder (and not a text for this model, which was trained on {model.feature_count} "
            "features)",
            Path(given),
        )
    return of_texts(model.text, [given])


def table_of(run: Path, columns: Mapping[str, Any] | None = None) -> TableSettings:
    """Return which columns of a table were what in training, with these changes. (Reading all settings would load
    torch.)"""
    file, known = run / "config.toml", TableSettings()
    if file.is_file():  # otherwise the folder of a model alone
        try:
            known = TableSettings.model_validate(tomllib.loads(file.read_text(encoding="utf-8")).get("table", {}))
        except (OSError, ValueError, RecursionError) as error:
            raise FedalcError(f"{file}: its section [table] cannot be read: {error}") from None
    return checked_section(TableSettings, {**known.model_dump(), **(columns or {})}, "table")


def is_file(given: str) -> bool:
    """Return whether this is the path of a file or folder. Long texts are no path at all."""
    try:
        return Path(given).exists()
    except (OSError, ValueError):
        return False


def of_texts(text: TextFeatures, texts: list[str]) -> csr_matrix:
    """Return the features of texts, and warn of texts that have none."""
    features = text.transform(texts)
    without = int((features.getnnz(axis=1) == 0).sum())
    if without:
        every = "the text has" if len(texts) == 1 else f"{without} of {len(texts)} texts have"
        warnings.warn(f"{every} no word that the model knows: what it predicts means little", stacklevel=2)
    return features


def _of_file(model: Predictor, file: Path, table: TableSettings) -> csr_matrix:
    if looks_like_pictures(file):
        raise DataError(f"holds pictures, but this model was trained on {model.feature_count} features", file)
    if model.text is not None and _LINES.fullmatch("".join(file.suffixes[-2:])) and not _has_features(file, model):
        return of_texts(model.text, _lines(file))
    if model.text is not None and isinstance(data_format := file_format(file), TableFormat):
        return of_texts(model.text, list(data_format.read_texts(file, table)))
    return load_file(file, model.feature_count, len(model.label_names), table=table).features


def _has_features(file: Path, model: Predictor) -> bool:
    """Return whether a .txt file is not a text per line but of the XML repository, with the model's features."""
    with LineReader(file) as reader:
        header = _HEADER.fullmatch(reader.next_line() or b"")
    return header is not None and int(header[1]) == model.feature_count


def _lines(file: Path) -> list[str]:
    texts: list[str] = []
    with LineReader(file) as reader:
        while (line := reader.next_line()) is not None:
            try:
                texts.append(line.decode())
            except UnicodeDecodeError:
                raise not_text(file, line) or DataError(
                    f"line {reader.line} is not UTF-8 text; save it as UTF-8", file
                ) from None
    if not texts:
        raise DataError("has no texts: expected one per line", file)
    return texts
