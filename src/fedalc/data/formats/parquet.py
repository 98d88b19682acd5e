"""Parquet files, and datasets that Hugging Face's `save_to_disk` wrote: both are Arrow tables. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from fedalc.core.safe_parsing import read_json_object
from fedalc.data.dataset import Dataset
from fedalc.data.formats.base import ReadOptions
from fedalc.data.formats.table import TableFormat, dataset_of_tables
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.tables.columns import SPLIT_OF
from fedalc.data.tables.frames import ArrowSource, arrow_block
from fedalc.data.tables.source import BLOCK, Block, Source, checked_columns
from fedalc.errors import DataError, FedalcError

_SPLITS, _INFO, _STATE = "dataset_dict.json", "dataset_info.json", "state.json"


class Parquet(TableFormat):
    help = "Parquet"
    suffixes = (".parquet",)

    def source(self, path: Path, table: TableSettings) -> Source:
        return ParquetSource(path)


class ParquetSource(Source):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    @cached_property
    def columns(self) -> tuple[str, ...]:
        with _opened(self.path) as file:
            return checked_columns(file.schema_arrow.names, self.path)

    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        done = 0
        with _opened(self.path) as file:
            wanted = [file.schema_arrow.names[self.columns.index(name)] for name in columns]
            for batch in file.iter_batches(BLOCK, columns=wanted):
                yield arrow_block(batch.select(wanted), columns, done, {}, self.path)
                done += batch.num_rows


class SavedDataset(TableFormat):
    """A folder of `Dataset.save_to_disk`, or of `DatasetDict.save_to_disk` with a folder for each split."""

    help = "a saved Hugging Face dataset"

    def recognises(self, folder: Path) -> bool:
        return (folder / _SPLITS).is_file() or (folder / _STATE).is_file()

    def looks_for(self, split: str = "train") -> str:
        return "a folder that save_to_disk of Hugging Face's datasets wrote"

    def split_files(self, folder: Path, needed: Iterable[str] = ()) -> dict[str, Path]:
        """Return the folder of each split."""
        if not (folder / _SPLITS).is_file():
            return {"train": folder}
        names = _json(folder / _SPLITS).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) and name in SPLIT_OF for name in names):
            raise DataError(f"splits should be called train, test and validation, not {names!r:.60}", folder / _SPLITS)
        return {SPLIT_OF[name]: folder / name for name in names}

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        folders = self.split_files(folder)
        if "train" not in folders:
            raise DataError("has no split called train", folder)
        sources = {split: self.source(path, options.table) for split, path in folders.items()}
        return dataset_of_tables(folder.name, sources, options.table, options.text)

    def source(self, path: Path, table: TableSettings) -> Source:
        files = _json(path / _STATE).get("_data_files")
        if not isinstance(files, list) or _json(path / _STATE).get("_indices_files"):
            raise DataError("is not a whole dataset: save it again with save_to_disk", path / _STATE)
        tables = [_read_arrow(path / _file_name(file, path)) for file in files]
        with _arrow_errors(path):
            whole = _pyarrow().concat_tables(tables)
        classes = {name: names for name, feature in _features(path).items() if (names := _class_names(feature))}
        return ArrowSource(whole, str(path), classes)


def _file_name(file: Any, path: Path) -> str:
    name = file.get("filename") if isinstance(file, dict) else None
    if (
        not isinstance(name, str)
        or "/" in name
        or "\\" in name
        or "\0" in name
        or not name.endswith(".arrow")
        or len(name) > 200
    ):
        raise DataError(f"names a file {name!r:.60}, which is not one of its own", path / _STATE)
    return name


def _features(path: Path) -> dict[str, Any]:
    features = _json(path / _INFO).get("features")
    return features if isinstance(features, dict) else {}


def _class_names(feature: Any) -> Sequence[str] | None:
    """Return the names of a column of ClassLabel, or of lists of it, as dataset_info.json has them."""
    for _ in range(2):
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        if not isinstance(feature, dict):
            return None
        names = feature.get("names")
        if feature.get("_type") == "ClassLabel" and isinstance(names, list):
            return [str(name) for name in names]
        feature = feature.get("feature", feature)
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path, "save the dataset again")
    except FileNotFoundError:
        raise DataError("no such file; save the dataset again", path) from None


def _read_arrow(path: Path) -> Any:
    pyarrow = _pyarrow()
    if not path.is_file():
        raise DataError("no such file", path)
    with _arrow_errors(path), pyarrow.memory_map(str(path)) as file:
        return pyarrow.ipc.open_stream(file).read_all()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    pyarrow = _pyarrow()
    with _arrow_errors(path), pyarrow.parquet.ParquetFile(str(path)) as file:
        yield file


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (FedalcError, GeneratorExit):
        raise
    except FileNotFoundError:
        raise DataError("no such file", path) from None
    except (_pyarrow().ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        what = str(error).partition("\n")[0][:120]
        raise DataError(f"cannot be read: {what or type(error).__name__}", path) from None


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise FedalcError("reading Parquet and saved datasets needs pyarrow: pip install 'fedalc[tables]'") from None
    return pyarrow
