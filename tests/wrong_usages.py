"""Wrong usages and what fedalc says to them: half in Python, half on the command line.

`python -m tests.wrong_usages` writes docs/results/wrong-usages.md; tests/test_wrong_usages.py checks every line of it.
"""

from __future__ import annotations

import shlex
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
import pytest
from torch import nn

import fedalc
from tests.commands import run

PAGE = Path(__file__).parents[1] / "docs" / "results" / "wrong-usages.md"


@dataclass(frozen=True)
class Usage:
    """A mistake, as code or as a command line, and words that its message must have."""

    mistake: str
    code: str
    says: str


PYTHON = (
    Usage("a dataset's name with a typo", 'fedalc.train("bibtxe")', "did you mean bibtex"),
    Usage("a path that is not there", 'fedalc.train("my/data")', "no such"),
    Usage("records without labels", "fedalc.train(X)", "train(X, Y)"),
    Usage("data that is None", "fedalc.train(None)", "expected data, found None"),
    Usage("measurements in place of labels", "fedalc.train(X, X[:, 0])", "not a label"),
    Usage("measurements for the classifier", "fedalc.FedALCClassifier().fit(X, X[:, 0])", "learns classes"),
    Usage("labels of several types", 'fedalc.train(X, [1, "1"] * 30)', "several types: record 0 has 1 (int)"),
    Usage("labels of several types, in a frame", "fedalc.train(mixed)", "'1' (text), and before it 1 (int)"),
    Usage("a frame without labels that stand out", "fedalc.train(unclear)", "table={'label_columns': 'NAME'}"),
    Usage(
        "a column that the frame lacks",
        'fedalc.train(mixed, table={"text_columns": "body"})',
        "table={'text_columns': 'NAME'}",
    ),
    Usage(
        "the label column as text",
        'fedalc.train(mixed, table={"text_columns": "labels"})',
        "in Python table={'text_columns': …, 'label_columns': …}",
    ),
    Usage("an object where a text belongs", "fedalc.train(nested)", "table={'text_columns': 'NAME'}"),
    Usage("too few records to test on", 'fedalc.train(["a b"] * 9, ["a"] * 9)', "table={'test_share': 0}"),
    Usage(
        "a setting that the search chooses", 'fedalc.train(X, Y, tune=True, server={"ridge": 3})', "Python tune=False"
    ),
    Usage("a search for another method", 'fedalc.train(X, Y, tune=True, method="fedavg")', "in Python tune=False"),
    Usage(
        "secret rows without a key",
        'fedalc.train(X, Y, tune=False, embeddings={"secret": True})',
        "in Python collection={'key': FILE}",
    ),
    Usage(
        "more ε than the budget",
        'fedalc.train(X, Y, method="fedalc", privacy={"epsilon": 1}, epsilon_budget=0.5)',
        "in Python epsilon_budget=",
    ),
    Usage("a path as a name", 'fedalc.train(X, Y, name="runs/mine")', "in Python folder="),
    Usage(
        "a sentence encoder without its folder",
        'fedalc.train(X, Y, text={"kind": "encoder"})',
        "in Python text={'encoder': FOLDER}",
    ),
    Usage(
        "a section with a typo, for a table", 'fedalc.load_dataset("a.csv", table={"text_column": "a"})', "text_columns"
    ),
    Usage("ranges without a number of draws", 'fedalc.sweep(ranges={"server.ridge": "1:9"}, folder="s")', "random=20"),
    Usage("a callback that does not exist", 'fedalc.make_callback("mlfow")', "did you mean 'mlflow'?"),
    Usage("fewer labels than records", "fedalc.train(X, Y[:-1])", "Y has 59"),
    Usage("labels coded -1 and 1", "fedalc.train(X, 2 * Y - 1)", "give Y > 0"),
    Usage("a missing value", "fedalc.train(np.where(X > 0.99, np.nan, X), Y)", "row 4, column 2"),
    Usage("labels beside a dataset that has its own", 'fedalc.train("demo", Y)', "has labels already"),
    Usage("a method with a typo", 'fedalc.train(X, Y, method="fedalk")', "did you mean"),
    Usage("a setting that does not exist", "fedalc.train(X, Y, learning_rate=0.1)", "learning_rate"),
    Usage("a setting with the wrong type", 'fedalc.train(X, Y, method="fedalc", rounds="many")', "rounds"),
    Usage("a section given as a word", 'fedalc.train(X, Y, method="fedalc", server="adam")', "a dict of settings"),
    Usage("a device that is not there", 'fedalc.train(X, Y, device="gpu")', "use cpu"),
    Usage("a class in place of a network", "fedalc.train(X, Y, encoder=nn.Linear)", "encoder"),
    Usage("a function in place of a callback", "fedalc.train(X, Y, callbacks=[print])", "extends fedalc.Callback"),
    Usage("resuming without a folder", "fedalc.train(X, Y, resume=True)", "nothing to resume"),
    Usage("a word in place of True", 'fedalc.train(X, Y, tune="yes")', "True or False"),
    Usage("a dataset of matrices instead of splits", 'fedalc.Dataset("mine", X)', "fedalc.Split"),
    Usage("a label name twice", 'fedalc.Dataset("mine", fedalc.Split(X, Y), label_names=["a", "b", "a"])', "'a'"),
    Usage("a folder that has no run", 'fedalc.load_run("runs/mine")', "runs/mine"),
    Usage("features of another dataset", "run.model.predict(X[:, :3])", "trained on 6 features"),
    Usage("texts for a model of numbers", 'run.model.predict(["a new text"])', "not on raw texts"),
    Usage("evaluating records without labels", "run.evaluate(X)", "evaluate(X, Y)"),
    Usage("one method where a list belongs", 'fedalc.compare("fedalc", X, Y)', "['fedalc']"),
    Usage(
        "lists of labels for the classifier",
        'fedalc.FedALCClassifier().fit(X[:2], [["a"], ["a", "b"]])',
        "MultiLabelBinarizer",
    ),
    Usage("a decorator without its name", "fedalc.register_method(Mine)", 'register_method("name")'),
)
"""In Python, where `X` has 60 records × 6 features, `Y` a 0/1 matrix of 3 labels, and `run` was trained on them.
`mixed` and `nested` are data frames with the columns text and labels, `unclear` one with text, group and place."""

COMMANDS = (
    Usage("a command with a typo", "fedalc trian --dataset demo", "did you mean train?"),
    Usage("an option with a typo", "fedalc train --dataset demo --round 5", "did you mean --rounds?"),
    Usage(
        "a word where a number belongs", "fedalc train --dataset demo --rounds five", "'five' is not a valid integer"
    ),
    Usage("a dataset's name with a typo", "fedalc train --dataset bibtexx", "did you mean bibtex?"),
    Usage("a file that is not there", "fedalc train --dataset my-data.csv", "my-data.csv: no such file"),
    Usage("a method with a typo", "fedalc train --dataset demo --method fedalk", "did you mean 'fedalc'?"),
    Usage("a method with a typo, among several", "fedalc compare --dataset demo --methods fedavg,fedalk", "'fedalc'?"),
    Usage("a preset with a typo", "fedalc train --dataset demo --preset storng", "did you mean 'strong'?"),
    Usage("a setting with a typo", "fedalc train --dataset demo --set server.emma=0.9", "did you mean 'ema'?"),
    Usage(
        "a setting with the wrong type", "fedalc train --dataset demo --set server.ema=high", "server.ema: should be"
    ),
    Usage("a setting file that is not there", "fedalc train --config mine.toml", "mine.toml: no such file"),
    Usage(
        "a column that the table lacks", "fedalc train --dataset messages.csv --text-column body", "'text', 'labels'"
    ),
    Usage(
        "the label column as text",
        "fedalc train --dataset messages.csv --text-column labels",
        "--text-column and --label-column",
    ),
    Usage("an object where a text belongs", "fedalc train --dataset nested.jsonl", "nested.jsonl:1: column 'text'"),
    Usage("a share above 1", "fedalc train --dataset messages.csv --test-share 1.5", "should be less than 1"),
    Usage("a path as a name", "fedalc train --dataset demo --name ../mine", "leave out /"),
    Usage("an ε below 0", "fedalc train --dataset demo --epsilon -1", "should be greater than 0"),
    Usage("settings beside --resume", "fedalc train --resume runs/mine --rounds 5", "give no other settings"),
    Usage("resuming what is not a run", "fedalc train --resume nowhere", "not a run folder"),
    Usage("predicting with a run that is not there", "fedalc predict runs/other new.txt", "runs/other: no such folder"),
    Usage("a text for a model of numbers", "fedalc predict runs/mine 'a new text'", "no text for this model"),
    Usage("both a file and a text", "fedalc predict runs/mine new.txt --text oil", "only one of them"),
    Usage("an output format that does not exist", "fedalc predict runs/mine new.txt --format xml", "csv or jsonl"),
    Usage("an export without its file", "fedalc export runs/mine", "such as --onnx model.onnx"),
    Usage("a port out of range", "fedalc serve runs/mine --port 99999", "0<=x<=65535"),
    Usage("serving without the extra", "fedalc serve runs/mine", "pip install 'fedalc[serve]'"),
    Usage(
        "a token file that is not there", "fedalc serve runs/mine --token-file token", "token: the token file cannot be"
    ),
    Usage(
        "a file that is not a key", "fedalc collect client messages.csv --key bad.key --out a", "fedalc key new FILE"
    ),
    Usage("a key over another one", "fedalc key new bad.key", "keys are never overwritten"),
    Usage("seeds that are not numbers", "fedalc compare --dataset demo --seeds 0,x", "'x' is not a whole number"),
    Usage("a condition with two signs", "fedalc runs --where 'P@1>>5'", "expected a name, one of"),
    Usage("a table with a typo", "fedalc reproduce bibtx", "did you mean bibtex?"),
    Usage("a size without a number", "fedalc train --dataset demo --memory-budget lots", "write it like 500MB"),
    Usage("a report of what is not a run", "fedalc report messages.csv", "no such folder"),
)
"""On the command line, in a folder with `messages.csv` (columns `text` and `labels`), `nested.jsonl`, `new.txt`,
`bad.key` (random bytes), and the run `runs/mine`, which was trained on rows of numbers."""


def given() -> dict[str, Any]:
    """Return what the code of `PYTHON` may use."""
    X, Y = np.random.default_rng(0).random((60, 6)), np.eye(3, dtype=int)[np.arange(60) % 3]
    data = fedalc.Dataset("mine", fedalc.Split(X, Y), fedalc.Split(X, Y))
    sentences = ["one wheat field and its grain", "oil ships that cross the sea"]
    return {
        "fedalc": fedalc,
        "np": np,
        "nn": nn,
        "X": X,
        "Y": Y,
        "run": fedalc.train(data, tune=False),
        "mixed": pandas.DataFrame({"text": sentences, "labels": [1, "1"]}),
        "unclear": pandas.DataFrame({"text": sentences, "group": ["a", "b"], "place": ["here", "there"]}),
        "nested": pandas.DataFrame({"text": [{"title": "oil"}] * 9, "labels": ["oil"] * 9}),
        "Mine": type("Mine", (), {"__module__": "mine"}),
    }


def message_in_python(usage: Usage, names: dict[str, Any], folder: Path) -> str:
    """Run the code in an empty folder and return the message of its FedalcError. Any other outcome is an error."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.chdir(folder)
        with pytest.raises(fedalc.FedalcError) as found:
            exec(usage.code, dict(names))
    assert not list(folder.iterdir()), f"{usage.code} left files behind"
    return str(found.value)


def prepare(folder: Path, names: dict[str, Any]) -> None:
    """Write the files that the commands name."""
    (folder / "messages.csv").write_text("text,labels\n" + "one wheat field,wheat\noil ships,oil\n" * 6)
    (folder / "nested.jsonl").write_text('{"text": {"title": "oil"}, "labels": ["oil"]}\n')
    (folder / "new.txt").write_text("1 6 0\n 0:1 2:0.5\n")
    (folder / "bad.key").write_bytes(bytes(range(40)))
    (folder / "bad.key").chmod(0o600)
    names["run"].model.save(folder / "runs" / "mine" / "model")
    (folder / "runs" / "mine" / "config.toml").write_text('method = "fedalc"\n')


def message_of_command(usage: Usage, folder: Path) -> str:
    """Run the command in the prepared folder. It must print one line and end with code 2."""
    with pytest.MonkeyPatch.context() as patch:
        if "without the extra" in usage.mistake:
            patch.setitem(sys.modules, "uvicorn", None)
        ended = run(*shlex.split(usage.code)[1:], cwd=folder, code=2)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1 and lines[0].startswith("error: ") and not ended.stdout, ended
    return lines[0].removeprefix("error: ")


def page(python: list[str], commands: list[str]) -> str:
    """Return docs/results/wrong-usages.md."""
    count = len(python) + len(commands)
    lines = [
        "# Wrong usages and what fedalc says",
        "",
        f"{count} mistakes and their messages, made with `python -m tests.wrong_usages`; a test checks each of them.",
        "In Python every message is that of a `fedalc.FedalcError`; a command prints it and ends with code 2.",
    ]
    for title, usages, messages in (("In Python", PYTHON, python), ("On the command line", COMMANDS, commands)):
        if usages:
            lines += ["", f"## {title}", "", "| mistake | usage | message |", "|---|---|---|"]
            rows = zip(usages, messages, strict=True)
            lines += [f"| {usage.mistake} | `{_cell(usage.code)}` | {_cell(said)} |" for usage, said in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def messages_in_python(names: dict[str, Any]) -> list[str]:
    found = []
    for usage in PYTHON:
        with TemporaryDirectory() as folder:
            found.append(message_in_python(usage, names, Path(folder)))
    return found


def messages_of_commands(names: dict[str, Any]) -> list[str]:
    with TemporaryDirectory() as folder:
        prepare(Path(folder), names)
        return [message_of_command(usage, Path(folder)).replace(folder, "…") for usage in COMMANDS]


if __name__ == "__main__":
    names = given()
    PAGE.write_text(page(messages_in_python(names), messages_of_commands(names)), encoding="utf-8")
