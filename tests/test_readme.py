"""The README's Python example runs, and the notes below its demo tables match the current settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedalc.config.resolve import experiment
from fedalc.config.unused import acting
from fedalc.report.differences import differences
from fedalc.report.summary import merge

README = Path(__file__).parent.parent / "README.md"
DEMO = tuple(re.findall(r"^DEMO := (.*)$", README.with_name("Makefile").read_text(), re.MULTILINE)[0].split(","))


@pytest.mark.long
def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert float(first.split()[1]) > 80
    assert second.startswith("['")


@pytest.mark.parametrize(("dataset", "methods"), [("demo", DEMO), ("mosaics", ("fedavg", "fedalc", "fedalc-exact"))])
def test_the_demos_tables_say_what_differs(dataset: str, methods: tuple[str, ...]) -> None:
    """With the current preset: the lines below the tables are those that `make demo` prints."""
    keys = {"preset": "demo", "dataset": dataset}
    plan = {method: experiment({**keys, "method": method}) for method in methods}
    results = [{**keys, "method": method, "seed": 0, "settings": acting(plan[method])} for method in methods]
    found = differences(merge(results))
    assert found is not None and "\n".join(found.as_text()) in README.read_text(encoding="utf-8")
