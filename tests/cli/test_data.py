"""`fedalc data …` for picture datasets and for the user's own folders."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedalc.cli.data import app
from fedalc.data import load_dataset
from fedalc.data.formats.table_settings import TableSettings
from tests.data.clinics import HELD, union, write_clinics
from tests.data.layouts import pack, picture, voc, write_files


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--data-dir", str(tmp_path)])

    return invoke


def _here(shown: str) -> dict[str, str]:
    """The last column of each dataset."""
    return {words[0]: words[-1] for words in map(str.split, shown.splitlines()) if len(words) > 2}


def test_list_says_what_is_here(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_files(tmp_path / "voc2012", voc())
    pack(tmp_path / "coco/any.tar.gz", {"x.jpg": picture()})
    (tmp_path / "flair").mkdir()
    here = _here(run("list").stdout)
    assert {name: here[name] for name in ("demo", "mosaics", "voc2007", "voc2012", "voc2012-leaking")} == {
        "demo": "embedded",
        "mosaics": "embedded",
        "voc2007": "no",
        "voc2012": "yes",
        "voc2012-leaking": "yes",
    }
    assert {name: here[name] for name in ("coco", "coco-val2017", "flair", "flair-fine")} == {
        "coco": "packed",
        "coco-val2017": "packed",
        "flair": "no",
        "flair-fine": "no",
    }


def test_info_says_where_and_what(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    printed = run("info", "voc2012-leaking").stdout
    assert "LEAKING" in printed and "11,540 train, 5,823 test, pictures, 20 labels" in printed
    assert f"in {tmp_path / 'voc2012'}" in printed.replace("\n", "")
    assert "39,239 validation, pictures, 1,628 labels" in run("info", "flair-fine").stdout
    assert "from 51,414 users" in run("info", "flair-fine").stdout and "from 40 users" in run("info", "mosaics").stdout
    assert "users" not in printed


def test_info_says_how_many_features_an_instance_has(run) -> None:  # type: ignore[no-untyped-def]
    assert "2.4 labels per instance, 68.66 features per instance\n" in run("info", "bibtex").stdout
    assert "5.04 labels per instance, about 71 features per instance\n" in run("info", "amazoncat-shaped-2nd").stdout
    assert "5.31 labels per instance\n" in run("info", "eurlex-4k").stdout  # which nobody here has counted


def test_check_compares_with_what_was_published(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_files(tmp_path / "voc2012", voc())
    result = run("check", "voc2012")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if line.startswith("│")]
    assert [line.split("│")[4].strip() for line in lines] == ["differs", "differs", "ok", "differs"]


def test_check_lists_broken_pictures(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_files(tmp_path / "voc2012", voc() | {"VOCdevkit/VOC2012/JPEGImages/000001.jpg": b"no picture"})
    result = run("check", "voc2012")
    assert result.exit_code == 1
    assert "1 of 3 pictures left out: VOCdevkit/VOC2012/JPEGImages/000001.jpg cannot be decoded" in result.stdout


@pytest.mark.parametrize(("name", "message"), [("mosaics", "fedalc generates it"), ("flair", "cannot be downloaded")])
def test_fetch_says_what_to_do(run, name: str, message: str) -> None:  # type: ignore[no-untyped-def]
    assert message in str(run("fetch", name).exception)


LISTS = {
    "train.csv": b"picture,labels,user\na.jpg,dog|cat,u\nb.jpg,,v\nc.jpg,dog,u\n",
    "test.csv": b"picture,labels\nd.jpg,bird\n",
}
OWN = LISTS | {f"{name}.jpg": picture() for name in "abcd"}


def _rows(printed: str) -> dict[str, str]:
    return {row[1].strip(): row[2].strip() for line in printed.splitlines() if len(row := line.split("│")) == 4}


def test_info_about_one_s_own_pictures_opens_none(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_files(tmp_path / "my pictures [1]", LISTS)
    assert run("info", str(folder)).stdout.splitlines() == [
        f"{folder}: pictures listed in train.csv, test.csv",
        "  3 train, 1 test, 3 labels, with the names of users; no picture has been opened",
        f"  read all of it with: fedalc data check '{folder}'",
        f"  train on it with: fedalc train --dataset '{folder}'",
    ]


def test_check_counts_one_s_own_pictures(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = run("check", str(write_files(tmp_path / "mine", OWN)))
    assert result.exit_code == 0
    assert _rows(result.stdout) == {
        "train instances": "3",
        "test instances": "1",
        "train instances without a label": "1",
        "labels": "3",
        "labels without a training instance": "1",
        "training instances of a label": "0 to 2, 1 in the middle",
        "labels per instance": "1.00",
        "users with training instances": "2",
    }


def test_check_finds_what_is_wrong_with_one_s_own_pictures(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_files(tmp_path / "mine", OWN | {"c.jpg": b"", "test.csv": b"picture,labels\na.jpg,cat|dog\n"})
    result = run("check", str(folder))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:2] == [
        f"{folder}: 1 picture is in train and in test: a.jpg. Results on such pictures are too optimistic",
        f"{folder}: 1 of 3 pictures left out: c.jpg cannot be decoded (not a picture of a known format)",
    ]
    assert _rows(result.stdout)["train instances"] == "2"


def test_a_folder_of_sparse_features(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    texts = {"train.txt": b"3 2 2\n0 0:1\n1 1:1\n0,1 0:0.5\n", "test.txt": b"1 2 2\n1 0:3 1:2\n"}
    folder = write_files(tmp_path / "mine", texts)
    assert run("info", str(folder)).stdout.splitlines()[0] == f"{folder}: XML-repository text in test.txt, train.txt"
    result = run("check", str(folder))
    assert result.exit_code == 0
    assert _rows(result.stdout) == {
        "train instances": "3",
        "test instances": "1",
        "features": "2",
        "features per instance": "1.25",
        "labels": "2",
        "training instances of a label": "2 to 2, 2 in the middle",
        "labels per instance": "1.25",
    }


@pytest.mark.parametrize("command", ["info", "check"])
def test_folders_that_are_not_there(run, tmp_path: Path, command: str) -> None:  # type: ignore[no-untyped-def]
    assert str(run(command, str(tmp_path / "none")).exception) == f"{tmp_path / 'none'}: no such file or folder"
    assert "did you mean bibtex" in str(run(command, "bibtexx").exception)


def test_check_says_what_to_look_at(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    texts = {"train.txt": b"4 2 3\n0 0:1\n1 1:1\n1 0:1\n0 \n", "test.txt": b"1 2 3\n2 1:1\n"}
    folder = write_files(tmp_path / "mine", texts)
    result = run("check", str(folder))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-10:] == [
        "worth a look (fedalc trains on the data as they are):",
        "  train: 1 record without features (all features are 0): record 4",
        "    correct or remove them: they all get the same prediction",
        "  train: 1 record equal to an earlier one, 1 of them with other labels: record 3 = record 1",
        "    merge the labels of equal records into one record",
        "  test: 1 record also in train: record 1",
        "    remove them from test: figures on records that were trained on are too good",
        "  1 label only in test or validation: 2",
        "    they are never predicted; move records of them to train, or leave them out",
        f"train on it with: fedalc train --dataset {folder}",
    ]
    found = json.loads(run("check", str(folder), "--json").stdout)
    assert found["records"] == {"train": 4, "test": 1} and found["labels"] == 3
    assert found["positives"] == {"least": 0, "median": 2.0, "most": 2}
    assert [each["count"] for each in found["findings"]] == [1, 1, 1, 1]


def test_check_of_a_known_dataset_looks_at_the_records_too(run) -> None:  # type: ignore[no-untyped-def]
    result = run("check", "demo")
    assert result.exit_code == 0 and "fedalc train --dataset demo" in result.stdout


def test_check_lists_labels_with_their_records(run) -> None:  # type: ignore[no-untyped-def]
    """All of them if they are few; otherwise the ends, unless asked."""
    held = load_dataset("demo").train.labels.getnnz(axis=0)
    named = dict(zip(load_dataset("demo").label_names, held.tolist(), strict=True))

    def listed(*options: str) -> list[tuple[str, int]]:
        lines = [line.split() for line in run("check", "demo", *options).stdout.splitlines()]
        return [(line[0], int(line[1])) for line in lines if len(line) == 3 and line[0] in named]

    ends, every = listed(), listed("--labels")
    assert len(ends) == 10 and dict(every) == named and all(named[name] == count for name, count in ends)
    assert [count for _, count in every] == sorted(held, reverse=True) and ends == every[:5] + every[-5:]
    assert "69 labels in between; all: --labels" in run("check", "demo").stdout
    found = json.loads(run("check", "demo", "--labels", "--json").stdout)
    assert [(one["name"], one["records"]["train"]) for one in found["labels_by_records"]] == every
    assert "labels_by_records" not in json.loads(run("check", "demo", "--json").stdout)


def test_check_says_what_parties_share(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_clinics(tmp_path / "clinics", union())
    result = run("check", str(folder), "--test-share", "0")
    train = load_dataset(folder, table=TableSettings(test_share=0)).train
    at = {
        party: {row.tobytes() for row in train.features.toarray()[np.array(train.parties) == party]} for party in HELD
    }
    several = {row for one, other in combinations(HELD, 2) for row in at[one] & at[other]}
    rows = _rows(result.stdout)
    assert len(several) > 5
    assert rows["records at several parties"] == f"{len(several)} of {len(set().union(*at.values()))} different ones"
    assert rows["labels at several parties"] == "4: label 0, label 1, label 2, label 3"
    parties = {"0": 2, "1": 2, "2": 2, "3": 2, "4": 1, "5": 1, "6": 1}
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("label ")]
    assert {line[1]: int(line[-1]) for line in lines} == parties
