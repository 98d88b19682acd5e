"""Fixtures for all tests: a temporary privacy ledger and, on request, reports without curves."""

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
    """Use a new, temporary privacy ledger for each test."""
    path = _ledgers / f"{next(_number)}.jsonl"
    monkeypatch.setenv("FEDALC_PRIVACY_LEDGER", str(path))
    return path


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports without curves, for tests that train often: drawing takes longer than training."""
    monkeypatch.setattr("fedalc.report.page.panel_svg", lambda *_: "")
