"""CSV, TSV and JSON lines as datasets: what is found, what is said, what is refused."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedalc.data import load_dataset
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.load import load_file, load_held
from fedalc.errors import DataError

Write = Callable[..., Path]
WORDS = ["wheat", "corn", "oil", "ship", "gold", "bank", "trade", "rate"]
RECORDS: list[dict[str, Any]] = [
    {
        "id": n,
        "text": f'the {WORDS[n % 8]} and "the {WORDS[(n * 3) % 8]}", number {n}\nnew line, {"x" * (n % 3)}',
        "topics": [WORDS[n % 8], WORDS[(n * 3) % 8]][: 1 + n % 2] if n % 10 else [],
    }
    for n in range(40)
]


def as_csv(records: list[dict[str, Any]], delimiter: str = ",", separator: str = ",") -> str:
    def quoted(value: Any) -> str:
        text = separator.join(value) if isinstance(value, list) else str(value)
        return '"' + text.replace('"', '""') + '"'

    lines = [delimiter.join(records[0])] + [delimiter.join(map(quoted, record.values())) for record in records]
    return "".join(f"{line}\n" for line in lines)


def as_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


WRITTEN = {
    "a.csv": as_csv(RECORDS).encode(),
    "b.csv": b"\xef\xbb\xbf" + as_csv(RECORDS, ";", " | ").replace("\n", "\r\n").encode(),
    "c.tsv": as_csv(RECORDS, "\t", ";").encode(),
    "d.csv.gz": gzip.compress(as_csv([{**r, "topics": repr(r["topics"])} for r in RECORDS]).encode()),
    "e.csv": as_csv([{**r, "topics": json.dumps(r["topics"])} for r in RECORDS]).encode(),
    "f.jsonl": as_lines(RECORDS).encode(),
    "g.jsonl.bz2": bz2.compress(as_lines([{**r, "topics": ",".join(r["topics"]) or None} for r in RECORDS]).encode()),
    "h.json": json.dumps(RECORDS, indent=1).encode(),
}


def test_the_same_records_give_the_same_bits(write: Write) -> None:
    made = {name: load_dataset(write(content, name)) for name, content in WRITTEN.items()}
    assert len({dataset.fingerprint for dataset in made.values()}) == 1
    first = made["a.csv"]
    assert first.label_names == tuple(sorted(set(WORDS)))
    assert (len(first.train), len(first.test)) == (29, 7)
    assert first.notes == (
        "text: column 'text'; labels: column 'topics', separated by ','; 4 records without a label left out; "
        "20 % held out for testing (7 records)",
    )
    assert "separated by '|'" in made["b.csv"].notes[0] and "as lists" in made["d.csv.gz"].notes[0]


def test_what_was_found_gives_the_same_again(write: Write) -> None:
    path = write(WRITTEN["a.csv"], "a.csv")
    first = load_dataset(path)
    assert first.table is not None and first.table.text_columns == ("text",)
    again = load_dataset(path, table=first.table)
    assert (again.fingerprint, again.table) == (first.fingerprint, first.table)
    assert TableSettings().completed(first.table) == first.table
    other = TableSettings(text_columns=("id",))
    assert other.completed(first.table) == other


def test_a_folder_and_a_test_file(write: Write, tmp_path: Path) -> None:
    write(as_csv(RECORDS[:30]), "set/train.csv")
    write(as_csv(RECORDS[30:]), "set/test.csv")
    write(as_csv(RECORDS[30:]), "set2/held.csv")
    folder = load_dataset(tmp_path / "set")
    given = load_dataset(tmp_path / "set" / "train.csv", table=TableSettings(test=str(tmp_path / "set2" / "held.csv")))
    assert folder.fingerprint == given.fingerprint and (len(folder.train), len(folder.test)) == (27, 9)
    with pytest.raises(DataError, match="there are two test files"):
        load_dataset(tmp_path / "set", table=TableSettings(test=str(tmp_path / "set2" / "held.csv")))
    column = load_dataset(
        write(as_csv([{**r, "split": "train" if n < 30 else "Test"} for n, r in enumerate(RECORDS)]), "one.csv")
    )
    assert column.fingerprint == folder.fingerprint
    kept = load_dataset(tmp_path / "set", table=TableSettings(unlabelled="keep"))
    assert (len(kept.train), len(kept.test)) == (30, 10)


def test_labels_txt_names_numbers_and_orders_names(write: Write, tmp_path: Path) -> None:
    write('labels\ttext\n0,2\tone "two" three\n1\tone five\n', "set/train.tsv")
    write("labels\ttext\n3\tone three\n", "set/test.tsv")
    write("red\nblue\ngreen\nred\n", "set/labels.txt")
    dataset = load_dataset(tmp_path / "set")
    assert dataset.label_names == ("red #0", "blue", "green", "red #3")
    assert dataset.train.labels.toarray().tolist() == [[1, 0, 1, 0], [0, 1, 0, 0]]
    assert dataset.test.labels.toarray().tolist() == [[0, 0, 0, 1]]


def test_quotes_that_are_text(write: Write) -> None:
    rows = "".join(f'{n % 2}\t"Word{n}" is one "{n}\n' for n in range(10))
    dataset = load_dataset(write("label\ttext\n" + rows, "a.tsv"), table=TableSettings(test_share=0))
    assert len(dataset.train) == 10 and len(dataset.test) == 0
    assert dataset.label_names == ("0", "1")


def test_numbers(write: Write, tmp_path: Path) -> None:
    rows = [{"id": n, "age": n / 8, "size": 2 * n, "kind": f"k{n % 3}", "label": f"l{n % 2}"} for n in range(10)]
    table = load_dataset(write(as_csv(rows), "a.csv"))
    lines = load_dataset(write(as_lines(rows), "b.jsonl"))
    vectors = [{"embedding": [r["age"], r["size"]], "label": r["label"]} for r in rows]
    listed = load_dataset(write(as_lines(vectors), "c.jsonl"))
    assert table.fingerprint == lines.fingerprint == listed.fingerprint
    assert table.notes[0].startswith("features: columns 'age', 'size'; labels: column 'label'; 20 %")
    assert (table.feature_count, table.label_names) == (2, ("l0", "l1"))
    split, names = load_held(tmp_path / "a.csv")
    assert split.features.shape == (10, 2) and names == ("l0", "l1")
    new = write("size,age\n3,4\n", "new.csv")
    assert load_file(new, 2, table=table.table).features.toarray().tolist() == [[4, 3]]


def test_columns_of_0_and_1(write: Write) -> None:
    rows = [{"comment": f"some words here {n}", "rude": n % 2, "spam": str(n % 3 == 0)} for n in range(12)]
    dataset = load_dataset(write(as_csv(rows), "a.csv"), table=TableSettings(unlabelled="keep"))
    assert dataset.label_names == ("rude", "spam")
    assert "labels: columns 'rude', 'spam' of 0 and 1" in dataset.notes[0]
    tags = [{"x1": n, "tag_b": n % 2, "tag_a": 1} for n in range(12)]
    assert load_dataset(write(as_csv(tags), "b.csv")).label_names == ("tag_b", "tag_a")


def test_two_columns_of_text(write: Write) -> None:
    rows = [{"title": f"word{n % 5}", "body": f"some text {n}", "tags": "a;b"} for n in range(10)]
    both = load_dataset(write(as_csv(rows), "a.csv"))
    assert both.table is not None and both.table.text_columns == ("title", "body")
    joined = [{"text": f"{r['title']}\n{r['body']}", "tags": r["tags"]} for r in rows]
    assert both.fingerprint == load_dataset(write(as_csv(joined), "b.csv")).fingerprint
    one = load_dataset(write(as_csv(rows), "a.csv"), table=TableSettings(text_columns=("body",)))
    assert one.feature_count < both.feature_count


def test_texts_in_files(write: Write, tmp_path: Path) -> None:
    for n in range(10):
        write(f"the text of document {n}", f"texts/{n}.txt")
    listed = write("file,labels\n" + "".join(f"texts/{n}.txt,l{n % 2}\n" for n in range(10)), "list.csv")
    dataset = load_dataset(listed)
    assert dataset.notes[0].startswith("text: the files named in column 'file'")
    written = [{"text": f"the text of document {n}", "labels": f"l{n % 2}"} for n in range(10)]
    assert dataset.fingerprint == load_dataset(write(as_csv(written), "b.csv")).fingerprint
    write("file,labels\ntexts/0.txt,a\n../x.txt,b\n", "list.csv")
    with pytest.raises(DataError, match=r"list\.csv:3: .*leads out of"):
        load_dataset(listed)


GOOD = "text,labels\nsome words here,a\n"
WRONG = {
    "": r"a\.csv: is empty$",
    "text,labels\n": r"a\.csv: has no records$",
    GOOD + "b,c,d\n": r"a\.csv:3: has 3 fields, but there are 2 columns\. A field that contains the delimiter \(,\)",
    GOOD + 'x,"never closed\nmore\n': r"a\.csv:3: a quote is opened in this record and never closed$",
    GOOD + '"x"y,b\n': r"a\.csv:3: text follows a closing quote; write a quote within a quoted field twice$",
    "text,labels\rsome words,b\r": r"a\.csv:1: has line ends of another kind \(CR alone\)",
    "text,labels,labels\nx,y,z\n": r"a\.csv:1: two columns are called 'labels'",
    "text,labels\nsome words here,\n": r"no train record has a label",
    "one,two,three\nsome words here and more,b,c\n": r"no column is called labels, .*--label-column NAME, in",
    "text,content,labels\na b,c d,e\n": r"'text', 'content' could each be it; choose with --text-column",
    "text,tags,topics\na b,c d,e\n": r"'tags', 'topics' could each be it; choose with --label-column",
    "a,b\n1,2\n3,4\n": r"which columns are labels\? Say it: --label-column",
    "name,labels\nx,a\ny,b\n": r"no column looks like text or numbers",
    "labels,size\na,1\nb,\n": r"a\.csv:3: column 'size': is empty; fill in missing values, or leave these records out$",
    "labels,size\na,1\nb,nan\n": r"a\.csv:3: column 'size': nan is not a finite",
    "labels,size,age\na,1,2\nb,2,old\n" + "c,3,4\n" * 20: r"a\.csv: column 'age' holds numbers, but also 'old'",
    "labels;size\na;1\nb;2\n" + "c;2\n" * 1000 + "d;1,5\n":
        r"a\.csv:1004: column 'size': '1,5' is not a number; write 1\.5",
    "text,rude,spam\nsome long words in a row,0,1\n" + "some long words in a row,1,0\n" * 1000 + "x,1,2\n":
        r"a\.csv:1003: column 'spam': '2', where 0 or 1 is expected$",
    "text,labels\nx,\"['a']\"\ny,\"['a]\"\n": r"a\.csv:3: column 'labels': \"'a\" is not an item of a list$",
    "text,labels\nsome words here,a\n": r"a\.csv: 1 records, 1 of them different, are too few to hold out",
    "text,labels\nsome words here,\"a\x07\"\n" + "some words,b\nwords here,b\n" * 3: r"control character",
}  # fmt: skip


@pytest.mark.parametrize("content", WRONG)
def test_tables_that_cannot_be_read(write: Write, content: str) -> None:
    with pytest.raises(DataError, match=WRONG[content]):
        load_dataset(write(content, "a.csv"))


LINES = '{"text": "some words", "labels": ["a"]}\n'
WRONG_LINES = {
    "": r"a\.jsonl: has no records$",
    LINES + "{\n": r"a\.jsonl:2: not JSON, column 2: .*Each line should hold one object$",
    LINES + "3\n": r"a\.jsonl:2: expected an object, \{…\}, found '3'$",
    "[1]": r"a\.jsonl: record 1: expected an object",
    "[1, 2]\n3\n": r"a\.jsonl: not JSON, line 2, .*\. A file that begins with \[ should be one list of objects",
    LINES + "[" * 100_000 + "\n": r"a\.jsonl:2: nested more than 64 levels deep",
    LINES + '{"text": "b", "labels": "\xff"}\n': r"a\.jsonl:2: is not UTF-8 text; save it as UTF-8",
    '{"x": [1, 2], "labels": "a"}\n{"x": [1], "labels": "a"}\n': r"no column looks like text or numbers",
    LINES + '{"text": {"title": "b"}, "labels": "a"}\n':
        r"a\.jsonl:2: column 'text': expected a text, found an object, \{'title': 'b'\}\. Write .*--text-column",
    LINES + '{"text": "b", "labels": [{"name": "a"}]}\n':
        r"a\.jsonl:2: column 'labels': expected a label or a list of labels, found a list, \[\{'name': 'a'\}\]",
    LINES + '{"text": "b", "labels": [null, 1]}\n':
        r"a\.jsonl:2: column 'labels': labels of several types: 1 \(int\), and before it 'a' \(text\)\. Write them all",
    LINES + '{"text": "b", "labels": {"name": "a"}}\n': r"a\.jsonl:2: column 'labels': .*found an object",
    '{"x": [1, 2], "labels": "a"}\n' * 1000 + '{"x": [1], "labels": "b"}\n':
        r"a\.jsonl:1001: column 'x': is a list of 1, not of 2 numbers$|has 1 features, but records before it 2$",
}  # fmt: skip


@pytest.mark.parametrize("content", WRONG_LINES)
def test_json_lines_that_cannot_be_read(write: Write, content: str) -> None:
    with pytest.raises(DataError, match=WRONG_LINES[content]):
        load_dataset(write(content.encode("latin-1"), "a.jsonl"))


SWAPPED = "text,labels\n" + "some words here,sport and games as a whole\nother words,trade of goods\n" * 5


@pytest.mark.parametrize("table", [{"text_columns": ("labels",)}, {"label_columns": ("text",)}])
def test_text_and_labels_are_not_swapped_silently(write: Write, table: dict[str, Any]) -> None:
    path = write(SWAPPED, "a.csv")
    with pytest.raises(DataError, match=r"the text would be the column 'labels', which by its name .*--label-column"):
        load_dataset(path, table=TableSettings(**table))
    both = {"text_columns": "labels", "label_columns": ["text"], "test_share": 0}  # a dict is as good
    assert load_dataset(path, table=both).label_names == ("other words", "some words here")
    with pytest.raises(DataError, match="the column 'text' cannot be both labels and something to learn from"):
        load_dataset(path, table=TableSettings(text_columns=("text",), label_columns=("text",)))
    named = write(
        "keywords,topic\n" + "red apples and green pears,fruit\nblue skies after some rain,weather\n" * 5, "b.csv"
    )
    assert load_dataset(named, table=TableSettings(text_columns=("keywords",), test_share=0)).label_count == 2
    assert load_dataset(named, table=TableSettings(label_columns=("topic",), test_share=0)).label_count == 2


def test_objects_are_not_taken_for_the_longest_text(write: Write) -> None:
    line = '{"meta": {"source": "the archive of a long name"}, "words": "some plain words in a row", "labels": "a"}\n'
    dataset = load_dataset(write(line * 3, "a.jsonl"), table=TableSettings(test_share=0))
    assert dataset.notes[0].startswith("text: column 'words'")
    path = write('{"parts": [{"title": "b"}], "labels": "a"}\n' * 3, "b.jsonl")
    with pytest.raises(DataError, match=r"b\.jsonl:1: column 'parts': expected a text, found a list, \[\{'title'"):
        load_dataset(path, table=TableSettings(text_columns=("parts",)))


def test_settings_that_do_not_fit(write: Write) -> None:
    path = write(as_csv(RECORDS), "a.csv")
    with pytest.raises(DataError, match=r"there is no column 'txt' \(table.text_columns\): did you mean 'text'\?"):
        load_dataset(path, table=TableSettings(text_columns=("txt",)))
    with pytest.raises(DataError, match=r"a\.csv: is UTF-16 text"):
        load_dataset(write("text,labels\n".encode("utf-16"), "a.csv"))
    latin = write("text;labels\ncafé crème ici;a\nthé crème là;b\n".encode("cp1252"), "b.csv")
    with pytest.raises(DataError, match=r"b\.csv:2: is not UTF-8 text; .*table\.encoding=cp1252"):
        load_dataset(latin)
    read = load_dataset(latin, table=TableSettings(encoding="cp1252", test_share=0))
    assert read.label_names == ("a", "b")
    bare = write("some words,a\nother words,b\n", "c.csv")
    settings = TableSettings(header=False, text_columns=("1",), label_columns=("2",), test_share=0)
    assert len(load_dataset(bare, table=settings).train) == 2
    with pytest.raises(DataError, match="on which real parties agree first"):
        load_held(write(as_csv(RECORDS), "a.csv"))


PACKED = gzip.compress(("text,labels\n" + "some words,a\nother words,b\n" * 50).encode())
NOT_TEXT = {
    "cut.csv.gz": (PACKED[: len(PACKED) // 2], "ends too early: the file was cut short"),
    "checksum.csv.gz": (PACKED[:-5] + b"12345", r"the compressed file is damaged: it cannot be unpacked \(.*get it"),
    "head.csv.gz": (b"\0" + PACKED[1:], "the compressed file is damaged, or something else: .* as gzip does"),
    "noise.csv": (bytes(range(256)) * 3, "is not text but binary data"),
    "noise.tsv": (bytes(range(256)) * 3, "is not text but binary data"),
    "later.csv": (b"text,labels\nsome words,a\n\x00\xff\x01,b\n", "is not text but binary data"),
    "noise.jsonl": (bytes(range(128, 256)) + bytes(200), "is not text but binary data"),
    "table.csv": (b"\xd0\xcf\x11\xe0" + bytes(100), "is an old Excel or Word file, not text"),
    "new.csv": (b"PK\x03\x04" + bytes(100), "is a zip archive: .*save an Excel file as CSV"),
    "wide.csv": ("text,labels\nsome words,a\n".encode("utf-16-le"), "binary data, or UTF-16 text"),
    "latin.csv": ("text,labels\ncafé,a\n".encode("cp1252"), "is not UTF-8 text; save it"),
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_what_is_not_text_is_not_blamed_on_its_encoding(write: Write, name: str) -> None:
    content, message = NOT_TEXT[name]
    with pytest.raises(DataError, match=message):
        load_dataset(write(content, name))


def test_commas_in_names_of_classes(write: Write) -> None:
    rows = [{"text": f"some words {n}", "category": ["Arts, Crafts", "Home, Garden"][n % 2]} for n in range(10)]
    assert load_dataset(write(as_csv(rows), "a.csv")).label_names == ("Arts, Crafts", "Home, Garden")
    settings = TableSettings(label_separator=",")
    assert len(load_dataset(write(as_csv(rows), "a.csv"), table=settings).label_names) == 4


PAIRS = (("rain", "sky"), ("apple", "fruit"))


def test_a_first_line_that_looks_like_a_record_is_told(tmp_path: Path) -> None:
    lines = [f"the {weather} of day {day} was noted,{label}" for day in range(10) for weather, label in PAIRS]
    (tmp_path / "a.csv").write_text("the rain of some other day was noted,sky\n" + "\n".join(lines))
    with pytest.warns(UserWarning, match=r"'sky' has a label of the same name.*table.header=false"):
        load_dataset(tmp_path / "a.csv")
    both = load_dataset(tmp_path / "a.csv", table=TableSettings(header=False, test_share=0.0))
    assert len(both.train) == 21
