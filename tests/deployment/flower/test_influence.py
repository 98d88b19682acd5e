"""A party's engine measures side by side what it measures label by label, and leaves the same labels out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, diags

from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.data.dataset import Split
from fedalc.deployment.flower import contributions
from fedalc.deployment.flower.compared_rows import ComparedRows
from fedalc.deployment.flower.contributions import CarefulEngine, enough_contribute
from fedalc.deployment.flower.influence import length
from fedalc.deployment.flower.limits import FEWEST, Limits
from fedalc.deployment.flower.wire import BadMessage
from fedalc.engines import local_groups
from fedalc.engines.base import RoundResult
from fedalc.engines.per_client import ClientsEngine
from fedalc.methods.losses import SET_LOSSES
from fedalc.models.encoders import Chance
from fedalc.models.model import Model
from fedalc.training.federated import FederatedTraining
from tests.engines.test_equality import BY_STEPS, CONSTANT, RANDOM, TRAIN, settings
from tests.engines.test_lockstep import BOTH, LINEAR, SCHEDULES
from tests.problems import changed, federated

LONG = 7  # a record with labels 0 to 2, next to which others count for little


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the records have to contribute, so that some labels are left out and others are not."""
    monkeypatch.setattr(contributions, "SMALL", 2)


def train_split() -> Split:
    """Raw features, of which one record's are 30 times as long."""
    lengths = np.ones(len(TRAIN), dtype=np.float32)
    lengths[LONG] = 30
    labels = TRAIN.labels.tolil()
    labels[LONG] = np.arange(labels.shape[1]) < 3
    return Split(csr_matrix(diags(lengths) @ TRAIN.features), csr_matrix(labels))


class Measured(CarefulEngine):
    """Notes the influences of each label's records, by the records that took part."""

    noted: dict[tuple[int, ...], np.ndarray]

    def _enough(self, influences: Iterable[np.ndarray], seen: np.ndarray) -> bool:
        parts = np.stack([part / max(part.max(), 1e-300) for part in influences])
        self.noted[tuple(seen.tolist())] = parts
        return super()._enough(parts, seen)


class LabelByLabel(Measured):
    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        self._server = model
        return ClientsEngine.run(self, model, participants, chance, round_number)


def training_with(**changes: Any) -> FederatedTraining:
    client = {"learning_rate": 1e-4, "row_learning_rate": 1e-3} | changes.pop("client", {})
    encoder = {"features": "raw", "output": "raw"} | changes.pop("encoder", {})
    return federated(settings("clients", **changed({"client": client, "encoder": encoder}, changes)), train_split())


def ran(kind: type[Measured], training: FederatedTraining, fewest: int) -> tuple[Measured, RoundResult]:
    records = np.arange(len(TRAIN)) // 2  # two rows are the same record
    engine = kind(training.federation, training.method, training.settings, Limits(fewest=fewest), records)
    engine.noted = {}
    if training.method.set_loss is not None:
        engine.compared = ComparedRows(training.model.W.clone())
    chance = Chance(training.settings, 1, training.model.W)
    return engine, engine.run(training.model, training.federation.clients, chance, 1)


def assert_equal(fewest: int = FEWEST, **changes: Any) -> int:
    """Return how many labels were left out."""
    training = training_with(**changes)
    (ours, found), (theirs, wanted) = (ran(kind, training, fewest) for kind in (Measured, LabelByLabel))
    assert ours.left_out == theirs.left_out
    for mine, literal in zip([*found.change, found.rows], [*wanted.change, wanted.rows], strict=True):
        torch.testing.assert_close(mine.to_dense(), literal.to_dense(), rtol=1e-9, atol=1e-13)
    assert torch.equal(found.labels, wanted.labels) and found.loss == pytest.approx(wanted.loss, rel=1e-10)
    assert ours.noted.keys() == theirs.noted.keys()
    for key, noted in theirs.noted.items():
        np.testing.assert_allclose(ours.noted[key], noted, rtol=1e-8, atol=1e-12)
    return ours.left_out


@pytest.mark.few(10)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", BY_STEPS)
def test_every_method_and_schedule(method: str, schedule: str) -> None:
    assert assert_equal(method=method, client=SCHEDULES[schedule])


@pytest.mark.few(6)
@pytest.mark.parametrize("output", ["unit", "raw"])
@pytest.mark.parametrize("encoder", [{}, {"dropout": 0.4}, {"embedding": None}, LINEAR, CONSTANT, RANDOM], ids=str)
def test_every_encoder_of_features(encoder: dict[str, Any], output: str) -> None:
    schedule = SCHEDULES["momentum and decay"]
    assert_equal(method="fedalc", encoder={**encoder, "output": output}, client=schedule)


@pytest.mark.parametrize("encoder", [LINEAR, {}], ids=["linear", "mlp"])
@pytest.mark.parametrize("loss", ["square", *SET_LOSSES])
def test_every_loss(loss: str, encoder: dict[str, Any]) -> None:
    assert 0 < assert_equal(method="fedalc-exact", encoder=encoder, client={"loss": loss, **BOTH}) < 7


@pytest.mark.parametrize("own", [0.0, np.inf], ids=["own matrices", "corrections"])
def test_what_is_left_out_is_nothing_even_if_it_is_not_finite(own: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_groups, "OWN", own)
    monkeypatch.setattr(Measured, "_enough", lambda *_: False)
    training = training_with(method="fedalc", client={"loss": "square", "learning_rate": 1e200, **BOTH})
    engine, found = ran(Measured, training, FEWEST)
    assert engine.left_out == 7 and found.loss == 0 and not any(part.any() for part in found.change)
    assert torch.equal(found.rows, training.model.W)
    assert assert_equal(method="fedalc", client=SCHEDULES["both"]) == 7


def test_labels_that_need_too_much_memory_are_measured_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    most = int(np.median(train_split().labels.getnnz(axis=0)))
    monkeypatch.setattr(local_groups.Room, "numbers", lambda self, work: np.inf if len(work.instances) > most else 0)
    assert 0 < assert_equal(method="fedalc", client=BOTH) < 7


def test_a_sample_of_the_records() -> None:
    assert_equal(method="fedalc", client={"sample": 0.3, "weight_decay": 0.3})


def test_the_rule_is_off() -> None:
    assert assert_equal(fewest=1, method="fedalc", client=BOTH) == 0


def test_the_server_sets_neither_the_partys_memory_nor_its_time() -> None:
    training = training_with(method="fedalc", memory_budget=1 << 50, client=BOTH)
    engine, _ = ran(Measured, training, FEWEST)
    assert engine.settings.memory_budget == DEFAULT_BUDGET
    engine.limits = Limits({"seconds": 0.0})
    with pytest.raises(BadMessage, match="longer than 0 seconds"):
        engine.run(training.model, training.federation.clients, Chance(training.settings, 1, training.model.W), 1)


def test_numbers_too_small_to_be_squared_count() -> None:
    """A server that scales θ down could otherwise ask for a change in which one record stands alone."""
    values = torch.tensor([[3e-200, 4e-200], [0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(
        length(values), torch.tensor([5e-200, 0.0, 5.0], dtype=torch.float64), atol=0, rtol=1e-12
    )
    assert not enough_contribute(np.append(length(values)[:1].numpy(), np.zeros(39)), 8)


@pytest.mark.parametrize("strange", [np.inf, np.nan])
def test_what_cannot_be_measured_is_not_enough(strange: float) -> None:
    assert not enough_contribute(np.array([strange, 1.0, 1.0]), 8)
