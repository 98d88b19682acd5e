from __future__ import annotations

import pytest

from fedalc.data.dataset import Split
from fedalc.deployment.flower import run_config
from fedalc.deployment.flower.connections import Patience
from tests.deployment.flower.problem import Nodes, all_different, write_parties


@pytest.fixture(scope="session")
def train() -> Split:
    return all_different()


@pytest.fixture(scope="session")
def parties(tmp_path_factory: pytest.TempPathFactory, train: Split) -> Nodes:
    return write_parties(tmp_path_factory.mktemp("parties"), train)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten waits to a hundredth, and write no reports."""

    def patience(start_with: int, go_on_with: int, for_parties: float, for_replies: float) -> Patience:
        return Patience(start_with, go_on_with, for_parties / 100, for_replies / 100, pause=0.002, again=0.005)

    monkeypatch.setattr(run_config, "Patience", patience)
    monkeypatch.setattr("fedalc.report.page.write_page", lambda *folder: None)
