"""Every wrong usage raises a FedalcError that says what is wrong, and docs/results/wrong-usages.md has its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.wrong_usages import PAGE, PYTHON, Usage, _cell, given, message_in_python


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return given()


@pytest.mark.parametrize("usage", PYTHON, ids=lambda usage: usage.mistake)
def test_in_python(usage: Usage, names: dict[str, Any], tmp_path: Path) -> None:
    said = message_in_python(usage, names, tmp_path)
    assert usage.says in said
    row = f"| {usage.mistake} | `{_cell(usage.code)}` | {_cell(said)} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines(), "python -m tests.wrong_usages"
