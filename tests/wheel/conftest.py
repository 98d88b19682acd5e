"""An environment with the wheel, outside the checkout: with all dependencies installed again (`make wheel-test`), or
with those that are installed here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.wheel.home import CLEAN, ROOT, Home

EXTRAS = "flower,images,privacy,tables,tracking,onnx,serve"


@pytest.fixture(scope="package")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    isolation = [] if CLEAN else ["--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-w", str(place), str(source)]
    subprocess.run(command, check=True)
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="package")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Make an environment with the wheel, and a folder to work in."""
    place = tmp_path_factory.mktemp("home")
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if CLEAN:
        subprocess.run([*install, f"fedalc[{EXTRAS}] @ {wheel.as_uri()}"], check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
    else:
        (site,) = place.glob("env/lib/python*/site-packages")
        # A folder on a .pth line is searched last, and its own .pth files, such as an editable install's, are not read.
        (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        subprocess.run([*install, "--no-deps", "--no-index", "--force-reinstall", str(wheel)], check=True)
    return Home(place)
