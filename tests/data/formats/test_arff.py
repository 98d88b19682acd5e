from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedalc.data.catalog.datasets import entry
from fedalc.data.dataset import Split
from fedalc.data.formats import text_stream as _stream
from fedalc.data.formats.arff import _RowParser, read_arff
from fedalc.data.formats.arff_header import LabelRule, read_arff_header
from fedalc.errors import DataError
from tests.data.conftest import COMPRESSIONS, real_data
from tests.data.formats.test_xmlc import assert_same, splits

Write = Callable[..., Path]

HEADER = "@relation r\n@attribute a numeric\n@attribute b {0,1}\n@attribute x {0,1}\n@attribute y {0,1}\n@data\n"
LAST_TWO = LabelRule(last=2)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_sparse_file_worked_by_hand(write: Write, compression: str) -> None:
    """An empty instance keeps its position; blank lines and comments are not instances."""
    text = HEADER + "{0 0.5,2 1}\n{}\n\n% {0 1}\n{ }\n{1 1,2 1,3 1}\n"
    read = read_arff(write(COMPRESSIONS[compression](text.encode()), "data.arff"), LAST_TWO)
    np.testing.assert_array_equal(read.split.features.toarray(), [[0.5, 0], [0, 0], [0, 0], [0, 1]])
    np.testing.assert_array_equal(read.split.labels.toarray(), [[1, 0], [0, 0], [0, 0], [1, 1]])
    assert read.feature_names == ("a", "b")
    assert read.label_names == ("x", "y")


def test_a_dense_file_worked_by_hand(write: Write) -> None:
    read = read_arff(write(HEADER + "0.5,1,0,1\n-2, 0 ,1,0\n\n0,0,0,0"), LAST_TWO)
    np.testing.assert_array_equal(read.split.features.toarray(), [[0.5, 1], [-2, 0], [0, 0]])
    np.testing.assert_array_equal(read.split.labels.toarray(), [[0, 1], [1, 0], [0, 0]])


@pytest.mark.parametrize(
    "rows",
    [
        "{0 2,2 1}\r\n{}\r\n",
        "{ 0 2 , 2 1 }\n{\t}\n",
        "{0\t2, 2  1}\n{}",
        "{0 '2',2 \"1\"}\n{1 0,3 0}\n",
        "{2 1,0 2}\n{}\n",
    ],
    ids=["crlf", "spaces", "tabs", "quotes and zeros", "order"],
)
def test_spellings_of_the_same_rows(write: Write, rows: str) -> None:
    read = read_arff(write(HEADER + rows), LAST_TWO)
    np.testing.assert_array_equal(read.split.features.toarray(), [[2, 0], [0, 0]])
    np.testing.assert_array_equal(read.split.labels.toarray(), [[1, 0], [0, 0]])
    assert read.split.features.nnz == read.split.labels.nnz == 1


def test_spellings_of_the_header(write: Write) -> None:
    text = (
        "% a comment\n\n@RELATION 'it''s'\n@Attribute 'with space' REAL % why\n@attribute \"it\\'s\" integer\n"
        "@ATTRIBUTE x\t{ 0 , 1 }\n@attribute TAG_y{0,1}\n  @DATA  \n{0 1,3 1}\n"
    )
    read = read_arff(write(text), LAST_TWO)
    assert read.feature_names == ("with space", "it's")
    assert read.label_names == ("x", "TAG_y")


def test_a_prefix_says_which_are_labels_and_is_left_out_of_names(write: Write) -> None:
    text = "@relation r\n@attribute T_x {0,1}\n@attribute a numeric\n@attribute T_y {0,1}\n@data\n{0 1,1 3}\n"
    read = read_arff(write(text), LabelRule(prefix="T_"))
    assert read.label_names == ("x", "y")
    np.testing.assert_array_equal(read.split.labels.toarray(), [[1, 0]])
    np.testing.assert_array_equal(read.split.features.toarray(), [[3]])


@pytest.mark.parametrize(("option", "names"), [("-C 1", ("a",)), ("-C -3", ("b", "x", "y"))])
def test_meka_says_which_are_labels(write: Write, option: str, names: tuple[str, ...]) -> None:
    text = HEADER.replace("relation r", f"relation 'r: {option}'").replace("a numeric", "a {0,1}")
    assert read_arff(write(text + "{0 1}\n")).label_names == names


XML = '<?xml version="1.0" encoding="utf-8"?><labels xmlns="http://mulan.sourceforge.net/labels">{}</labels>'


@pytest.mark.parametrize("name", ["set-train.xml", "set.xml", "labels.xml"])
def test_mulan_says_which_are_labels(write: Write, name: str) -> None:
    """In any order, including nested labels."""
    write(XML.format('<label name="y"><label name="b"/></label>'), name)
    read = read_arff(write(HEADER + "{0 7,3 1}\n", "set-train.arff"))
    assert read.label_names == ("b", "y")
    assert read.feature_names == ("a", "x")
    np.testing.assert_array_equal(read.split.labels.toarray(), [[0, 1]])


def test_two_that_disagree_on_the_labels(write: Write) -> None:
    write(XML.format('<label name="y"/>'), "labels.xml")
    with pytest.raises(DataError, match=r"gives 1 labels and the last 2 attributes gives 2, but"):
        read_arff(write(HEADER + "{}\n"), LAST_TWO)


def test_labels_are_not_guessed(write: Write) -> None:
    with pytest.raises(DataError, match=r"labels\.xml.*-C n"):
        read_arff(write(HEADER + "{}\n"))


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ('<!DOCTYPE labels [<!ENTITY e "x">]><labels><label name="&e;"/></labels>', "document type"),
        ("<labels><label name='x'>", r"labels\.xml:1: is not well-formed"),
        ("<labels/>", "has no <label"),
        ("<labels><label name='z'/></labels>", "'z' is not an attribute"),
    ],
)
def test_a_bad_list_of_labels(write: Write, xml: str, message: str) -> None:
    write(xml, "labels.xml")
    with pytest.raises(DataError, match=message):
        read_arff(write(HEADER + "{}\n"))


BAD_ROWS = {
    "{0 1,2": "does not end with",
    "{0 1,2}": "'2'",
    "{0 1,,2 1}": "''",
    "{0 1 2 1}": "'0 1 2 1'",
    "{4 1}": "attribute 4 is out of range",
    "{-1 1}": "'-1'",
    "{0.5 1}": "'0.5'",
    "{0 x}": "'x'",
    "{0 ?}": "missing",
    "{0 nan}": "finite",
    "{0 1e39}": "finite",
    "{2 2}": "'x' should be 0 or 1",
    "{1 0.5}": "'b' should be 0 or 1",
    "1,1,1": "3 values in a row",
    "1,1,1,1,1": "5 values in a row",
    "1,,1,1": "'b' should be a number",
    "1 1 1 1": "1 values in a row",
    "?,1,1,1": "missing",
    "1,1,1,3": "'y' should be 0 or 1",
    "{0 1},": "does not end with",
    "0 1}": "1 values in a row",
}


@pytest.mark.parametrize("row", BAD_ROWS)
@pytest.mark.parametrize("block", [8, 1 << 18])
def test_a_bad_row_is_named(write: Write, monkeypatch: pytest.MonkeyPatch, row: str, block: int) -> None:
    monkeypatch.setattr(_stream, "BLOCK_BYTES", block)
    good = "{0 1,2 1}" if "{" in row else "1,0,0,1"
    path = write(f"{HEADER}{good}\n\n{row}\n{good}\n")
    with pytest.raises(DataError) as error:
        read_arff(path, LAST_TWO)
    assert str(error.value).startswith(f"{path}:9: ")
    assert BAD_ROWS[row] in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "empty"),
        ("@relation r\n@attribute a numeric\n", 2, "no `@data` line"),
        ("@relation r\n@data\n", 2, "before any `@attribute`"),
        ("@relation r\n@attribute a string\n@data\n", 2, "'string'"),
        ("@relation r\n@attribute a\n@data\n", 2, "has type"),
        ("@relation r\n@attribute a {yes,no}\n@data\n", 2, "not numbers"),
        ("@relation r\n@attribute a real\n@attribute a real\n@data\n", 3, "already in line 2"),
        ("@relation r\nattribute a real\n", 2, "expected `@relation`"),
    ],
)
def test_a_bad_header(write: Write, text: str, line: int | None, message: str) -> None:
    path = write(text)
    with pytest.raises(DataError) as error:
        read_arff(path, LAST_TWO)
    assert str(error.value).startswith(f"{path}: " if line is None else f"{path}:{line}: ")
    assert message in str(error.value)


def test_a_sparse_row_cannot_leave_out_what_is_not_zero(write: Write) -> None:
    path = write(HEADER.replace("b {0,1}", "b {1,0}") + "1,0,0,1\n{0 1}\n")
    with pytest.raises(DataError, match=r":8: .*'b', whose first value is not 0"):
        read_arff(path, LAST_TWO)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(split=splits(), dense=st.booleans(), compression=st.sampled_from(sorted(COMPRESSIONS)), block=st.integers(1, 80))
def test_what_is_written_is_read_back(split: Split, dense: bool, compression: str, block: int, tmp_path: Path) -> None:
    features, labels = split.features.toarray(), split.labels.toarray()
    lines = ["@relation r"]
    lines += [f"@attribute f{column} numeric" for column in range(features.shape[1])]
    lines += [f"@attribute l{column} {{0,1}}" for column in range(labels.shape[1])]
    lines.append("@data")
    for row in np.hstack([features, labels]):
        if dense:
            lines.append(",".join(repr(float(value)) for value in row))
        else:
            lines.append("{" + ",".join(f"{at} {float(row[at])!r}" for at in np.flatnonzero(row)) + "}")
    path = tmp_path / "data.arff"
    path.write_bytes(COMPRESSIONS[compression](("\n".join(lines) + "\n").encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stream, "BLOCK_BYTES", block)
        read = read_arff(path, LabelRule(last=labels.shape[1]))
    assert_same(read.split.features, split.features)
    assert_same(read.split.labels, split.labels)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="0123., {}\n\t", max_size=40))
def test_the_fast_reader_never_disagrees_with_the_line_reader(text: str, tmp_path: Path) -> None:
    path = tmp_path / "header.arff"
    path.write_text(HEADER)
    with _stream.LineReader(path) as reader:
        parser = _RowParser(read_arff_header(reader), np.array([False, False, True, True]), path)
    fast = parser.read_fast((text + "\n").encode())
    if fast is None:
        return
    slow = parser.read_lines(_stream.Block((text + "\n").encode(), 1))
    for name in ("attributes", "values", "counts"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))


@pytest.mark.parametrize(("split", "instances"), [("train", 4880), ("test", 2515)])
def test_bibtex_is_what_liac_arff_reads(split: str, instances: int) -> None:
    import arff as liac_arff

    path = real_data("bibtex", f"bibtex-{split}.arff.gz")
    with gzip.open(path) as stream:
        content = stream.read()
    assert hashlib.sha256(content).hexdigest() == entry("bibtex").sha256[f"bibtex-{split}.arff"]
    read = read_arff(path, LabelRule(prefix="TAG_"))
    assert read.split.features.shape == (instances, 1836)
    assert read.split.labels.shape == (instances, 159)
    twin = liac_arff.load(io.StringIO(content.decode()), return_type=liac_arff.LOD)
    names = [name for name, _ in twin["attributes"]]
    assert names == [*read.feature_names, *(f"TAG_{name}" for name in read.label_names)]
    for row, expected in enumerate(twin["data"]):
        found = [*read.split.features[row].indices, *(read.split.labels[row].indices + 1836)]
        assert found == [column for column, value in sorted(expected.items()) if value == "1"]
    assert set(np.unique(read.split.features.data)) == {1.0}


@pytest.mark.parametrize("row", ["{0 1,0 1}", "{0 1,1 2,0 3}"])
def test_an_attribute_twice_in_a_row_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "x.arff"
    path.write_text(
        f"@relation 'r: -C -1'\n@attribute a numeric\n@attribute b numeric\n@attribute y {{0,1}}\n@data\n{{}}\n{row}\n"
    )
    with pytest.raises(DataError, match=r"x.arff:7: attribute 0 \('a'\) occurs twice"):
        read_arff(path)
