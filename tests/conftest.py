"""For all tests: nothing goes into the user's own privacy ledger."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

_number = count()


@pytest.fixture(scope="session")
def _ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledgers")


@pytest.fixture(autouse=True)
def privacy_ledger(_ledgers: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new one for each test."""
    path = _ledgers / f"{next(_number)}.jsonl"
    monkeypatch.setenv("FEDALC_PRIVACY_LEDGER", str(path))
    return path
