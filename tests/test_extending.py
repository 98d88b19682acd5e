"""Every example in docs/extending.md is complete and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def name_of(example: str) -> str:
    named = re.match(r"# (\w+\.py)\n", example)
    return named[1] if named else "unnamed.py"


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_every_example_runs_as_a_file(example: str, tmp_path: Path) -> None:
    (tmp_path / name_of(example)).write_text(example)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, name_of(example)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_names_every_way_in() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for word in ("register_method", "register_encoder", "register_format", "register_metric", "register_callback"):
        assert word in text, word


def test_an_example_of_a_method_has_about_thirty_lines() -> None:
    method = next(example for example in EXAMPLES if "AwayFromMean" in example)
    assert len([line for line in method.splitlines() if line.strip()]) <= 32
