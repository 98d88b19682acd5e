"""docs/architecture.md names files, folders and functions that exist; the package holds folders and four files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "fedalc"
SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}


def test_the_package_holds_folders_and_four_files() -> None:
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "errors.py", "py.typed"}


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(named) > 40
    assert [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in SOURCES)] == [
        "examples/fedalc_naive.py"
    ]


def test_every_name_after_a_file_is_in_it() -> None:
    for file, name in re.findall(r"`([\w/]+\.py)` `([\w.]+)`", PAGE):
        texts = [path.read_text(encoding="utf-8") for key, path in SOURCES.items() if f"/{key}".endswith(f"/{file}")]
        for part in name.split("."):
            assert any(re.search(rf"(def|class) {part}\b", text) for text in texts), f"{file} {name}"


def test_the_page_lists_the_layers_in_their_order() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = pyproject["tool"]["importlinter"]["contracts"]
    assert re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE) == [
        layer for layer in contract["layers"] if layer != "errors"
    ]
