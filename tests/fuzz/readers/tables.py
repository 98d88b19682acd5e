"""Tables of records: CSV, JSON lines, Parquet, saved datasets, numpy's files, svmlight text, cells with labels."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from fedalc.data.formats.arrays import Arrays, read_array
from fedalc.data.formats.csv_table import CsvSource
from fedalc.data.formats.json_lines import JsonSource
from fedalc.data.formats.parquet import Parquet
from fedalc.data.formats.svmlight import read_svmlight
from fedalc.data.formats.table import TableFormat, read_table
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.tables.label_cells import items_of
from fedalc.errors import DataError
from tests.fuzz.harness import Reader
from tests.fuzz.registry import as_file, reader, workplace

CSV = (
    b'text,labels\nsome words here,a|b\n"more, words\nhere","c"\n',
    b'\xef\xbb\xbftitle;body;tags\r\na b;c d e;x\r\nf g;h;"y;z"\r\n',
    b"id,size,age,label\n1,2,3.5,a\n2,1e3,-4,b\n",
    b"text,rude,spam\nlong words in a row,0,1\nmore words in a row,True,0\n",
    b'text,labels\nsome words here,"[\'a\', \'b c\']"\nother words,"[""d""]"\n',
)
TSV = (b'labels\ttext\n0,2\t"One" two\n1\tthree four\n', b'text\tlabels\n"a ""b"" c"\tx\nd e f\ty\n')
LINES = (
    b'{"text": "some words", "labels": ["a", "b"]}\n{"text": "more", "labels": null}\n',
    b'{"embedding": [1, 2.5], "label": 3}\n{"embedding": [0, -1], "label": true}\n',
    b'[{"text": "some words", "tags": "a;b"}, {"text": "x", "tags": ""}]',
)
SVMLIGHT = (b"1,2 1:0.5 3:1 # a\n-1 qid:3 2:1\n", b"+1 0:1\n3 7:2e-3\n")
TOKENS = (
    b'"',
    b'""',
    b",",
    b"\t",
    b";",
    b"|",
    b"[",
    b"]",
    b"'",
    b"\r",
    b"\n",
    b"nan",
    b"1e999",
    b"\\",
    b"\x00",
    b"{",
    b":",
)


def _table(file: Path) -> object:
    return read_table(CsvSource(file, TableSettings()), TableSettings())


def _of(data_format: TableFormat) -> Callable[[Path], object]:
    return lambda file: read_table(data_format.source(file, TableSettings()), TableSettings(), need_labels=False)


@reader
def csv_table() -> Reader:
    return Reader("csv-table", "CSV", CSV, as_file("csv/a.csv", _table), tokens=TOKENS)


@reader
def tsv_table() -> Reader:
    return Reader("tsv-table", "tab-separated values", TSV, as_file("tsv/a.tsv", _table), tokens=TOKENS)


@reader
def json_lines() -> Reader:
    def read(file: Path) -> object:
        return read_table(JsonSource(file), TableSettings())

    return Reader(
        "json-lines", "JSON lines, and a list of objects", LINES, as_file("json/a.jsonl", read), tokens=TOKENS
    )


@reader
def label_cells() -> Reader:
    def read(data: bytes) -> object:
        try:
            return list(items_of(data.decode("utf-8", "replace")))
        except ValueError as error:  # the caller adds file and line
            raise DataError(str(error)) from None

    seeds = (b"['a', \"it's\"]", b"['a' 'b'\n 'c']", b"[1, 2]", b'["\\u00e9"]')
    return Reader("label-cells", "lists of labels in a cell", seeds, read, tokens=TOKENS)


@reader
def svmlight() -> Reader:
    read = as_file("svmlight/a.svm", lambda file: read_svmlight({"train": file}))
    return Reader(
        "svmlight", "svmlight text without a header", SVMLIGHT, read, tokens=(b":", b",", b"#", b"qid:", b"9" * 30)
    )


@reader
def numpy_arrays() -> Reader:
    seeds = []
    for arrays in (
        {"X": np.eye(3, dtype=np.float32), "y": np.array(["a", "b", "a"])},
        {"X": np.ones((2, 2)), "Y": np.eye(2)},
    ):
        out = io.BytesIO()
        np.savez(out, **arrays)
        seeds.append(out.getvalue())
    return Reader("numpy-arrays", "npz with an array per column", seeds, as_file("npz/a.npz", _of(Arrays())))


@reader
def numpy_matrices() -> Reader:
    out = io.BytesIO()
    save_npz(out, csr_matrix(np.eye(4, dtype=np.float32)))
    return Reader("numpy-matrices", "a sparse matrix of scipy", [out.getvalue()], as_file("matrix/X.npz", read_array))


@reader
def numpy_array() -> Reader:
    seeds = []
    for array in (np.eye(3), np.array(["a", "b"]), np.asfortranarray(np.ones((2, 3), dtype=np.int16))):
        out = io.BytesIO()
        np.save(out, array)
        seeds.append(out.getvalue())
    return Reader("numpy-array", "npy", seeds, as_file("npy/X.npy", read_array))


@reader
def parquet() -> Reader:
    import pyarrow
    import pyarrow.parquet

    seeds = []
    for rows in (
        {"text": ["some words", "more"], "labels": [["a"], ["b", "c"]]},
        {"x": [1.5, 2.0], "label": ["a", None]},
    ):
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(rows), out)
        seeds.append(out.getvalue())
    return Reader("parquet", "Parquet", seeds, as_file("parquet/a.parquet", _of(Parquet())))


@reader
def saved_dataset() -> Reader:
    """The JSON files of a folder of save_to_disk."""
    import pyarrow
    import pyarrow.ipc

    from fedalc.data.load import load_dataset

    folder = workplace() / "saved-dataset"
    folder.mkdir(exist_ok=True)
    rows = pyarrow.table({"text": [f"some words {n}" for n in range(6)], "label": [n % 2 for n in range(6)]})
    with (
        pyarrow.OSFile(str(folder / "data-0.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, rows.schema) as stream,
    ):
        stream.write_table(rows)
    state = json.dumps({"_data_files": [{"filename": "data-0.arrow"}], "_indices_files": None}).encode()
    info = json.dumps({"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}).encode()

    def read(data: bytes) -> object:
        for name, content in (("state.json", state), ("dataset_info.json", info)):
            (folder / name).write_bytes(content)
        (folder / ("state.json" if b"_data_files" in data else "dataset_info.json")).write_bytes(data)
        return load_dataset(folder, table=TableSettings(test_share=0))

    return Reader("saved-dataset", "a saved Hugging Face dataset", [state, info], read, tokens=(b"../", b"null", b"[]"))
