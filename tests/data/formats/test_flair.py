from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedalc.data import Dataset, ImageOptions, load_dataset
from fedalc.data.formats.flair import VARIANTS, read_flair
from fedalc.data.storage import Place
from fedalc.errors import DataError
from tests.data.layouts import FLAIR_RECORDS, flair, pack, write_files

SMALL = ImageOptions(size=8)
NAME = "labels_and_metadata.json"


@pytest.fixture(params=["loose", "parts"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    labels, pictures = flair()
    write_files(tmp_path / "flair", {NAME: labels, "label_relationship.txt": b"('tree', 'plant')\n"})
    if request.param == "loose":
        write_files(tmp_path / "flair", pictures)
    else:
        names = list(pictures)
        pack(tmp_path / "flair/small_images-00.tar.gz", {name: pictures[name] for name in names[:3]})
        pack(tmp_path / "flair/small_images-01.tar.gz", {name: pictures[name] for name in names[3:]})
    return tmp_path


def labels_of(dataset: Dataset, part: str) -> list[set[str]]:
    return [{dataset.label_names[at] for at in row.nonzero()[0]} for row in getattr(dataset, part).labels.toarray()]


def test_coarse_labels(root: Path) -> None:
    dataset = load_dataset("flair", root, images=SMALL)
    assert dataset.label_names == ("equipment", "material", "plant", "structure")
    assert labels_of(dataset, "train") == [{"equipment", "material"}, {"plant"}, set()]
    assert labels_of(dataset, "validation") == [{"plant"}] and labels_of(dataset, "test") == [{"structure"}]
    assert dataset.train.features.names[0] == "small_images/14913474848.jpg"


def test_fine_labels_are_in_the_same_folder(root: Path) -> None:
    dataset = load_dataset("flair-fine", root, images=SMALL)
    assert dataset.label_names == ("bag", "bridge", "grass", "printed_page", "tree")
    assert labels_of(dataset, "train") == [{"bag", "printed_page"}, {"grass", "tree"}, set()]


def test_the_user_of_each_training_picture_is_known(root: Path) -> None:
    for _ in range(2):  # read, then from the cache
        assert load_dataset("flair", root, images=SMALL).users == ("59769174@N00", "59769174@N00", "7@N01")
    (root / "flair/small_images/22.jpg").unlink(missing_ok=True)
    if not (root / "flair/small_images").exists():
        return
    skip = ImageOptions(size=8, broken="skip", tell=lambda _: None)
    assert load_dataset("flair", root, images=skip).users == ("59769174@N00", "7@N01")


def test_a_picture_in_no_part_is_named(root: Path) -> None:
    (root / "flair/small_images-01.tar.gz").unlink(missing_ok=True)
    (root / "flair/small_images/44.jpg").unlink(missing_ok=True)
    with pytest.raises(DataError, match=r"flair: small_images/44\.jpg is not there"):
        load_dataset("flair", root, images=SMALL)


def _with(**more: object) -> bytes:
    records = json.loads(flair()[0])
    records[1].update(more)
    return json.dumps(records).encode()


DAMAGED = {
    "cut short": (flair()[0][:-50], r"labels_and_metadata\.json:\d+: is damaged JSON"),
    "an object": (b"{}", "is not a list of records"),
    "none": (b"[]", "has no records"),
    "no user": (json.dumps([{"image_id": "1"}]).encode(), "record 0: expected image_id, user_id, partition and labels"),
    "bad id": (_with(image_id="../../x"), r"record 1: image_id: '\.\./\.\./x' is not a picture's number"),
    "number": (_with(image_id=5), "record 1: image_id"),
    "user": (_with(user_id=None), "record 1: user_id: expected text, found 'None'"),
    "partition": (_with(partition="holdout"), "record 1: partition: 'holdout' is not train, val or test"),
    "labels": (_with(labels="plant"), "record 1: labels: expected a list of labels"),
    "label": (_with(labels=["plant", 3]), "record 1: labels: expected a list of labels"),
    "null": (_with(labels=["a\0b"]), r"record 1: labels: 'a\\x00b' has the control character '\\x00' in it$"),
    "half a character": (_with(user_id="\udfff"), r"record 1: user_id: '\\udfff' has half of a character, '\\udfff'"),
    "twice": (_with(image_id="14913474848"), "record 1: image_id '14913474848' occurs a second time"),
    "no test": (flair(FLAIR_RECORDS[:4])[0], "no record has the partition 'test'"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_labels_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    content, message = DAMAGED[kind]
    write_files(tmp_path, {NAME: content})
    with pytest.raises(DataError, match=message):
        read_flair(Place(tmp_path), VARIANTS["coarse"])


def test_without_the_labels(tmp_path: Path) -> None:
    write_files(tmp_path, flair()[1])
    with pytest.raises(DataError, match=r"no labels_and_metadata\.json here"):
        read_flair(Place(tmp_path), VARIANTS["fine"])
    write_files(tmp_path, {NAME: flair()[0], f"copy/{NAME}": flair()[0]})
    with pytest.raises(DataError, match="exists twice"):
        read_flair(Place(tmp_path), VARIANTS["fine"])


def test_a_partition_called_dev_is_validation(tmp_path: Path) -> None:
    """The dataset's documentation uses this name in one place."""
    labels, pictures = flair()
    write_files(tmp_path / "flair", {NAME: labels.replace(b'"val"', b'"dev"'), **pictures})
    validation = load_dataset("flair", tmp_path, images=SMALL).validation
    assert validation is not None and len(validation) == 1
