"""A data format registered from outside: datasets, single files, and errors for invalid formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedalc
from fedalc.cli.data import app
from fedalc.core.registry import FORMATS
from fedalc.data import Dataset, Split, load_dataset
from fedalc.data.formats import Format, Parsed, ReadOptions, register_format
from fedalc.data.load import format_of, has_pictures, held_out_file, load_file, load_held
from fedalc.errors import ConfigError, DataError
from fedalc.workflows.predict import predict_file
from fedalc.workflows.prediction_files import Answer

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    before = dict(FORMATS._registered)
    yield
    FORMATS._registered.clear()
    FORMATS._registered.update(before)


class Tsv(Format):
    help = "tab-separated numbers"
    suffixes = (".dat",)

    def read_file(self, path: Path, options: ReadOptions) -> Parsed:
        with path.open() as file:
            columns = file.readline().split()
            table = np.loadtxt(file, ndmin=2)
        label = np.array([name.startswith("label:") for name in columns])
        names = np.array(columns)
        return Parsed(Split(table[:, ~label], table[:, label]), names[~label], names[label])  # type: ignore[arg-type]


class JsonLines(Format):
    """A format for whole folders: the files share the features and labels of train."""

    def recognises(self, folder: Path) -> bool:
        return (folder / "all.records").is_file()

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        lines = [json.loads(line) for line in (folder / "all.records").read_text().splitlines()]
        X, Y = [line["x"] for line in lines], [line["y"] for line in lines]
        return Dataset("any name", Split(X[:-2], Y[:-2]), Split(X[-2:], Y[-2:]))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with tables of the demo's first texts, labels and features, as far as they are of use."""
    demo = load_dataset("demo")
    labels = np.argsort(-demo.train.labels.getnnz(axis=0))[:6]
    columns = "\t".join([*(f"label:{label}" for label in labels), *(f"x{n}" for n in range(30))])
    (tmp_path / "mine").mkdir()
    for name, split in (("my_train.dat", demo.train), ("test.dat", demo.test)):
        table = np.hstack([split.labels[:200, labels].toarray(), split.features[:200, :30].toarray()])
        np.savetxt(tmp_path / "mine" / name, table, "%g", "\t", header=columns, comments="")
    return tmp_path / "mine"


def test_a_folder_is_trained_on_and_a_file_predicted(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train file: expected .* train\.txt or train\.arff \(\.gz, \.bz2\); or"):
        load_dataset(tables)
    register_format("tsv")(Tsv)
    data = load_dataset(tables)
    assert (data.name, len(data.train), data.feature_count, data.label_count) == ("mine", 200, 30, 6)
    assert all(name.startswith("label:") for name in data.label_names)
    keys = {"rounds": 2, "encoder": {"name": "linear", "dim": 8}}
    run = fedalc.train(dataset=str(tables), folder=tmp_path / "run", **keys)
    assert "P@1" in run.metrics
    out = tmp_path / "out.csv"
    more = {"form": "csv", "out": out, "broken": "refuse", "sheet": None, "sheet_pictures": 1, "device": "cpu"}
    predict_file(tmp_path / "run", tables / "test.dat", Answer(2), **more)  # type: ignore[arg-type]
    assert len(out.read_text().splitlines()) == 1 + 2 * 200
    compared = fedalc.compare(dataset=str(tables), methods=["fedavg", "fedalc"], folder=tmp_path / "both", **keys)
    assert [run.result["dataset"] for run in compared.runs] == ["mine", "mine"]


def test_commands_know_it(tables: Path) -> None:
    register_format("tsv")(Tsv)
    said = CliRunner().invoke(app, ["info", str(tables)]).stdout
    assert said.splitlines()[0] == f"{tables}: tab-separated numbers in test.dat, my_train.dat"
    assert CliRunner().invoke(app, ["check", str(tables)]).exit_code == 0
    assert "tsv (tab-separated numbers)" in CliRunner().invoke(app, ["list"]).stdout.replace("\n", " ")


def test_parties_and_servers_read_it(tables: Path) -> None:
    register_format("tsv")(Tsv)
    for held in (load_held(tables), load_held(tables / "my_train.dat")):
        assert len(held[0]) == 200 and held[1][0].startswith("label:")
    assert held_out_file(tables) == tables / "test.dat"
    assert not has_pictures(tables)


def test_columns_that_differ_between_splits_are_refused(tables: Path) -> None:
    register_format("tsv")(Tsv)
    test = tables / "test.dat"
    test.write_text(test.read_text().replace("x3\t", "other\t"))
    with pytest.raises(DataError, match=r"test\.dat: has other attributes than .*my_train\.dat"):
        load_dataset(tables)
    test.unlink()
    assert len(load_dataset(tables).test) == 40  # held out


def test_a_format_of_whole_folders(write: Write) -> None:
    register_format("jsonl")(JsonLines)
    lines = [{"x": [1, n], "y": [n % 2, 1]} for n in range(6)]
    folder = write("\n".join(map(json.dumps, lines)), "set/all.records").parent
    data = load_dataset(folder)
    assert (data.name, len(data.train), len(data.test)) == ("set", 4, 2)
    assert format_of(folder).describe(folder) == ["jsonl"]
    assert len(load_held(folder)[0]) == 4
    with pytest.raises(DataError, match=r"the first line should be three whole numbers"):
        load_file(folder / "all.records")  # it reads no single files
    write("1 2 2\n0 0:1\n", "set/train.txt")
    assert len(load_dataset(folder).train) == 4, "your own format goes before the built-in ones"


def test_it_goes_before_a_built_in_format_of_the_same_file(write: Write, tmp_path: Path) -> None:
    @register_format("zeros")
    class Zeros(Format):
        suffixes = (".txt",)

        def read_file(self, path: Path, options: ReadOptions) -> Split:
            return Split(np.zeros((2, 3)), np.eye(2))

    for name in ("train.txt", "test.txt", "labels.txt"):
        write("one\ntwo\n", f"set/{name}")
    assert load_dataset(tmp_path / "set").label_names == ("one", "two")
    assert load_file(tmp_path / "set/test.txt", 3).features.nnz == 0


def test_what_it_returns_is_checked_and_its_errors_name_it(write: Write, tmp_path: Path) -> None:
    returned: list[object] = [[1, 2]]

    @register_format("odd")
    class Odd(Format):
        suffixes = (".odd",)

        def read_file(self, path: Path, options: ReadOptions) -> Split:
            if isinstance(returned[0], Exception):
                raise returned[0]
            return returned[0]  # type: ignore[return-value]

    for name in ("train.odd", "test.odd"):
        write("", f"set/{name}")
    with pytest.raises(
        DataError, match=r"set/test\.odd: the format 'odd' returned \[1, 2\]: .* return fedalc\.Split or Parsed"
    ):
        load_dataset(tmp_path / "set")
    returned[0] = KeyError("label")
    with pytest.raises(DataError, match=r"set/test\.odd: the format 'odd' failed: KeyError: 'label'"):
        load_dataset(tmp_path / "set")
    with pytest.raises(DataError, match=r"train\.odd: the format 'odd' failed: KeyError: 'label'"):
        load_file(tmp_path / "set/train.odd")
    returned[0] = DataError("says itself what is wrong")
    with pytest.raises(DataError, match=r"^says itself what is wrong$"):
        load_dataset(tmp_path / "set")


def test_a_folder_reader_returns_a_dataset(tmp_path: Path) -> None:
    @register_format("none")
    class Nothing(Format):
        def recognises(self, folder: Path) -> bool:
            return True

        def read(self, folder: Path, options: ReadOptions) -> Dataset:
            return None  # type: ignore[return-value]

    with pytest.raises(DataError, match=r"the format 'none' returned None: read should return a fedalc\.Dataset"):
        load_dataset(tmp_path)


def test_what_cannot_be_registered() -> None:
    with pytest.raises(ConfigError, match="is not a format: register a class that extends"):
        register_format("mine")(object)
    with pytest.raises(ConfigError, match="'arff'"):
        register_format("arff")(Tsv)
