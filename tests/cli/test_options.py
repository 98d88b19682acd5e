"""Options that several commands share."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import click
import pytest
import typer

from fedalc.cli.app import command_line
from fedalc.cli.options import ColumnOptions, TrainingOptions, with_options


def parameters(*words: str) -> set[str]:
    command = command_line()
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return {str(parameter.name) for parameter in command.params}


@pytest.mark.parametrize("command", ["train", "compare", "sweep"])
def test_commands_that_train_have_the_same_options(command: str) -> None:
    assert {field.name for field in fields(TrainingOptions)} <= parameters(command)


def test_a_command_gets_its_options_as_a_group() -> None:
    seen = []

    @with_options
    def show(word: str, *, columns: ColumnOptions, twice: Annotated[bool, typer.Option("--twice")] = False) -> None:
        seen.append((word, columns.columns(), twice))

    app = typer.Typer()
    app.command()(show)
    app(["hello", "--text-column", "a", "--text-column", "b", "--label-separator", ";"], standalone_mode=False)
    app(["hello", "--twice"], standalone_mode=False)
    columns = {"text_columns": ["a", "b"], "label_separator": ";"}
    assert seen == [("hello", columns, False), ("hello", {}, True)]


def test_what_was_given_becomes_settings(tmp_path: Path) -> None:
    options = TrainingOptions(test=tmp_path / "test.csv", encoder="mlp", text_encoder=tmp_path, rounds=3)
    assert options.settings(dataset="demo", seed=None) == {
        "dataset": "demo",
        "rounds": 3,
        "encoder": {"name": "mlp"},
        "text": {"encoder": str(tmp_path)},
        "table": {"test": str(tmp_path / "test.csv")},
    }
    assert TrainingOptions().settings() == {}
    joined = TrainingOptions(text_encoder=tmp_path, with_tfidf=True).settings()
    assert joined == {"text": {"encoder": str(tmp_path), "tfidf": 1.0}}


def test_a_sentence_encoder_in_a_package_is_not_a_path() -> None:
    asked = TrainingOptions(text_encoder=Path("package:sentences")).settings()
    assert asked["text"] == {"encoder": "package:sentences"}
