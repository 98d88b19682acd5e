"""Calls of Flower's programs: correct settings, an app without code, no connection to the outside."""

from __future__ import annotations

import io
import shutil
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import parse_config_args

from fedalc.deployment import flower_programs as flower
from fedalc.deployment.flower.run_config import DEFAULTS
from fedalc.deployment.flower_programs import APP, environment, plain, write_settings
from fedalc.deployment.supernode import why_refused
from fedalc.errors import FedalcError

HARD = [
    "a b",
    "it's",
    'say "x"',
    "both ' and \"",
    "back\\slash",
    "new\nline",
    "tab\t",
    "é λ 字",
    "x=1",
    "#",
    "\x7f",
    "",
]


@pytest.mark.parametrize("text", HARD)
def test_flower_reads_settings_as_they_were_written(tmp_path: Path, text: str) -> None:
    file = tmp_path / 'it\'s a "node".toml'
    values: dict[str, Any] = {"data": text, "share-names": True, "digest-bytes": 16, "wait": 0.5, "small": 1e-7}
    write_settings(file, values)
    assert parse_config_args([str(file)]) == values


def test_the_app_has_every_setting_of_a_run() -> None:
    app = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == DEFAULTS
    for component in app["components"].values():
        module, name = component.split(":")
        assert hasattr(import_module(module), name)


def test_fedalcs_own_app_is_accepted() -> None:
    assert why_refused(build_fab_from_disk(APP)) == ""


@pytest.mark.parametrize("file", ["torch.py", "fedalc/__init__.py", "notes.md", "sub/README.md"])
def test_an_app_that_brings_a_file_is_refused(tmp_path: Path, file: str) -> None:
    app = shutil.copytree(APP, tmp_path / "app")
    (app / file).parent.mkdir(exist_ok=True)
    (app / file).write_text("# anything\n")
    assert repr(file) in why_refused(build_fab_from_disk(app))


def test_an_app_that_runs_something_else_is_refused() -> None:
    archive = io.BytesIO()
    text = (APP / "pyproject.toml").read_text().replace("fedalc.deployment.flower.client_app:app", "os:abort")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyproject.toml", text)
    assert "os:abort" in why_refused(archive.getvalue())


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_an_app_that_cannot_be_read_is_refused(content: bytes) -> None:
    assert "cannot be read" in why_refused(content)


@pytest.mark.parametrize("pyproject", ["", "not toml [", "[tool.flwr.app]\ncomponents = 3"])
def test_an_app_with_a_strange_pyproject_is_refused(pyproject: str) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyproject.toml", pyproject)
    assert why_refused(archive.getvalue())


def test_the_environment_stays_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("FEDALC_DATA", "/data")
    made = environment(tmp_path)
    assert made["FLWR_TELEMETRY_ENABLED"] == "0" and made["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert made["FLWR_HOME"] == str(tmp_path) and made["FEDALC_DATA"] == "/data"
    assert made["PATH"].startswith(str(Path(sys.executable).parent))


def test_without_flower_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FedalcError, match=r"pip install 'fedalc\[flower\]'"):
        flower.require_flower()


def test_lines_of_flowers_log() -> None:
    assert plain("\x1b[92mINFO \x1b[0m:      SuperNode ID: 5\n") == "SuperNode ID: 5"
    assert plain("\x1b[92mINFO \x1b[0m:      \n") == ""
    assert plain("\x1b[93mWARNING \x1b[0m:   retrying") == "WARNING :   retrying"
