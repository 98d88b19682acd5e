"""Fixtures: compressed files, a temporary cache, and the real data if it is available."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests away from the user's own cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDALC_CACHE", str(folder))
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(content: str | bytes, name: str = "data.txt") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def real_data(*parts: str) -> Path:
    """Return a file or folder of the real data, or skip the test."""
    root = os.environ.get("FEDALC_DATA")
    if not root:
        pytest.skip("needs real data: set FEDALC_DATA to the folder of datasets")
    path = Path(root).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} in FEDALC_DATA")
    return path
