"""Every wrong usage raises a FedalcError that says what is wrong, and docs/results/wrong-usages.md has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.wrong_usages import (
    COMMANDS,
    PAGE,
    PYTHON,
    Usage,
    _cell,
    given,
    message_in_python,
    message_of_command,
    prepare,
)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return given()


@pytest.mark.parametrize("usage", PYTHON, ids=lambda usage: usage.mistake)
def test_in_python(usage: Usage, names: dict[str, Any], tmp_path: Path) -> None:
    said = message_in_python(usage, names, tmp_path)
    assert usage.says in said
    assert "--" not in said or "in Python " in said, "it names an option, and not what to write in Python"
    assert on_page(usage), "make the page again: python -m tests.wrong_usages"


@pytest.fixture(scope="module")
def folder(names: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    prepare(folder, names)
    return folder


@pytest.mark.parametrize("usage", COMMANDS, ids=lambda usage: usage.mistake)
def test_on_the_command_line(usage: Usage, folder: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    assert usage.says in message_of_command(usage, folder)
    assert {path.name for path in folder.iterdir()} - before <= {"cache"}, f"{usage.code} left files behind"
    assert on_page(usage), "make the page again: python -m tests.wrong_usages"


def on_page(usage: Usage) -> bool:
    begin = f"| {usage.mistake} | `{_cell(usage.code)}` |"
    rows = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith(begin)]
    return len(rows) == 1 and _cell(usage.says) in rows[0]
