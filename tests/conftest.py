"""Fixtures for all tests: a temporary privacy ledger, no figures unless a test asks, and no waiting for the disk."""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

_number = count()


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `few(n)`, leave n cases, evenly spaced, to `make test`, and mark the others long."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("long"):
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    for alike in cases.values():
        (n,) = alike[0].get_closest_marker("few").args  # type: ignore[union-attr]
        kept = {round(at * (len(alike) - 1) / max(n - 1, 1)) for at in range(n)}
        for at, item in enumerate(alike):
            if at not in kept:
                item.add_marker("long")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while modules are imported: what they make stays, and each search looks at all of it."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


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


# Drawing takes several times as long as a small training.
FIGURES = {
    "fedalc.report.page": ("panel_svg", "bars_svg"),
    "fedalc.report.sweep_figures": ("plot_sweep",),
    "fedalc.report.error_curves": ("write_error_curves", "write_comparison_curves"),
    "fedalc.report.plots": ("learning_curves", "precision_for_bytes", "comparison_bars", "cosine_heatmap"),
}


@pytest.fixture(scope="session", autouse=True)
def _undrawn() -> Iterator[dict[str, Any]]:
    """Leave figures out of reports and comparisons. Returns the functions that draw them, by their whole name."""
    drawing = {}
    with pytest.MonkeyPatch.context() as patch:
        for module, names in FIGURES.items():
            for name in names:
                drawing[f"{module}.{name}"] = getattr(import_module(module), name)
                patch.setattr(f"{module}.{name}", lambda *_, **__: "")
        yield drawing


@pytest.fixture
def draw(_undrawn: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Draw the figures that a test names."""
    return lambda *names: [monkeypatch.setattr(name, _undrawn[name]) for name in names]


@pytest.fixture
def figures(_undrawn: dict[str, Any], draw: Callable[..., None]) -> None:
    """Draw all figures, as for a user."""
    draw(*_undrawn)


@pytest.fixture(scope="session", autouse=True)
def _remembered_dropout() -> Iterator[None]:
    """Draw the factors of a round's dropout once: most tests have the same seed, and these are a million numbers."""
    chance = import_module("fedalc.models.encoders.chance")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chance, "_random_factors", lru_cache(32)(chance._random_factors))
        yield


@pytest.fixture(scope="session", autouse=True)
def _remembered_commands() -> Iterator[None]:
    """Let typer read the signatures of an app's commands once: it takes longer than most commands."""
    testing = import_module("typer.testing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", lru_cache(None)(testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Skip fsync of files and folders: tests/crash checks each of them on a simulated disk. Pipes refuse it as ever."""
    real = os.fsync

    def fsync(handle: int) -> None:
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            real(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield
