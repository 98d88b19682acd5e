"""Wrong usages and what fedalc says to them: half in Python, half on the command line.

`python -m tests.wrong_usages` writes docs/results/wrong-usages.md; tests/test_wrong_usages.py checks every line of it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedalc

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
    Usage("one method where a list belongs", 'fedalc.compare("fedalc", X, Y)', "['fedalc']"),
    Usage(
        "lists of labels for the classifier",
        'fedalc.FedALCClassifier().fit(X[:2], [["a"], ["a", "b"]])',
        "MultiLabelBinarizer",
    ),
    Usage("a decorator without its name", "fedalc.register_method(Mine)", 'register_method("name")'),
)
"""In Python, where `X` has 60 records × 6 features, `Y` a 0/1 matrix of 3 labels, and `run` was trained on them."""

COMMANDS: tuple[Usage, ...] = ()
"""On the command line."""


def given() -> dict[str, Any]:
    """Return what the code of `PYTHON` may use."""
    X, Y = np.random.default_rng(0).random((60, 6)), np.eye(3, dtype=int)[np.arange(60) % 3]
    data = fedalc.Dataset("mine", fedalc.Split(X, Y), fedalc.Split(X, Y))
    run = fedalc.train(data, tune=False)
    return {
        "fedalc": fedalc,
        "np": np,
        "nn": nn,
        "X": X,
        "Y": Y,
        "run": run,
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


def messages_in_python() -> list[str]:
    names = given()
    found = []
    for usage in PYTHON:
        with TemporaryDirectory() as folder:
            found.append(message_in_python(usage, names, Path(folder)))
    return found


if __name__ == "__main__":
    PAGE.write_text(page(messages_in_python(), []), encoding="utf-8")
