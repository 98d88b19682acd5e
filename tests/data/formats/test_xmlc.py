from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Split
from fedalc.data.formats import text_stream as _stream
from fedalc.data.formats import xmlc
from fedalc.data.formats.xmlc import read_xmlc
from fedalc.errors import DataError
from tests.data.conftest import COMPRESSIONS, real_data

Write = Callable[..., Path]


def assert_same(found: csr_matrix, expected: csr_matrix) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.data, expected.data)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_file_worked_by_hand(write: Write, compression: str) -> None:
    """Instances without labels, without features or without both keep their position."""
    text = "5 4 3\n0,2 0:0.5 3:2\n 1:1\n1\n\n2 0:-1e-1 2:.25\n"
    split = read_xmlc(write(COMPRESSIONS[compression](text.encode())))
    np.testing.assert_array_equal(
        split.features.toarray(),
        np.array([[0.5, 0, 0, 2], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [-0.1, 0, 0.25, 0]], dtype=np.float32),
    )
    np.testing.assert_array_equal(split.labels.toarray(), [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    "text",
    [
        "2 3 2\r\n0 1:1 2:2\r\n1 0:1\r\n",
        "2 3 2\n0 \t 1:1   2:2  \n1\t0:1",
        "\ufeff2 3 2\n0 1:1 2:2\n1 0:1\n\n\n  \n",
        "2 3 2\n0,0 2:2 1:1\n1 0:1 1:0\n",
        "2 3 2\n000000000000 1:1 2:2\n1 0:1.00000000000000000000\n",
    ],
    ids=["crlf", "tabs and spaces", "mark and blank end", "repeats, order, zero", "long numbers"],
)
def test_spellings_of_the_same_data(write: Write, text: str) -> None:
    split = read_xmlc(write(text))
    np.testing.assert_array_equal(split.features.toarray(), [[0, 1, 2], [1, 0, 0]])
    np.testing.assert_array_equal(split.labels.toarray(), [[1, 0], [0, 1]])
    assert split.features.nnz == 3
    assert split.features.has_canonical_format


def test_blank_lines_within_the_count_are_instances(write: Write) -> None:
    split = read_xmlc(write("3 1 1\n\n\n\n\n"))
    assert len(split) == 3
    assert split.features.nnz == split.labels.nnz == 0


def test_no_instances(write: Write) -> None:
    assert len(read_xmlc(write("0 5 2\n"))) == 0


BAD_LINES = {
    "0 x:1": "feature",
    "0 1:x": "'x'",
    "a 1:1": "'a'",
    "0 1:": "value is missing",
    "0 :4": "feature number is missing",
    "0, 1:1": "label number is missing",
    "0,,1 1:1": "label number is missing",
    ",1 1:1": "label number is missing",
    "0 1:1 1": "labels come first",
    "0 1 1:1": "labels come first",
    "0,1 , 1:1": "labels come first",
    "0 1:2:3": "'2:3'",
    "0 1:1,2:1": "'1,2:1'",
    "2 1:1": "label 2 is out of range",
    "-1 1:1": "'-1'",
    "0.5 1:1": "'0.5'",
    "0 3:1": "feature 3 is out of range",
    "0 -1:1": "'-1'",
    "0 1.5:1": "'1.5'",
    "0 1:nan": "finite",
    "0 1:inf": "finite",
    "0 1:1e39": "32 bits",
    "0 1:1_0": "'1_0'",
    "0 1: 1": "value is missing",
    "0 1 :1": "labels come first",
}


@pytest.mark.parametrize("line", BAD_LINES)
@pytest.mark.parametrize("compression", ["plain", "gzip"])
def test_a_bad_line_is_named(write: Write, line: str, compression: str) -> None:
    path = write(COMPRESSIONS[compression](f"4 3 2\n0 1:1\n\n{line}\n1 2:1\n".encode()))
    with pytest.raises(DataError) as error:
        read_xmlc(path)
    assert str(error.value).startswith(f"{path}:4: ")
    assert BAD_LINES[line] in str(error.value)


@pytest.mark.few(8)
@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named_in_a_later_block(write: Write, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    path = write("1001 3 2\n" + "0,1 1:0.25 2:3\n" * 1000 + line + "\n")
    monkeypatch.setattr(_stream, "BLOCK_BYTES", 64)
    with pytest.raises(DataError) as error:
        read_xmlc(path)
    assert str(error.value).startswith(f"{path}:1002: ")


@pytest.mark.parametrize("header", ["", "1 2", "1 2 3 4", "1 2 x", "-1 2 3", "0 1:0.5", "1.0 2 3"])
def test_a_bad_header(write: Write, header: str) -> None:
    path = write(f"{header}\n0 0:1\n")
    with pytest.raises(DataError, match="instances features labels") as error:
        read_xmlc(path)
    assert str(error.value).startswith(f"{path}:1: ")


def test_a_header_with_more_than_can_be_counted(write: Write) -> None:
    path = write("1 2147483648 10000000\n0 0:1\n")
    with pytest.raises(DataError) as error:
        read_xmlc(path)
    assert str(error.value) == f"{path}:1: 2147483648 features are more than the limit of 2,147,483,647"


def test_too_few_instances(write: Write) -> None:
    with pytest.raises(
        DataError, match=r"data\.txt:3: .*3 instances, but the file has 2: the file is truncated, or the header"
    ):
        read_xmlc(write("3 1 1\n0 0:1\n0 0:1\n"))


def test_too_many_instances(write: Write) -> None:
    with pytest.raises(DataError, match=r"data\.txt:5: .*1 instances, but this line is one more"):
        read_xmlc(write("1 1 1\n0 0:1\n\n\n0 0:1\n"))


def test_too_many_instances_in_a_later_block(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "BLOCK_BYTES", 16)
    with pytest.raises(DataError, match=r"data\.txt:52: "):
        read_xmlc(write("50 1 1\n" + "0 0:1\n" * 51))


def test_an_empty_file(write: Write) -> None:
    with pytest.raises(DataError, match=r"data\.txt: the file is empty"):
        read_xmlc(write(""))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        read_xmlc(tmp_path / "none.txt")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        read_xmlc(tmp_path)


def test_a_gzip_stream_cut_short(write: Write) -> None:
    content = gzip.compress(b"1000 1 1\n" + b"".join(b"0 0:%d\n" % number for number in range(1000)))
    with pytest.raises(DataError, match=r"data\.txt: .*cut short"):
        read_xmlc(write(content[: len(content) // 2]))


@pytest.mark.parametrize("compression", ["gzip", "bzip2"])
def test_a_damaged_stream(write: Write, compression: str) -> None:
    content = bytearray(COMPRESSIONS[compression](b"1000 1 1\n" + b"".join(b"0 0:%d\n" % n for n in range(1000))))
    content[len(content) // 2] ^= 0xFF
    with pytest.raises(DataError, match=r"data\.txt: .*get it again|data\.txt:\d+: "):
        read_xmlc(write(bytes(content)))


def test_an_archive(write: Write) -> None:
    with pytest.raises(DataError, match="zip archive: unpack it first"):
        read_xmlc(write(b"PK\x03\x04rest"))


@st.composite
def splits(draw: st.DrawFn) -> Split:
    rows, features, labels = draw(st.integers(0, 12)), draw(st.integers(1, 9)), draw(st.integers(1, 6))
    values = st.one_of(
        st.just(0.0),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.integers(1, 99).map(lambda value: value / 100),
    )
    cells = draw(st.lists(values, min_size=rows * features, max_size=rows * features))
    marks = draw(st.lists(st.booleans(), min_size=rows * labels, max_size=rows * labels))
    return Split(
        csr_matrix(np.array(cells, dtype=np.float32).reshape(rows, features)),
        csr_matrix(np.array(marks, dtype=np.float32).reshape(rows, labels)),
    )


def written(split: Split, spell: Callable[[float], str] = repr) -> str:
    lines = [f"{len(split)} {split.features.shape[1]} {split.labels.shape[1]}"]
    for features, labels in zip(split.features, split.labels, strict=True):
        pairs = [
            f"{column}:{spell(float(value))}" for column, value in zip(features.indices, features.data, strict=True)
        ]
        lines.append(" ".join([",".join(map(str, labels.indices)), *pairs]))
    return "\n".join(lines) + "\n"


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(split=splits(), compression=st.sampled_from(sorted(COMPRESSIONS)), block=st.integers(1, 80))
def test_what_is_written_is_read_back(split: Split, compression: str, block: int, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes(COMPRESSIONS[compression](written(split).encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stream, "BLOCK_BYTES", block)
        read = read_xmlc(path)
    assert_same(read.features, split.features)
    assert_same(read.labels, split.labels)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123.,: \n\t-", max_size=40))
def test_the_fast_reader_never_disagrees_with_the_line_reader(text: str) -> None:
    """The line reader reads everything that numpy accepts, with the same result."""
    header = xmlc.Header(99, 3, 3)
    fast = xmlc._read_fast((text + "\n").encode(), header)
    if fast is None:
        return
    slow = xmlc._read_lines(_stream.Block((text + "\n").encode(), 2), header, Path("x"))
    for name in ("features", "values", "feature_counts", "labels", "label_counts"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))


def test_ordinary_files_do_not_need_the_line_reader(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xmlc, "_read_lines", None)
    split = read_xmlc(write("4 9 3\r\n0,2 0:0.5 3:2\r\n 1:1 \r\n\r\n1\t2:1e-5\t8:-12345.678901234567890\r\n"))
    assert split.features.getnnz(axis=1).tolist() == [2, 1, 0, 2]
    assert split.labels.getnnz(axis=1).tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize("file", ["eurlex15k/train.txt.gz", "eurlex15k/test.txt.gz"])
def test_real_data_is_what_scikit_learn_reads(file: str) -> None:
    from sklearn.datasets import load_svmlight_file

    path = real_data(*file.split("/"))
    split = read_xmlc(path)
    with gzip.open(path) as stream:
        header = stream.readline()
        features, label_sets = load_svmlight_file(
            stream, n_features=split.features.shape[1], dtype=np.float32, multilabel=True, zero_based=True
        )
    assert [int(word) for word in header.split()] == [*split.features.shape, split.labels.shape[1]]
    assert_same(split.features, csr_matrix(features))
    columns = [split.labels.indices[a:b] for a, b in zip(split.labels.indptr, split.labels.indptr[1:], strict=False)]
    assert [sorted(map(int, labels)) for labels in label_sets] == [row.tolist() for row in columns]


def test_memory_beside_the_result_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 KB and room of 1,000 entries to spare, so that a file of 4 MB is long."""
    monkeypatch.setattr("fedalc.data.formats.text_stream.BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr("fedalc.data.formats.sparse_builder._GROWTH", 1000)
    features = " ".join(f"{feature}:0.25" for feature in range(100, 200))
    path = tmp_path / "long.txt"
    path.write_text("4000 200 9\n" + f"1,7 {features}\n" * 4000)
    tracemalloc.start()
    split = read_xmlc(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    result = sum(a.nbytes for m in (split.features, split.labels) for a in (m.data, m.indices, m.indptr))
    assert result == 8 * (400_000 + 8_000) + 2 * 4 * 4001
    # A block is 1,600 features; its scratch arrays have some dozens of bytes for each byte of text.
    assert peak < result + 60 * (1 << 14)


@pytest.mark.parametrize("line", ["1 0:0.5 0:0.5", "1 0:1 1:2 0:1", "0:1 0:-1"])
def test_a_feature_twice_in_a_line_is_refused(write: Write, line: str) -> None:
    with pytest.raises(DataError, match=r"data.txt:3: feature 0 occurs twice"):
        read_xmlc(write(f"3 3 2\n0 2:1 0:1\n{line}\n0 0:1\n"))
