"""Measure how many files and functions one training passes through, and the size of the package.

    python benchmarks/way_through.py                                     # this checkout
    python benchmarks/way_through.py --src OLD/src --tests OLD/tests     # another version

Runs `fedalc train` in this process (dataset demo, method fedalc, 2 rounds, engine fused, quiet, into a temporary
folder) under `sys.setprofile` and follows the calls of the package's Python functions on the main thread, including
imports. It counts:

- files: source files in which at least one function (or the module body) is called,
- functions: distinct functions called, without module bodies,
- changes of file: consecutive calls of functions in different files; returns do not count. `first` counts each function
  only at its first call, like a reader who follows the training through the code and reads each function once. `all`
  counts every call, so loops dominate it.

It counts with imports (a module body and everything it calls) and without (after a first training in the same process).
The size counts Python files, their lines, and the modules directly in the package's folder. Prints a table and, as the
last line, JSON.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent.parent
COMMAND = ("train", "--dataset", "demo", "--method", "fedalc", "--rounds", "2", "--engine", "fused", "--quiet")


class Follower:
    """A profile function that counts calls of functions defined in the package."""

    def __init__(self, package: Path) -> None:
        self.package = f"{package}/"
        self.files: set[str] = set()
        self.functions: set[tuple[str, int]] = set()
        self.changes = self.first_changes = 0
        self._last = self._last_first = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not (code.co_filename.startswith(self.package) and code.co_filename.endswith(".py")):
            return
        file, function = code.co_filename, (code.co_filename, code.co_firstlineno)
        self.files.add(file)
        self.changes += file != self._last
        self._last = file
        if code.co_name != "<module>" and function not in self.functions:
            self.functions.add(function)
            self.first_changes += file != self._last_first
            self._last_first = file

    def counts(self) -> dict[str, int]:
        return {
            "files": len(self.files),
            "functions": len(self.functions),
            "first_changes": self.first_changes - 1,
            "all_changes": self.changes - 1,
        }


def follow(src: Path, warm: bool) -> dict[str, int]:
    """Train once and return the counts. `warm`: train once before, so that everything is imported."""
    sys.path.insert(0, str(src))
    import fedalc

    package = Path(fedalc.__file__).resolve().parent
    if package.parent != src:
        sys.exit(f"fedalc is imported from {package}, not from {src}: unset PYTHONPATH, or set it to {src}")
    if warm:
        train()
    follower = Follower(package)
    sys.setprofile(follower)
    try:
        train()
    finally:
        sys.setprofile(None)
    return follower.counts()


def train() -> None:
    """Run the command as `python -m fedalc` does, in this process."""
    with tempfile.TemporaryDirectory(prefix="fedalc-way-") as folder:
        sys.argv = ["fedalc", *COMMAND, "--out", folder]
        with redirect_stdout(sys.stderr), suppress(SystemExit):
            runpy.run_module("fedalc", run_name="__main__")
        if not list(Path(folder).glob("*/result.json")):
            sys.exit("the training did not finish")


def size(folder: Path) -> dict[str, int]:
    files = sorted(folder.rglob("*.py"))
    return {"files": len(files), "lines": sum(len(path.read_text().splitlines()) for path in files)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--src", type=Path, default=HERE / "src", help="the src folder to import fedalc from")
    parser.add_argument("--tests", type=Path, default=HERE / "tests", help="the tests to count the lines of")
    parser.add_argument("--follow", choices=("cold", "warm"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    src = given.src.resolve()
    if given.follow:
        print(json.dumps(follow(src, given.follow == "warm")))
        return
    counts: dict[str, Any] = {}
    for way in ("cold", "warm"):  # a process each: imports happen once
        command = [sys.executable, __file__, "--src", str(src), "--follow", way]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        counts[way] = json.loads(out.splitlines()[-1])
    flat = [path for path in (src / "fedalc").glob("*.py") if not path.name.startswith("__")]
    counts |= {"src": size(src), "tests": size(given.tests.resolve()), "flat_modules": len(flat)}
    print(f"{'one training':22}{'files':>8}{'functions':>11}{'changes: first':>17}{'all':>8}")
    for way, name in (("cold", "imports included"), ("warm", "without imports")):
        row = counts[way]
        print(f"{name:22}{row['files']:8}{row['functions']:11}{row['first_changes']:17}{row['all_changes']:8}")
    for part in ("src", "tests"):
        print(f"{part}: {counts[part]['files']} files, {counts[part]['lines']} lines")
    print(f"modules directly in the package's folder: {counts['flat_modules']}")
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
