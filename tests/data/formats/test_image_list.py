"""The user's own pictures, in a folder with train.csv and test.csv."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedalc.data import Dataset, ImageOptions, Images, load, load_dataset
from fedalc.data.load import format_of, has_pictures, load_held
from fedalc.errors import DataError
from tests.data.layouts import Files, coco, flair, pack, picture, voc, write_files

SMALL = ImageOptions(size=8)
TRAIN = "picture,labels,user\na.png,dog|cat,anna\nsub/b.jpg,,bob\nc.png,dog,anna\n"
TEST = "picture,labels\nd.png,bird\n"
PICTURES: Files = {
    "a.png": picture((10, 0, 0), kind="PNG"),
    "sub/b.jpg": picture((60, 0, 0)),
    "c.png": picture((120, 0, 0), kind="PNG"),
    "d.png": picture((180, 0, 0), kind="PNG"),
}


def own(folder: Path, train: str = TRAIN, test: str = TEST, **more: str) -> Path:
    """Make a folder with these lists, `more` text files by name, and the pictures."""
    lists = {"train.csv": train, "test.csv": test, **more}
    return write_files(folder, PICTURES | {name: text.encode() for name, text in lists.items()})


def labels_of(dataset: Dataset, split: str) -> list[set[str]]:
    return [
        {dataset.label_names[label] for label in np.flatnonzero(row)} for row in dataset.splits[split].labels.toarray()
    ]


def test_lists_of_pictures_become_a_dataset(tmp_path: Path) -> None:
    own(tmp_path / "mine")
    for _ in range(2):  # read, then from the cache
        dataset = load_dataset(tmp_path / "mine", images=SMALL)
        assert (dataset.name, dataset.label_names) == ("mine", ("bird", "cat", "dog"))
        assert isinstance(dataset.train.features, Images)
        assert dataset.train.features.names == ("a.png", "sub/b.jpg", "c.png")
        assert labels_of(dataset, "train") == [{"cat", "dog"}, set(), {"dog"}]
        assert labels_of(dataset, "test") == [{"bird"}] and dataset.validation is None
        assert dataset.users == ("anna", "bob", "anna")
        np.testing.assert_allclose(dataset.train.features.pixels()[:, 4, 4, 0], [10, 60, 120], atol=2)


@pytest.mark.parametrize("name", ["validation.csv", "valid.csv", "dev.csv"])
def test_a_list_for_validation(tmp_path: Path, name: str) -> None:
    own(tmp_path, "picture,labels\na.png,dog\n", **{name: "picture,labels\nc.png,cat\n"})
    dataset = load_dataset(str(tmp_path), images=SMALL)
    assert labels_of(dataset, "validation") == [{"cat"}] and dataset.label_names == ("bird", "cat", "dog")
    assert dataset.users is None


def test_two_lists_for_validation(tmp_path: Path) -> None:
    own(tmp_path, **{"dev.csv": TEST, "validation.csv": TEST})
    with pytest.raises(DataError, match=r"several files could be the validation split: validation\.csv, dev\.csv"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("archive", ["any.tar", "any.tar.gz"])
def test_pictures_may_stay_in_an_archive(tmp_path: Path, archive: str) -> None:
    lists = {"train.csv": TRAIN.encode(), "test.csv": TEST.encode(), "a.png": PICTURES["a.png"]}
    write_files(tmp_path, lists)
    pack(tmp_path / archive, {name: content for name, content in PICTURES.items() if name != "a.png"})
    pixels = load_dataset(tmp_path, images=SMALL).train.features.pixels()
    np.testing.assert_allclose(pixels[:, 4, 4, 0], [10, 60, 120], atol=2)


@pytest.mark.parametrize(
    "train",
    [
        "\ufeffpicture,labels\r\na.png,dog|cat\r\n\r\nc.png,dog\r\n",
        '"picture","labels"\n"a.png","dog|cat"\n./c.png,dog|dog',
        "Labels, picture\n dog | cat ,a.png\n  \ndog,c.png\n",
    ],
    ids=["mark and CRLF", "quotes, no last newline", "spaces, another order, blank line"],
)
def test_ways_to_write_the_same(tmp_path: Path, train: str) -> None:
    dataset = load_dataset(own(tmp_path, train), images=SMALL)
    assert labels_of(dataset, "train") == [{"cat", "dog"}, {"dog"}]
    assert dataset.train.features.names == ("a.png", "c.png")


def test_a_comma_and_other_writing_in_a_label(tmp_path: Path) -> None:
    dataset = load_dataset(own(tmp_path, 'picture,labels\na.png,"Hund, groß|犬 ""x"""\n'), images=SMALL)
    assert labels_of(dataset, "train") == [{"Hund, groß", '犬 "x"'}]


def test_labels_in_an_order_of_their_own(tmp_path: Path) -> None:
    own(tmp_path, **{"labels.txt": "dog\nbird\nmouse\ncat\n\n"})
    dataset = load_dataset(tmp_path, images=SMALL)
    assert dataset.label_names == ("dog", "bird", "mouse", "cat")
    assert dataset.train.labels.toarray().tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    (tmp_path / "labels.txt").unlink()
    assert load_dataset(tmp_path, images=SMALL).label_names == ("bird", "cat", "dog")


LABEL_FILES = {
    "dgo\nbird\ncat\n": r"train\.csv:2: labels: 'dog' is not in labels\.txt: did you mean 'dgo'\?",
    "dog\ncat\nzebra\n": r"test\.csv:2: labels: 'bird' is not in labels\.txt$",
    "dog\ncat\ndog\n": r"labels\.txt:3: 'dog' is listed a second time, first in line 1",
    "dog\n\ncat\n": r"labels\.txt:2: is empty, but a label follows",
    "dog|cat\n": r"labels\.txt:1: a label: 'dog\|cat' contains \|, which separates labels$",
    "17\tdog\n": r"labels\.txt:1: a label: '17\\tdog' has the control character '\\t' in it$",
    "\n": r"labels\.txt: names no label",
}


@pytest.mark.parametrize("text", LABEL_FILES)
def test_names_of_labels_that_do_not_fit(tmp_path: Path, text: str) -> None:
    own(tmp_path, **{"labels.txt": text})
    with pytest.raises(DataError, match=LABEL_FILES[text]):
        load_dataset(tmp_path, images=SMALL)


HEAD = "picture,labels\n"
WRONG_LISTS = {
    "": r"train\.csv:1: its first line should be picture,labels or picture,labels,user, but it is empty$",
    "a.png,dog\n": r"train\.csv:1: its first line should be .*, but is 'a\.png,dog'$",
    "picture;labels\n": r"train\.csv:1: .* but is 'picture;labels'$",
    "picture,user\n": r"train\.csv:1: .* but is 'picture,user'$",
    "picture,labels,when\n": r"train\.csv:1: .* but is 'picture,labels,when'$",
    "picture,labels,labels\n": r"train\.csv:1: .* but is 'picture,labels,labels'$",
    HEAD: r"train\.csv: lists no pictures$",
    HEAD + "a.png,dog\nc.png,dog,cat\n": r"train\.csv:3: has 3 fields, but the first line has 2 \(picture,labels\)",
    HEAD + "a.png\n": r"train\.csv:2: has 1 fields",
    HEAD + " ,dog\n": r"train\.csv:2: picture: is empty$",
    HEAD + "a.png,dog\n./a.png,dog\n": r"train\.csv:3: picture: a\.png is listed a second time, first in line 2$",
    HEAD + "../a.png,dog\n": r"train\.csv:2: picture: refused: '\.\./a\.png' leads out of the folder$",
    HEAD + "x/../../a.png,dog\n": r"train\.csv:2: picture: refused: ",
    HEAD + "/a.png,dog\n": r"train\.csv:2: picture: refused: '/a\.png' leads out of the folder$",
    HEAD + "sub\\b.jpg,dog\n": r"train\.csv:2: picture: .* Give a relative path with / between its parts$",
    HEAD + "C:/a.png,dog\n": r"train\.csv:2: picture: 'C:/a\.png' contains \\ or :",
    HEAD + '"a\n.png",dog\n': r"train\.csv:2: picture: 'a\\n\.png' has the control character '\\n' in it$",
    HEAD + 'a.png,"dog|c\nat"\n': r"train\.csv:2: labels: 'dog\|c\\nat' has the control character '\\n' in it$",
    HEAD + "a.png,dog|\x00cat\n": r"train\.csv:2: labels: .* the control character '\\x00'",
    HEAD + "a.png,dog|| cat\n": r"train\.csv:2: labels: a label of 'dog\|\| cat' is empty$",
    HEAD + 'a.png,"x\ny"\nc.png\n': r"train\.csv:2: labels: ",
    HEAD + 'a.png,dog\nc.png,"dog\nd.png,cat\n': r"train\.csv:3: cannot be read as CSV: unexpected end of data$",
    HEAD + 'a.png,"dog"s\n': r"train\.csv:2: cannot be read as CSV: ',' expected after '\"'$",
    HEAD + "a.png,dog\rc.png,cat\r": r"train\.csv:2: cannot be read as CSV: new-line character seen in unquoted field$",
    HEAD + "a.png,\nc.png,\n": r"train\.csv: no picture in it has a label, so there is nothing to learn$",
    HEAD + "d.png,dog\n": r"test\.csv:2: labels: d\.png is also in train\.csv, line 2, with other labels$",
    "picture,labels,user\na.png,dog, \n": r"train\.csv:2: user: is empty\. Leave out the column",
    "picture,labels,user\na.png,dog,a\tb\n": r"train\.csv:2: user: 'a\\tb' has the control character",
}


@pytest.mark.parametrize("train", WRONG_LISTS)
def test_lists_that_cannot_be_read(tmp_path: Path, train: str) -> None:
    own(tmp_path, train)
    with pytest.raises(DataError, match=WRONG_LISTS[train]):
        load_dataset(tmp_path, images=SMALL)


def test_a_list_that_is_not_text(tmp_path: Path) -> None:
    own(tmp_path)
    (tmp_path / "train.csv").write_bytes(HEAD.encode() + b"a.png,dog\nc.png,gro\xdf\n")
    with pytest.raises(DataError, match=r"train\.csv:3: is not UTF-8 text"):
        load_dataset(tmp_path)
    (tmp_path / "train.csv").write_bytes(b"PK\x03\x04 a spreadsheet")
    with pytest.raises(DataError, match=r"train\.csv: is a zip archive"):
        load_dataset(tmp_path)


def test_a_picture_in_two_splits_is_told_of_every_time(tmp_path: Path) -> None:
    test = "picture,labels\n" + "d.png,bird\na.png,cat|dog\nc.png,dog\n"
    own(tmp_path, test=test, **{"dev.csv": "picture,labels\nd.png,bird\n"})
    told: list[str] = []
    for _ in range(2):
        dataset = load_dataset(tmp_path, images=ImageOptions(size=8, tell=told.append))
        assert labels_of(dataset, "test") == [{"bird"}, {"cat", "dog"}, {"dog"}]
    assert told == 2 * [
        f"{tmp_path}: 2 pictures are in train and in test: a.png, c.png. Results on such pictures are too optimistic",
        f"{tmp_path}: 1 picture is in validation and in test: d.png. Results on such pictures are too optimistic",
    ]


@pytest.mark.parametrize(
    ("name", "why"), [("c.png", r"cannot be decoded \(not a picture of a known format\)"), ("gone.png", "is not there")]
)
def test_pictures_that_are_missing_or_broken(tmp_path: Path, name: str, why: str) -> None:
    own(tmp_path, TRAIN.replace("c.png", name))
    (tmp_path / "c.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=rf"{name} {why}\. Get it again, or leave"):
        load_dataset(tmp_path, images=SMALL)
    told: list[str] = []
    dataset = load_dataset(tmp_path, images=ImageOptions(size=8, broken="skip", tell=told.append))
    assert dataset.users == ("anna", "bob") and len(dataset.train) == 2
    assert [note.partition(" pictures")[0] for note in told] == [f"{tmp_path}: 1 of 4"]


def test_another_split_of_the_same_pictures_shares_the_copies(tmp_path: Path, own_cache: Path) -> None:
    own(tmp_path, HEAD + "d.png,dog\nc.png,dog\n", HEAD + "a.png,dog\n")
    load_dataset(tmp_path, images=SMALL)
    (tmp_path / "train.csv").write_text(HEAD + "a.png,cat\n")
    (tmp_path / "test.csv").write_text(HEAD + "c.png,dog\nd.png,cat|dog\n")
    dataset = load_dataset(tmp_path, images=SMALL)
    assert dataset.test.features.names == ("c.png", "d.png") and labels_of(dataset, "test")[1] == {"cat", "dog"}
    assert len([path for path in own_cache.iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize("name", ["train.csv", "labels.txt"])
def test_a_label_exchanged_for_one_as_long_is_noticed(tmp_path: Path, name: str) -> None:
    """For example by a tool that preserves a file's time. (The two labels swap places.)"""
    own(tmp_path, HEAD + "a.png,dog\nc.png,cat\n", HEAD + "d.png,\n", **{"labels.txt": "cat\ndog\n"})
    before = load_dataset(tmp_path, images=SMALL).train.labels.toarray().tolist()
    file = tmp_path / name
    time = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace("dog", "x").replace("cat", "dog").replace("x", "cat"))
    os.utime(file, ns=(time, time))
    assert before == [[0, 1], [1, 0]]
    assert load_dataset(tmp_path, images=SMALL).train.labels.toarray().tolist() == [[1, 0], [0, 1]]


def test_the_cache_can_be_left_out(tmp_path: Path, own_cache: Path) -> None:
    load_dataset(own(tmp_path), images=SMALL, cache=False)
    assert not own_cache.exists()


def test_what_kind_of_folder_it_is(tmp_path: Path) -> None:
    assert format_of(own(tmp_path)).name == "pictures"
    for name in ("latest.txt", "contest.txt"):  # of no importance beside train.csv
        (tmp_path / name).write_text("")
    assert len(load_dataset(tmp_path, images=SMALL).train) == 3
    (tmp_path / "x_train.txt").write_text("1 2 2\n0 0:1\n")
    with pytest.raises(DataError, match=r"has pictures in train\.csv and xmlc in x_train\.txt: leave one"):
        load_dataset(tmp_path)
    (tmp_path / "train.csv").unlink()
    assert format_of(tmp_path).name == "xmlc"


def test_folders_without_one_of_the_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train file: .*; or train\.csv and test\.csv, which list pictures$"):
        load_dataset(tmp_path)
    (tmp_path / "train.csv").write_text(TRAIN)
    with pytest.raises(DataError, match=r"no test\.csv: pictures are listed in train\.csv and test\.csv$"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(
    ("files", "names", "places"),
    [
        (voc(), "voc2012 or voc2012-leaking", "DIR/voc2012"),
        (voc("2007", root=""), "voc2007", "DIR/voc2007"),
        (coco({"val2017": ([1], [])}), "coco-val2017", "DIR/coco"),
        ({"labels_and_metadata.json": flair()[0]}, "flair or flair-fine", "DIR/flair"),
    ],
)
def test_a_published_dataset_is_loaded_by_its_name(tmp_path: Path, files: Files, names: str, places: str) -> None:
    write_files(tmp_path / "mine", files)
    with pytest.raises(
        DataError,
        match=rf"mine: looks like {names}\. Load it by that name: .* to {places}, and give --data-dir DIR, in",
    ):
        load_dataset(tmp_path / "mine")


def test_a_published_dataset_in_its_own_place(tmp_path: Path) -> None:
    pack(tmp_path / "voc2012/any.tar", voc())
    expected = rf"by name \(voc2012 or voc2012-leaking\), .* --data-dir {tmp_path}, in Python data_dir=$"
    with pytest.raises(DataError, match=expected):
        load_dataset(tmp_path / "voc2012")
    assert len(load_dataset("voc2012", tmp_path, images=SMALL).train) == 2


def test_has_pictures(tmp_path: Path) -> None:
    own(tmp_path / "mine")
    assert all(map(has_pictures, ("mosaics", "VOC2012", "coco-val2017", "flair-fine", str(tmp_path / "mine"))))
    assert not any(map(has_pictures, ("demo", "bibtex", "nothing", str(tmp_path), str(tmp_path / "mine/train.csv"))))


def test_what_a_party_holds(tmp_path: Path) -> None:
    own(tmp_path)
    train, names = load_held(tmp_path)
    assert len(train) == 3 and names == ("bird", "cat", "dog")
    held_out = load.held_out_file(tmp_path)
    assert held_out == tmp_path / "test.csv"
    assert load_held(held_out)[0].features.names == ("d.png",)
