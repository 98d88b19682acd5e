from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.sparse import issparse

from fedalc.data.dataset import Split
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower import party, run_config
from fedalc.deployment.flower.connections import Patience
from fedalc.labels.collection.holding import Holding
from tests.deployment.flower.problem import Nodes, all_different, write_parties


@pytest.fixture(scope="session")
def train() -> Split:
    return all_different()


@pytest.fixture(scope="session")
def parties(tmp_path_factory: pytest.TempPathFactory, train: Split) -> Nodes:
    return write_parties(tmp_path_factory.mktemp("parties"), train)


@pytest.fixture(scope="session", autouse=True)
def _remembered_holdings() -> Iterator[None]:
    """Read a party's files once while they stay the same. A real party reads them for every message."""
    read, known = party.load_holding, dict[Any, Holding]()

    def remembered(data: str, labels: Any, records: Any, data_dir: Any, images: Any, text: Any, least: int) -> Holding:
        arguments = data, labels, records, data_dir, images, text, least
        if not isinstance(text, TextSettings):
            return read(*arguments)
        files = [path for name in (data, records) if name for path in (Path(name), *Path(name).rglob("*"))]
        stats = [(str(path), path.stat()) for path in sorted(files) if path.exists()]
        case = repr((arguments[:4], least, images.size, images.difficult, images.broken, text))
        case += repr([(name, found.st_ino, found.st_size, found.st_mtime_ns) for name, found in stats])
        if case in known:
            return known[case]
        holding = read(*arguments)
        if issparse(holding.split.features):
            known[case] = holding
        return holding

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party, "load_holding", remembered)
        yield


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten waits to a hundredth, and write no reports."""

    def patience(start_with: int, go_on_with: int, for_parties: float, for_replies: float) -> Patience:
        return Patience(start_with, go_on_with, for_parties / 100, for_replies / 100, pause=0.002, again=0.005)

    monkeypatch.setattr(run_config, "Patience", patience)
    monkeypatch.setattr("fedalc.report.page.write_page", lambda *folder: None)
