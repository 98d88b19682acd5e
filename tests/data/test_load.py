from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedalc.data import load_dataset
from fedalc.data.catalog import datasets as catalog
from fedalc.data.catalog.locate import dataset_dir
from fedalc.data.check import check, check_files
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.label_names import distinct_names
from fedalc.data.load import load_file
from fedalc.errors import DataError, FedalcError
from tests.data.conftest import real_data

Write = Callable[..., Path]
TRAIN = "3 2 2\n0 0:1\n1 1:1\n0,1 0:0.5\n"
TEST = "1 2 2\n1 1:2\n"
ARFF = "@relation 'r: -C -1'\n@attribute a numeric\n@attribute b numeric\n@attribute TAG_x {0,1}\n@data\n"


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.txt", "test.txt"),
        ("eurlex_train.txt", "eurlex_test.txt"),
        ("amazonCat_train.txt.gz", "amazonCat_test.txt.gz"),
        ("wikiLSHTC_train.txt.bz2", "wikiLSHTC_test.txt"),
    ],
)
def test_a_folder_in_the_repository_layout(write: Write, tmp_path: Path, train: str, test: str) -> None:
    write(TRAIN, f"set/{train}")
    write(TEST, f"set/{test}")
    dataset = load_dataset(tmp_path / "set")
    assert (dataset.name, len(dataset.train), len(dataset.test)) == ("set", 3, 1)
    assert dataset.label_names == ("0", "1")
    assert dataset.validation is None


@pytest.mark.parametrize("name", ["dev.txt", "set_valid.txt", "validation.txt.gz"])
def test_a_validation_file_is_used(write: Write, tmp_path: Path, name: str) -> None:
    write(TRAIN, "set/train.txt")
    write(TEST, "set/test.txt")
    write("2 2 2\n\n0 1:1\n", f"set/{name}")
    dataset = load_dataset(str(tmp_path / "set"))
    assert dataset.validation is not None and len(dataset.validation) == 2


def test_a_folder_of_arff_files(write: Write, tmp_path: Path) -> None:
    write(ARFF + "{0 1,2 1}\n{}\n", "set/x-train.arff")
    write(gzip.compress((ARFF + "{1 1}\n").encode()), "set/x-test.arff.gz")
    dataset = load_dataset(tmp_path / "set")
    assert dataset.label_names == ("TAG_x",)
    assert (len(dataset.train), len(dataset.test), dataset.feature_count) == (2, 1, 2)


def test_arff_files_that_do_not_fit_together(write: Write, tmp_path: Path) -> None:
    write(ARFF + "{}\n", "set/train.arff")
    write(ARFF.replace("attribute a ", "attribute c ") + "{}\n", "set/test.arff")
    with pytest.raises(DataError, match=r"test\.arff: has other attributes than"):
        load_dataset(tmp_path / "set")


def test_splits_that_do_not_fit_together(write: Write, tmp_path: Path) -> None:
    write(TRAIN, "set/train.txt")
    write("1 3 2\n1 1:2\n", "set/test.txt")
    with pytest.raises(DataError, match="train has 2 features, test has 3"):
        load_dataset(tmp_path / "set")


@pytest.mark.parametrize("content", ["17\tfirst name\n9\tsecond\n", "first name\r\nsecond\n\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_label_names(write: Write, tmp_path: Path, content: str, packed: bool) -> None:
    write(TRAIN, "set/train.txt")
    write(TEST, "set/test.txt")
    write(gzip.compress(content.encode()) if packed else content, "set/labels.txt.gz" if packed else "set/labels.txt")
    assert load_dataset(tmp_path / "set").label_names == ("first name", "second")


def test_label_names_in_the_wrong_number(write: Write, tmp_path: Path) -> None:
    write(TRAIN, "set/train.txt")
    write(TEST, "set/test.txt")
    write("a\nb\nc\n", "set/labels.txt")
    with pytest.raises(DataError, match=r"labels\.txt: has 3 names, one per line, for 2 labels"):
        load_dataset(tmp_path / "set")


def test_two_files_that_could_be_meant(write: Write, tmp_path: Path) -> None:
    for name in ("train.txt", "train.txt.gz", "test.txt"):
        write(TRAIN, f"set/{name}")
    with pytest.raises(DataError, match=r"several files could be the train split: train\.txt, train\.txt\.gz"):
        load_dataset(tmp_path / "set")


def test_a_folder_without_a_test_file(write: Write, tmp_path: Path) -> None:
    """A share of the records is held out, as of a single file. A named dataset has to be complete."""
    write("10 10 2\n" + "".join(f"{n % 2} {n}:1\n" for n in range(10)), "eurlex-4k/train.txt")
    dataset = load_dataset(tmp_path / "eurlex-4k")
    assert (len(dataset.train), len(dataset.test), dataset.feature_count) == (8, 2, 10)
    assert dataset.notes == ("20 % held out for testing (2 records)",)
    alone = load_dataset(tmp_path / "eurlex-4k" / "train.txt")
    assert (alone.fingerprint, alone.name) == (dataset.fingerprint, "train.txt")
    write("1 10 2\n1 3:2\n", "more.txt")
    both = load_dataset(tmp_path / "eurlex-4k", table=TableSettings(test=str(tmp_path / "more.txt")))
    assert (len(both.train), len(both.test)) == (10, 1)
    with pytest.raises(DataError, match=r"no test file"):
        load_dataset("eurlex-4k", tmp_path)


def test_names_and_paths_that_lead_nowhere(write: Write, tmp_path: Path) -> None:
    with pytest.raises(FedalcError, match="did you mean bibtex"):
        load_dataset("bibtexx")
    with pytest.raises(DataError, match="no such file or folder"):
        load_dataset(tmp_path / "none")
    with pytest.raises(DataError, match=r"looked for the folder .*none.bibtex.*`fedalc data info bibtex`"):
        load_dataset("bibtex", tmp_path / "none")


def test_where_a_named_dataset_is_looked_for(monkeypatch: pytest.MonkeyPatch, write: Write, tmp_path: Path) -> None:
    write(TRAIN, "given/eurlex-4k/eurlex_train.txt")
    write(TEST, "given/eurlex-4k/eurlex_test.txt")
    assert load_dataset("EURLex-4K", tmp_path / "given").name == "eurlex-4k"
    monkeypatch.setenv("FEDALC_DATA", str(tmp_path / "given"))
    assert load_dataset("eurlex-4k", cache=False).name == "eurlex-4k"
    monkeypatch.delenv("FEDALC_DATA")
    assert dataset_dir(catalog.entry("eurlex-4k")) == Path("data/eurlex-4k")


def test_the_cache_can_be_left_out(write: Write, tmp_path: Path, own_cache: Path) -> None:
    write(TRAIN, "set/train.txt")
    write(TEST, "set/test.txt")
    load_dataset(tmp_path / "set", cache=False)
    assert not own_cache.exists()
    load_dataset(tmp_path / "set")
    assert len(list(own_cache.iterdir())) == 2


def test_one_file_in_either_format(write: Write) -> None:
    """The content decides, not the file name."""
    assert len(load_file(write(TRAIN, "a.arff"), 2, 2)) == 3
    plain = ARFF.replace(": -C -1", "")
    assert load_file(write("\n% hello\n" + plain + "{0 1,2 1}\n", "b.txt"), 2, 1).labels[0, 0] == 1
    assert load_file(write(ARFF + "{0 1,2 1}\n", "c.txt")).features.shape == (1, 2)


def test_one_file_of_another_shape(write: Write) -> None:
    with pytest.raises(DataError, match=r"data\.txt: has 2 features where 3 are expected"):
        load_file(write(TRAIN), 3, 2)
    assert load_file(write(TRAIN), 2, 5).labels.shape[1] == 2  # labels are not needed to predict


def test_check_compares_with_the_catalog(write: Write, tmp_path: Path) -> None:
    write(TRAIN, "set/train.txt")
    write(TEST, "set/test.txt")
    dataset = load_dataset(tmp_path / "set")
    statistics = catalog.Statistics(3, 1, 2, 2, 2.5, 1.3, features_per_instance=1.02)
    entry = catalog.Entry("set", "Set", statistics, "", ("train.txt",), "", sha256={"train.txt": "0" * 64, "x.txt": ""})
    found = {what: (expected, value, ok) for what, expected, value, ok in check(dataset, entry)}
    assert found == {
        "train instances": (3, 3, True),
        "test instances": (1, 1, True),
        "features": (2, 2, True),
        "labels": (2, 2, True),
        "instances per label": (2.5, 2.5, True),
        "labels per instance": (1.3, 1.25, False),
        "features per instance": (1.02, 1.0, False),
    }
    assert [(ok, value) for _, _, value, ok in check_files(tmp_path / "set", entry)][1] == (False, "missing")
    assert not check_files(tmp_path / "set", entry)[0].ok
    assert check(load_dataset("demo"), catalog.entry("demo")) == []


@pytest.mark.parametrize("name", ["bibtex", "eurlex15k", "eurlex57k"])
def test_real_datasets_are_as_the_catalog_says(name: str) -> None:
    folder = real_data(name)
    entry = catalog.entry(name)
    dataset = load_dataset(name, folder.parent)
    assert [line for line in check(dataset, entry) + check_files(folder, entry) if not line.ok] == []
    assert not any(label.isdigit() and label == str(at) for at, label in enumerate(dataset.label_names))
    again = load_dataset(name, folder.parent)
    np.testing.assert_array_equal(dataset.train.features.data, again.train.features.data)
    np.testing.assert_array_equal(dataset.train.labels.indices, again.train.labels.indices)
    assert dataset.label_names == again.label_names


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, fedalc.data.load, fedalc.data.catalog.fetch\n"
        "print([m for m in ('torch', 'sklearn', 'PIL') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_labels_that_share_a_name_are_told_apart(write: Write, tmp_path: Path) -> None:
    write("3 2 3\n0 0:1\n1 1:1\n2 0:0.5\n", "set/train.txt")
    write("1 2 3\n1 1:2\n", "set/test.txt")
    write("bank\nriver\nbank\n", "set/labels.txt")
    with pytest.warns(UserWarning, match="2 labels share a name with another; .* as in 'bank #0'"):
        assert load_dataset(tmp_path / "set").label_names == ("bank #0", "river", "bank #2")


def test_a_number_behind_a_name_does_not_make_it_that_of_another() -> None:
    assert distinct_names(["a", "a", "a #1"])[0] == ("a #0", "a #1'", "a #1")


def test_a_test_file_without_instances_is_refused(write: Write, tmp_path: Path) -> None:
    write(TRAIN, "set/train.txt")
    write("0 2 2\n", "set/test.txt")
    with pytest.raises(DataError, match=r"test\.txt: has no instances to test on"):
        load_dataset(tmp_path / "set")
