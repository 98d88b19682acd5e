"""numpy's files: a .npz with an array per column, or a folder with X and Y (.npy, or .npz of numpy or scipy.sparse).

    data.npz                                arrays X and Y, or X_train, Y_train, X_test, Y_test; a `split` works too
    X_train.npz Y_train.npz X_test.npz …    each one array or sparse matrix; X.npy and Y.npy without test data

Nothing is unpickled, and sizes are compared with the file before memory is taken.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy.sparse import coo_matrix, csc_matrix, csr_matrix

from fedalc.data.dataset import Dataset
from fedalc.data.formats.base import ReadOptions
from fedalc.data.formats.table import TableFormat, dataset_of_tables
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.limits import largest_content, unpacks_to_too_much
from fedalc.data.tables.build import make_dataset
from fedalc.data.tables.columns import SPLIT_OF
from fedalc.data.tables.source import BLOCK, Block, Source
from fedalc.errors import DataError

_HALF = re.compile(rf"(x|y|features|labels)(?:[_-]({'|'.join(SPLIT_OF)}))?\.np[yz]", re.IGNORECASE)
_NAMED_SPLIT = re.compile(rf"(.+)[_-]({'|'.join(SPLIT_OF)})", re.IGNORECASE)
_SPARSE = {"data", "shape", "format"}
_DAMAGED = (ValueError, OSError, EOFError, KeyError, TypeError, SyntaxError, zipfile.BadZipFile, zlib.error,
            NotImplementedError, RuntimeError, OverflowError, AttributeError)  # fmt: skip


class Arrays(TableFormat):
    help = "numpy arrays"
    suffixes = (".npz",)

    def recognises_file(self, path: Path) -> bool:
        return path.suffix.lower() in (".npz", ".npy")

    def recognises(self, folder: Path) -> bool:
        return super().recognises(folder) or "train" in _halves(folder)

    def looks_for(self, split: str = "train") -> str:
        return f"{split}.npz, or X_{split}.npz and Y_{split}.npz (or .npy)"

    def split_files(self, folder: Path, needed: Iterable[str] = ("train",)) -> dict[str, Path]:
        halves = _halves(folder)
        if "train" in halves:
            return {split: files["x"] for split, files in halves.items() if "x" in files}
        return super().split_files(folder, needed)

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        halves = _halves(folder)
        if "train" not in halves:
            return super().read(folder, options)
        from fedalc.data.in_memory import records_from

        splits = {}
        for split, files in halves.items():
            for half, other in (("x", "y"), ("y", "x")):
                if half not in files:
                    raise DataError(f"is here, but not the file of {half.upper()} for {split}", files[other])
            x, y = files["x"], files["y"]
            splits[split] = records_from(read_array(x), read_array(y), options.table, str(x), str(y))
        return make_dataset(folder.name, splits, options.table, options.text)

    def read_alone(self, path: Path, options: ReadOptions) -> Dataset:
        tables = _by_split(_arrays_of(path), path)
        sources: dict[str, Source] = {split: ArraySource(arrays, path) for split, arrays in tables.items()}
        return dataset_of_tables(path.name, sources, options.table, options.text)

    def source(self, path: Path, table: TableSettings) -> Source:
        return ArraySource(_arrays_of(path), path)


class ArraySource(Source):
    """Arrays with a row for each record: one-dimensional ones hold values, two-dimensional ones vectors."""

    def __init__(self, arrays: dict[str, np.ndarray], path: Path) -> None:
        super().__init__(path)
        lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or -1 in lengths.values() or any(a.ndim > 2 for a in arrays.values()):
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise DataError(f"the arrays should have a row for each record each: {shapes[:200]}", path)
        self._arrays = arrays

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._arrays)

    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        count = len(next(iter(self._arrays.values())))
        for first in range(0, count, BLOCK):
            cells = {name: _cells(self._arrays[name][first : first + BLOCK]) for name in columns}
            yield Block(cells, min(BLOCK, count - first), first + 1)


def _cells(part: np.ndarray) -> Any:
    return part if part.ndim == 2 else part.tolist()


def _halves(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files of X and Y of each split. Without a split in their names, they are for training."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := _HALF.fullmatch(path.name):
            half = {"features": "x", "labels": "y"}.get(match[1].lower(), match[1].lower())
            files = found.setdefault(SPLIT_OF[(match[2] or "train").lower()], {})
            if half in files:
                raise DataError(f"{files[half].name} and {path.name} could both be {half.upper()}: leave one", folder)
            files[half] = path
    return found if {"x", "y"} <= set(found.get("train", ())) else {}


def _by_split(arrays: dict[str, np.ndarray], path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays of each split: X_train and Y_train are columns X and Y of train."""
    matches = {name: _NAMED_SPLIT.fullmatch(name) for name in arrays}
    if not any(match and SPLIT_OF[match[2].lower()] == "train" for match in matches.values()):
        return {"train": arrays}
    splits: dict[str, dict[str, np.ndarray]] = {}
    for name, match in matches.items():
        if match:
            splits.setdefault(SPLIT_OF[match[2].lower()], {})[match[1]] = arrays[name]
    return splits


def _arrays_of(path: Path) -> dict[str, np.ndarray]:
    if path.suffix.lower() == ".npy":
        raise DataError("is a single array: give the folder with X.npy and Y.npy, or with X_train.npy and so on", path)
    arrays = _read_npz(path)
    if set(arrays) >= _SPARSE:
        raise DataError("is a sparse matrix without labels: give the folder with X.npz and Y.npz", path)
    return arrays


def read_array(path: Path) -> Any:
    """Return the array in a file, or the matrix that scipy.sparse.save_npz wrote."""
    if path.suffix.lower() == ".npy":
        try:
            with path.open("rb") as file:
                return _read_npy(file, path.stat().st_size, path)
        except _DAMAGED as error:
            raise _damaged(path, error) from None
    arrays = _read_npz(path)
    if set(arrays) >= _SPARSE:
        return _sparse(arrays, path)
    if len(arrays) != 1:
        raise DataError(f"holds {len(arrays)} arrays, where one is expected: {', '.join(arrays)[:120]}", path)
    return next(iter(arrays.values()))


def _sparse(arrays: dict[str, np.ndarray], path: Path) -> csr_matrix:
    try:
        form = arrays["format"].item()
        form = form.decode() if isinstance(form, bytes) else str(form)
        shape = tuple(int(size) for size in arrays["shape"])
        if form == "coo":
            return coo_matrix((arrays["data"], (arrays["row"], arrays["col"])), shape=shape).tocsr()
        kind = {"csr": csr_matrix, "csc": csc_matrix}[form]
        matrix = kind((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        matrix.check_format(full_check=True)
        return matrix.tocsr()
    except (*_DAMAGED, MemoryError) as error:
        raise _damaged(path, error) from None


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            packed, limit = path.stat().st_size, largest_content(path.stat().st_size)
            if sum(member.file_size for member in members) > limit:
                raise unpacks_to_too_much(path, packed, limit)
            arrays = {}
            for member in members:
                with archive.open(member) as file:
                    arrays[member.filename.removesuffix(".npy")] = _read_npy(file, member.file_size, path)
    except _DAMAGED as error:
        raise _damaged(path, error) from None
    if not arrays:
        raise DataError("holds no array", path)
    return arrays


def _read_npy(file: IO[bytes], size: int, path: Path) -> np.ndarray:
    """Read an array after comparing the size that its header claims with that of the file."""
    version = np.lib.format.read_magic(file)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if header is None:
        raise DataError(f"is of numpy's version {version[0]}.{version[1]}; save it again", path)
    try:
        shape, by_columns, dtype = header(file)
    except Exception as error:  # numpy parses Python source here, and whatever that raises comes through
        raise _damaged(path, error) from None
    if dtype.hasobject:
        raise DataError("holds Python objects, which fedalc does not unpickle: save numbers or text", path)
    count = math.prod(shape)
    if count * dtype.itemsize > size or dtype.kind not in "biufUS":
        raise DataError(f"is damaged, or holds values of type {dtype}, where numbers or text are expected", path)
    data = file.read(count * dtype.itemsize)
    array = np.frombuffer(data, dtype=dtype, count=count).reshape(shape, order="F" if by_columns else "C")
    return np.char.decode(array, "utf-8") if dtype.kind == "S" else array


def _damaged(path: Path, error: BaseException) -> DataError:
    return DataError(f"cannot be read as numpy's file: {str(error)[:120] or type(error).__name__}", path)
