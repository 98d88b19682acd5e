"""Features that few parties have are left out of the sums of real parties, and the server does not see who has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower import secure_engine
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.feature_holders import told_to_all
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.sum_messages import FEATURE_HOLDERS, FEATURES, MASKED
from fedalc.deployment.flower.table_seals import SEALS, SumOf
from fedalc.errors import ConfigError
from fedalc.models.encoders import scale_rows
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    LINEAR,
    OWNED,
    Nodes,
    asked,
    assert_same,
    fails,
    literal_twin,
    notes,
    overrides,
    run,
)

ON = {"secure-sums": "on"}
LEAST = 4


@pytest.fixture
def rare(train: Split) -> np.ndarray:
    """Which features fewer than all four parties have."""
    holders = np.zeros(train.features.shape[1], dtype=int)
    for labels in OWNED.values():
        own = train.rows(np.flatnonzero(train.labels[:, labels].getnnz(axis=1)))
        holders += own.features.getnnz(axis=0) > 0
    found: np.ndarray = holders < LEAST
    assert found.any() and not found.all()
    return found


def config(**more: Any) -> dict[str, Any]:
    return asked("fedalc-oneshot", LINEAR | {"server.least_holders": LEAST}, **(ON | more))


def without(train: Split, features: np.ndarray) -> Split:
    """Rows are scaled before features are left out."""
    kept = scale_rows(train.features, "unit").toarray()
    kept[:, features] = 0
    return Split(type(train.features)(kept), train.labels)


def test_the_model_is_that_without_these_features(
    parties: Nodes, train: Split, rare: np.ndarray, tmp_path: Path
) -> None:
    grid = LocalGrid(parties)
    grid.keeps = True
    found = run(grid, tmp_path / "run", config())
    settings = experiment(
        {"method": "fedalc-oneshot", "engine": "clients"}, overrides=overrides(LINEAR | {"encoder.features": "raw"})
    )
    twin = literal_twin(settings, without(train, rare), parties[7]["key"])
    twin.run_round()
    assert_same(found.model, twin.averaged_model())
    assert not found.model.theta[0].detach().numpy()[rare].any()
    assert sum(kind == FEATURES for _, kind, _ in grid.asked) == len(OWNED)
    for reply in grid.replies:
        if reply.has_content() and MASKED in reply.content:  # random numbers, no zeros and ones
            (numbers,) = reply.content.array_records[MASKED].values()
            assert (np.frombuffer(numbers.data, np.uint64) > 1 << 32).mean() > 0.9


def test_false_numbers_are_refused(parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def every_feature_has_enough(total: np.ndarray, of: SumOf) -> dict[str, ArrayRecord]:
        return told_to_all(np.concatenate([np.full(len(total) - SEALS, LEAST, np.uint64), total[-SEALS:]]), of)

    monkeypatch.setattr(secure_engine, "told_to_all", every_feature_has_enough)
    with fails(TooFew):
        run(LocalGrid(parties), tmp_path / "run", config())
    assert "sends other numbers of holders of features" in notes(tmp_path / "run")[0][2]


def test_numbers_of_other_parties_are_refused(parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the sum has twice the seals, if twice as many parties count."""
    twice = lambda total, of: told_to_all(total * np.uint64(2), replace(of, parties=2 * of.parties))  # noqa: E731
    monkeypatch.setattr(secure_engine, "told_to_all", twice)
    with fails(TooFew):
        run(LocalGrid(parties), tmp_path / "run", config())
    assert "sends other numbers of holders of features" in notes(tmp_path / "run")[0][2]


def test_a_question_without_the_numbers_is_refused(
    parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_engine, "told_to_all", lambda total, of: {})
    with fails(TooFew):
        run(LocalGrid(parties), tmp_path / "run", config())
    assert FEATURE_HOLDERS in notes(tmp_path / "run")[0][2]


def test_other_runs_do_not_ask(parties: Nodes, tmp_path: Path) -> None:
    grid = LocalGrid(parties)
    run(grid, tmp_path / "run", asked("fedalc-oneshot", LINEAR, **ON))
    assert FEATURES not in {kind for _, kind, _ in grid.asked}


def test_without_secure_sums_it_would_hide_nothing() -> None:
    with pytest.raises(ConfigError, match="without secure sums the server sees each party's own"):
        read_run_config(config(**{"secure-sums": "off"}), 1)
