"""Fixtures for all tests: a temporary privacy ledger and, on request, reports without curves."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

_number = count()

# Some virtual machines announce matrix instructions (AMX) that they cannot run, and a product in bfloat16 then ends the
# process. The tests do without them.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


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
