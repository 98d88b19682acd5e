from __future__ import annotations

import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedalc.data import ImageOptions, Images, load_dataset
from fedalc.data.catalog import datasets as catalog
from fedalc.data.check import check
from fedalc.data.formats.voc import LABELS, VARIANTS, read_voc
from fedalc.data.storage import Place
from fedalc.errors import DataError
from tests.data.conftest import real_data
from tests.data.layouts import Files, annotation, pack, picture, voc, write_files

SMALL = ImageOptions(size=8)
MAIN = "VOCdevkit/VOC2012/ImageSets/Main/"
XML = "VOCdevkit/VOC2012/Annotations/"


def names_of(row: np.ndarray) -> set[str]:
    return {LABELS[label] for label in np.flatnonzero(row)}


def store(folder: Path, files: Files, how: str) -> Path:
    return write_files(folder, files) if how == "loose" else pack(folder / f"any-name{how}", files)


@pytest.mark.parametrize("how", ["loose", ".tar", ".tar.gz"])
@pytest.mark.parametrize("root", ["VOCdevkit/", "", "somewhere/VOCdevkit/"])
def test_2012_trains_on_train_and_tests_on_val(tmp_path: Path, how: str, root: str) -> None:
    store(tmp_path / "voc2012", voc(root=root), how)
    dataset = load_dataset("voc2012", tmp_path, images=SMALL)
    assert (len(dataset.train), len(dataset.test), dataset.validation) == (2, 1, None)
    assert dataset.label_names == LABELS and dataset.feature_count == 8 * 8 * 3
    assert isinstance(dataset.train.features, Images)
    assert [Path(name).stem for name in dataset.train.features.names] == ["000001", "000003"]
    assert [names_of(row) for row in dataset.train.labels.toarray()] == [{"dog", "person"}, {"sofa"}]
    assert [names_of(row) for row in dataset.test.labels.toarray()] == [{"person", "cat"}]
    np.testing.assert_allclose(dataset.train.features.pixels()[:, 4, 4, 0], [0, 120], atol=4)


def test_difficult_objects_count_unless_they_are_not_wanted(tmp_path: Path) -> None:
    write_files(tmp_path / "voc2012", voc())
    load_dataset("voc2012", tmp_path, images=SMALL)
    dataset = load_dataset("voc2012", tmp_path, images=ImageOptions(size=8, difficult=False))
    assert [names_of(row) for row in dataset.train.labels.toarray()] == [{"dog"}, set()]


def test_2007_trains_on_trainval_and_tests_on_test_from_its_two_archives(tmp_path: Path) -> None:
    files = voc("2007")
    of_test = {name: content for name, content in files.items() if "000004" in name or name.endswith("test.txt")}
    pack(tmp_path / "voc2007/VOCtrainval_06-Nov-2007.tar", {n: c for n, c in files.items() if n not in of_test})
    pack(tmp_path / "voc2007/VOCtest_06-Nov-2007.tar", of_test)
    dataset = load_dataset("voc2007", tmp_path, images=SMALL)
    assert (len(dataset.train), len(dataset.test)) == (3, 1)
    assert names_of(dataset.test.labels.toarray()[0]) == {"tvmonitor", "aeroplane"}


def test_the_paper_s_split_leaks_and_shares_the_small_copies(tmp_path: Path, own_cache: Path) -> None:
    write_files(tmp_path / "voc2012", voc())
    clean = load_dataset("voc2012", tmp_path, images=SMALL)
    leaking = load_dataset("voc2012-leaking", tmp_path, images=SMALL)
    assert (len(leaking.train), len(leaking.test)) == (3, 1)
    assert set(leaking.test.features.names) <= set(leaking.train.features.names)
    assert not set(clean.test.features.names) & set(clean.train.features.names)
    assert len([path for path in own_cache.iterdir() if path.is_dir()]) == 1


def test_another_year_beside_it_is_left_alone(tmp_path: Path) -> None:
    other = {name: b"not even XML" for name in voc("2007")}
    write_files(tmp_path, voc() | other)
    assert len(read_voc(Place(tmp_path), VARIANTS["2012"]).pictures) == 3
    with pytest.raises(DataError, match=r"not well-formed XML"):
        read_voc(Place(tmp_path), VARIANTS["2007"])


def test_a_second_load_reads_no_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "voc2012/x.tar.gz", voc())
    first = load_dataset("voc2012", tmp_path, images=SMALL)
    opened: list[Path] = []
    real = tarfile.open
    monkeypatch.setattr(tarfile, "open", lambda *a, **k: opened.append(a[0]) or real(*a, **k))
    again = load_dataset("voc2012", tmp_path, images=SMALL)
    assert opened == [] and again.fingerprint == first.fingerprint
    path.write_bytes(path.read_bytes() + b"\0")
    load_dataset("voc2012", tmp_path, images=SMALL)
    assert opened == [path, path], "once for the annotations, once for the pictures"


def test_a_skipped_picture_takes_its_labels_with_it(tmp_path: Path) -> None:
    files = voc()
    files["VOCdevkit/VOC2012/JPEGImages/000001.jpg"] = b"no picture"
    write_files(tmp_path / "voc2012", files)
    with pytest.raises(DataError, match=r"JPEGImages/000001\.jpg cannot be decoded"):
        load_dataset("voc2012", tmp_path, images=SMALL)
    with pytest.warns(UserWarning, match=r"1 of 3 pictures left out: VOCdevkit/VOC2012/JPEGImages/000001\.jpg"):
        dataset = load_dataset("voc2012", tmp_path, images=ImageOptions(size=8, broken="skip"))
    assert [names_of(row) for row in dataset.train.labels.toarray()] == [{"sofa"}]
    assert [names_of(row) for row in dataset.test.labels.toarray()] == [{"person", "cat"}]
    files["VOCdevkit/VOC2012/JPEGImages/000002.jpg"] = b"no picture"
    write_files(tmp_path / "voc2012", files)
    with pytest.warns(UserWarning), pytest.raises(DataError, match="none of the pictures of its test split"):
        load_dataset("voc2012", tmp_path, images=ImageOptions(size=8, broken="skip"))


BAD_XML = {
    "cut short": (annotation("x", [("dog", False)])[:-60], r"000001\.xml:\d+: is not well-formed XML: "),
    "empty": (b"", r"not well-formed XML: no element found"),
    "other root": (b"<html></html>", r"000001\.xml:1: begins with <html>, but should begin with <annotation>"),
    "unknown class": (annotation("x", [("unicorn", False)]), r"'unicorn' is not one of VOC's 20 classes"),
    "no name": (b"<annotation>\n<object>\n</object></annotation>", r"xml:3: an <object> without a <name>"),
    "bad flag": (
        annotation("x", [("dog", False)]).replace(b"<difficult>0", b"<difficult>2"),
        "<difficult>: '2' is neither 0 nor 1",
    ),
    "too large": (b"<annotation>" + b" " * (1 << 20), "is larger than 1 MB"),
    "too deep": (b"<annotation>" * 50, "nested too deeply"),
    "entities": (
        b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><annotation>&b;</annotation>',
        "refused: an annotation has no DOCTYPE",
    ),
    "a file": (
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>',
        "refused: an annotation has no DOCTYPE",
    ),
    "hidden": (
        '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY a "b">]><annotation/>'.encode("utf-16"),
        "refused: an annotation has no DOCTYPE",
    ),
}


@pytest.mark.parametrize("kind", BAD_XML)
def test_annotations_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    content, message = BAD_XML[kind]
    write_files(tmp_path, voc() | {f"{XML}000001.xml": content})
    with pytest.raises(DataError, match=message) as raised:
        read_voc(Place(tmp_path), VARIANTS["2012"])
    assert "000001.xml" in str(raised.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({f"{MAIN}train.txt": b"000001\n../../x\n"}, r"train\.txt:2: '\.\./\.\./x' is not a picture's name"),
        ({f"{MAIN}train.txt": b"000001\n\n000001\n"}, r"train\.txt:3: 000001 is listed a second time"),
        ({f"{MAIN}train.txt": b"\n"}, r"train\.txt: lists no pictures"),
        ({f"{MAIN}train.txt": b"000001\n7\n8\n"}, r"VOC2012/Annotations/7\.xml is not there, nor are 1 others"),
        ({"copy/" + name: content for name, content in voc().items()}, "has VOC 2012 more than once"),
    ],
)
def test_lists_that_cannot_be_used(tmp_path: Path, files: Files, message: str) -> None:
    write_files(tmp_path, voc() | files)
    with pytest.raises(DataError, match=message):
        read_voc(Place(tmp_path), VARIANTS["2012"])


def test_nothing_of_the_kind(tmp_path: Path) -> None:
    write_files(tmp_path / "voc2007", {"x.jpg": picture()})
    with pytest.raises(DataError, match=r"no VOC 2007 here: expected trainval\.txt and test\.txt in VOCdevkit/VOC2007"):
        load_dataset("voc2007", tmp_path)
    with pytest.raises(DataError, match="dataset 'voc2012' is not here"):
        load_dataset("voc2012-leaking".removesuffix("-leaking"), tmp_path)


@pytest.mark.long
def test_the_real_one_is_as_published(own_cache: Path) -> None:
    root = real_data("voc2012").parent
    notes: list[str] = []
    dataset = load_dataset("voc2012", root, images=ImageOptions(size=32, tell=notes.append))
    assert [line for line in check(dataset, catalog.entry("voc2012")) if not line.ok] == [] and notes == []
    assert (len(dataset.train), len(dataset.test), dataset.label_count) == (5717, 5823, 20)
    # The devkit's own lists of a class have 1 where an object is not difficult: the labels agree with each of them.
    easy = load_dataset("voc2012", root, images=ImageOptions(size=32, difficult=False))
    lists = {}
    for file in Place(root / "voc2012").matching(re.compile(rf"{MAIN}[a-z]+_(?:train|val)\.txt")):
        label, _, part = Path(file.name).stem.rpartition("_")
        rows = [line.split() for line in file.read(1 << 30).decode().splitlines()]
        lists[label, part] = {stem for stem, flag in rows if flag == "1"}
    assert len(lists) >= 40
    for part, split in (("train", easy.train), ("val", easy.test)):
        stems = np.array([Path(name).stem for name in split.features.names])
        for at, label in enumerate(LABELS):
            assert set(stems[split.labels[:, at].toarray().ravel() > 0]) == lists[label, part]
    leaking = load_dataset("voc2012-leaking", root, images=ImageOptions(size=32))
    assert [line for line in check(leaking, catalog.entry("voc2012-leaking")) if not line.ok] == []
