from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalc.data import ImageOptions, load_dataset
from fedalc.data.catalog import datasets as catalog
from fedalc.data.check import check
from fedalc.data.formats.coco import VARIANTS, is_for_testing, read_coco
from fedalc.data.storage import Place
from fedalc.errors import DataError
from tests.data.conftest import real_data
from tests.data.layouts import coco, coco_json, pack, write_files

SMALL = ImageOptions(size=8)
TRAIN = ([30, 10, 20], [(10, 90), (10, 1), (10, 90), (30, 17)])
VAL = ([139, 285], [(139, 1)])
TWENTY = (list(range(100, 120)), [(number, 17) for number in range(100, 115)])


@pytest.mark.parametrize("how", ["loose", "images", ".tar", ".tar.gz"])
def test_train_and_val(tmp_path: Path, how: str) -> None:
    files = coco({"train2017": TRAIN, "val2017": VAL})
    if how == "images":
        files = {name if "json" in name else f"images/{name}": content for name, content in files.items()}
    if how.startswith("."):
        pack(tmp_path / "coco" / f"x{how}", files)
    else:
        write_files(tmp_path / "coco", files)
    dataset = load_dataset("coco", tmp_path, images=SMALL)
    assert dataset.label_names == ("person", "cat", "toothbrush"), "in the order of their numbers, which have gaps"
    assert dataset.train.labels.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert dataset.test.labels.toarray().tolist() == [[1, 0, 0], [0, 0, 0]]
    assert [Path(name).stem for name in dataset.train.features.names] == [f"{n:012d}" for n in (10, 20, 30)]
    np.testing.assert_allclose(dataset.train.features.pixels()[:, 4, 4, 0], [10, 20, 30], atol=4)


@pytest.mark.parametrize("root", ["", "deep/"])
def test_pictures_may_move_to_images_and_back(tmp_path: Path, root: str) -> None:
    write_files(tmp_path / "coco", {f"{root}{name}": content for name, content in coco({"val2017": TWENTY}).items()})
    here, there = (tmp_path / "coco" / root / folder for folder in ("val2017", "images/val2017"))
    there.parent.mkdir()
    for source, target, prefix in ((here, there, "images/"), (there, here, "")):
        load_dataset("coco-val2017", tmp_path, images=SMALL)
        source.rename(target)
        dataset = load_dataset("coco-val2017", tmp_path, images=SMALL)
        assert dataset.train.features.names[0] == f"{root}{prefix}val2017/000000000100.jpg"


def test_val2017_alone_is_divided_the_same_way_always(tmp_path: Path) -> None:
    write_files(tmp_path / "coco", coco({"val2017": TWENTY}))
    dataset = load_dataset("coco-val2017", tmp_path, images=SMALL)
    assert len(dataset.train) + len(dataset.test) == 20
    of_test = {int(Path(name).stem) for name in dataset.test.features.names}
    assert of_test == {number for number in TWENTY[0] if is_for_testing(number)} == {107, 114, 116, 117}
    share = np.mean([is_for_testing(number) for number in range(20000)])
    assert abs(share - 0.2) < 0.01
    with pytest.raises(DataError, match=r"no annotations/instances_train2017\.json.*coco-val2017 needs only val2017"):
        load_dataset("coco", tmp_path, images=SMALL)


def _broken(change: Callable[[dict[str, Any]], object]) -> bytes:
    content = coco_json(*TWENTY)
    change(content)
    return json.dumps(content).encode()


WHOLE = json.dumps(coco_json(*TWENTY), indent=1).encode()
DAMAGED = {
    "cut short": (WHOLE[:-400], r"instances_val2017\.json:\d+: is damaged JSON, column \d+: "),
    "empty": (b"", r"json:1: is damaged JSON, column 1: Expecting value: the file was cut short"),
    "not text": (b"\xff\xfe\x00", "is not UTF-8 text"),
    "nested": (b"[" * 200_000, "nested too deeply"),
    "a list": (b"[]", "has no list 'images'"),
    "long number": (b'{"images": ' + b"9" * 5000 + b"}", "is damaged JSON"),
    "no categories": (_broken(lambda c: c.pop("categories")), "has no list 'categories'"),
    "no pictures": (_broken(lambda c: c["images"].clear()), "its list 'images' is empty"),
    "unknown picture": (
        _broken(lambda c: c["annotations"][3].update(image_id=7)),
        r"annotations\[3\]\.image_id: no picture has the number 7",
    ),
    "unknown category": (
        _broken(lambda c: c["annotations"][3].update(category_id=2)),
        r"annotations\[3\]\.category_id: no category has the number 2",
    ),
    "no category": (
        _broken(lambda c: c["annotations"][3].pop("category_id")),
        r"annotations\[3\]: expected an object with image_id, category_id",
    ),
    "fraction": (
        _broken(lambda c: c["annotations"][3].update(category_id=1.5)),
        r"annotations\[3\]\.category_id: expected a whole number",
    ),
    "truth": (_broken(lambda c: c["images"][0].update(id=True)), r"images\[0\]\.id: expected a whole number"),
    "no name": (_broken(lambda c: c["images"][2].pop("file_name")), r"images\[2\]: expected an object with id, file_"),
    "twice": (_broken(lambda c: c["images"][2].update(id=100)), "images: two entries have the number 100"),
    "negative": (_broken(lambda c: c["images"][0].update(id=-1)), "images: numbers range from -1"),
    "huge": (_broken(lambda c: c["images"][0].update(id=1 << 70)), "images: numbers range from 101 to 1180"),
    "null in a category": (
        _broken(lambda c: c["categories"][1].update(name="a\0b")),
        r"json: categories\[1\]\.name: 'a\\x00b' has the control character '\\x00' in it$",
    ),
    "half a character": (
        _broken(lambda c: c["categories"][0].update(name="\ud800")),
        r"json: categories\[0\]\.name: '\\ud800' has half of a character, '\\ud800' in it$",
    ),
    "line in a file's name": (
        _broken(lambda c: c["images"][4].update(file_name="a\nb.jpg")),
        r"json: images\[4\]\.file_name: 'a\\nb\.jpg' has the control character '\\n' in it$",
    ),
    "too few": (_broken(lambda c: (c["images"].__delitem__(slice(1, 20)), c["annotations"].clear())), "too few"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_annotations_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    content, message = DAMAGED[kind]
    write_files(tmp_path, {"annotations/instances_val2017.json": content})
    with pytest.raises(DataError, match=message):
        read_coco(Place(tmp_path), VARIANTS["val2017"])


def test_a_file_name_that_leads_out_is_refused(tmp_path: Path) -> None:
    files = coco({"val2017": TWENTY})
    content = _broken(lambda c: c["images"][0].update(file_name="../../secret.jpg"))
    write_files(tmp_path / "coco", files | {"annotations/instances_val2017.json": content})
    with pytest.raises(DataError, match=r"refused: the name .*secret\.jpg' leads out of the folder"):
        load_dataset("coco-val2017", tmp_path, images=SMALL)


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    files = coco({"val2017": TWENTY})
    del files["val2017/000000000103.jpg"]
    write_files(tmp_path / "coco", files)
    with pytest.raises(DataError, match=r"val2017/000000000103\.jpg is not there\. "):
        load_dataset("coco-val2017", tmp_path, images=SMALL)
    notes: list[str] = []
    skip = ImageOptions(size=8, broken="skip", tell=notes.append)
    dataset = load_dataset("coco-val2017", tmp_path, images=skip)
    assert len(dataset.train) + len(dataset.test) == 19 and len(notes) == 1


def test_sets_with_different_categories(tmp_path: Path) -> None:
    files = coco({"train2017": TRAIN, "val2017": VAL})
    name = "annotations/instances_val2017.json"
    files[name] = files[name].replace(b"toothbrush", b"hairbrush")
    with pytest.raises(DataError, match="train2017 and val2017 have different categories"):
        read_coco(Place(write_files(tmp_path, files)), VARIANTS["2017"])


@pytest.mark.long
def test_memory_stays_near_the_size_of_the_file(tmp_path: Path) -> None:
    """A plain JSON parse, with outlines as lists of Python numbers, takes six times the file's size."""
    numbers = list(range(1, 401))
    content = coco_json(numbers, [(number, 1) for number in numbers for _ in range(4)])
    outline = [[round(0.37 * at, 2) for at in range(700)]]
    for each in content["annotations"]:
        each["segmentation"] = outline
    path = write_files(tmp_path, {"annotations/instances_val2017.json": json.dumps(content).encode()})
    size = (path / "annotations/instances_val2017.json").stat().st_size
    del content
    tracemalloc.start()
    read_coco(Place(tmp_path), VARIANTS["val2017"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 8e6 and peak < 2.5 * size


@pytest.mark.long
def test_the_real_one_is_as_published() -> None:
    root = real_data("coco").parent
    dataset = load_dataset("coco-val2017", root, images=ImageOptions(size=32))
    assert [line for line in check(dataset, catalog.entry("coco-val2017")) if not line.ok] == []
    both = [dataset.train, dataset.test]
    assert (sum(map(len, both)), dataset.label_count) == (5000, 80)
    assert sum(int((split.labels.getnnz(axis=1) == 0).sum()) for split in both) == 48
    for file in Place(root / "coco").matching(re.compile(r"(?:.*/)?instances_val2017\.json")):
        content = json.loads(file.read(1 << 30))
    assert len(content["annotations"]) == 36781
    pairs = {(each["image_id"], each["category_id"]) for each in content["annotations"]}
    assert sum(int(split.labels.nnz) for split in both) == len(pairs)
    names = {each["id"]: each["name"] for each in content["categories"]}
    found = {
        (int(Path(split.features.names[row]).stem), dataset.label_names[label])
        for split in both
        for row, label in zip(*split.labels.nonzero(), strict=True)
    }
    assert found == {(image, names[category]) for image, category in pairs}
