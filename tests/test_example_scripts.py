"""The examples run to their end and print what they promise. Notebooks run in a kernel of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# What a script must print, besides ending well.
SCRIPTS = {
    "collapse_and_cure": ("fedavg ", "fedalc-exact ", "true: "),
    "own_text": ("→ ['billing', 'delivery']", "→ ['login']"),
    "own_encoder": ("<fedalc.Run fedalc-fixed on demo", "on validation data"),
    "parties_with_files": ("5 clients", "largest difference of a score: "),
}


def output(script: str, folder: Path) -> str:
    environment = {**os.environ, "FEDALC_CACHE": str(folder / "cache")}
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{script}.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts(script: str, tmp_path: Path) -> None:
    printed = output(script, tmp_path)
    for words in SCRIPTS[script]:
        assert words in printed
    if script == "collapse_and_cure":
        precision = {line.split()[0]: float(line.split()[2]) for line in printed.splitlines() if " P@1 " in line}
        assert precision["fedavg"] + 5 < precision["fedalc"] < precision["fedalc-exact"]
    if script == "parties_with_files":
        assert float(printed.split()[-1]) < 1e-4


@pytest.mark.deployment
def test_a_deployment(tmp_path: Path) -> None:
    assert "2 parties sent" in output("deployment_on_one_machine", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["collapse-and-cure", "own-text"])
def test_notebooks(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    shown = [cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"]
    assert any(outputs for outputs in shown)
    assert not [each for outputs in shown for each in outputs if each["output_type"] == "error"]


def test_all_examples_are_tested() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"fedalc_naive"}
    assert scripts == {*SCRIPTS, "deployment_on_one_machine"}
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == {"collapse-and-cure", "own-text"}
