"""Run `fedalc …` commands in this process: a new process would spend seconds on importing torch."""

from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from fedalc.cli.main import main

COLUMNS = "200"  # width of the terminal


@dataclass
class Ended:
    stdout: str
    stderr: str


def run(*arguments: str, cwd: Path, code: int = 0) -> Ended:
    """Run the command, check its exit code and return its output."""
    out, error = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.chdir(cwd)
        patch.setenv("COLUMNS", COLUMNS)
        patch.setenv("FEDALC_CACHE", str(cwd / "cache"))
        patch.setattr(sys, "argv", ["fedalc", *arguments])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own
        with pytest.raises(SystemExit) as end:
            main()
    assert (end.value.code or 0) == code, out.getvalue() + error.getvalue()
    return Ended(out.getvalue(), error.getvalue())
