"""Engine `lockstep` equals the literal `clients` in float64: every method, loss, encoder and schedule."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, get_args

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.config.schema import ClientSettings, LossName
from fedalc.data.dataset import Split
from fedalc.engines import local_groups, lockstep
from fedalc.engines.aggregation import RULES
from fedalc.engines.held_records import likeness
from fedalc.engines.local_groups import Room, count_columns
from fedalc.engines.local_layers import OwnLayer
from fedalc.engines.local_schedule import Coefficients
from fedalc.engines.per_client import ClientsEngine
from fedalc.models.encoders import SparseRows
from fedalc.testing import assert_engines_equal
from tests.engines.test_equality import BY_STEPS, CONSTANT, RANDOM, SMALL, TRAIN
from tests.problems import changed, federated, random_split

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
LINEAR = {"name": "linear"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "one step": {},
    "epochs": {"epochs": 3},
    "minibatches": {"batch_size": 4},
    "both": {"epochs": 2, "batch_size": 3},
    "momentum and decay": {"epochs": 2, "batch_size": 3, "momentum": 0.7, "weight_decay": 0.2},
}
BOTH = SCHEDULES["both"]
ENCODERS = [LINEAR, CONSTANT, RANDOM, {"embedding": None}, {"output": "raw"}]
ENCODERS += [{"dropout": 0.4}, {"input_dropout": 0.3}]


def assert_equal(rounds: int = 2, train: Split = TRAIN, **changes: Any) -> None:
    client = {"learning_rate": 0.1} | changes.pop("client", {})
    server = {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0} | changes.pop("server", {})
    settings = changed(SMALL, {"client": client, "server": server, **changes})
    assert_engines_equal(settings, train, rounds, ("lockstep", "clients"))


@pytest.mark.few(8)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", BY_STEPS)
def test_every_method_and_schedule(method: str, schedule: str) -> None:
    assert_equal(method=method, client=SCHEDULES[schedule])


@pytest.mark.few(6)
@pytest.mark.parametrize("schedule", ["both", "momentum and decay"])
@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
def test_every_encoder_of_features(encoder: dict[str, Any], schedule: str) -> None:
    assert_equal(method="fedalc", encoder=encoder, client=SCHEDULES[schedule])


@pytest.mark.few(5)
@pytest.mark.parametrize("encoder", [LINEAR, {}], ids=["linear", "mlp"])
@pytest.mark.parametrize("loss", get_args(LossName))
def test_every_loss(loss: str, encoder: dict[str, Any]) -> None:
    method = "fedavg-fixed" if loss == "hinge" else "fedalc-exact"
    assert_equal(method=method, encoder=encoder, client={"loss": loss, "learning_rate": 0.02, **BOTH})


@pytest.mark.parametrize("schedule", ["both", "momentum and decay", "epochs"])
@pytest.mark.parametrize("own", [0.0, 1.0, np.inf], ids=["all", "some", "none"])
def test_clients_with_dense_matrices_of_their_own(own: float, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_groups, "OWN", own)
    assert_equal(method="fedalc", client=SCHEDULES[schedule])
    decay = {"epochs": 3, "batch_size": 3, "weight_decay": 0.2}
    assert_equal(method="fedalc", encoder={"dropout": 0.4}, client=decay)


def test_clients_with_too_many_records_run_as_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Room, "numbers", lambda self, work: np.inf if len(work.instances) > 15 else 0)
    literal, seen = ClientsEngine._local_work, []
    monkeypatch.setattr(ClientsEngine, "_local_work", lambda *of: (seen.append(of[2]), literal(*of))[1])
    assert_equal(1, method="fedalc", client=BOTH)
    counts = np.asarray(TRAIN.labels.getnnz(axis=0))
    assert sorted(seen) == sorted([*np.flatnonzero(counts > 15), *range(7)]) and len(seen) < 14


@pytest.mark.parametrize("part", [0.02, 0.04])
def test_groups_that_fit_into_the_memory_budget(part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_groups, "PART", part)  # of 1 MiB
    found, groups, sizes, steps = [], Room.groups, [], lockstep.LocalSteps.run

    def measured(self: lockstep.LocalSteps, held: Any, slope: Any) -> None:
        arrays = [held.added, held.start, *held.likeness]
        of_layers = ([x.own] if isinstance(x, OwnLayer) else [x.inputs, x.slopes] for x in self.layers)
        arrays += [array for of_layer in of_layers for array in of_layer]
        sizes.append(sum(array.nbytes for array in arrays))
        steps(self, held, slope)

    monkeypatch.setattr(lockstep.LocalSteps, "run", measured)
    monkeypatch.setattr(
        Room,
        "groups",
        lambda *of: found.extend(groups(*of)) or iter(found),  # type: ignore[func-returns-value]
    )
    assert_equal(1, method="fedalc", client=BOTH, memory_budget=1 << 20)
    assert len(found) > 1 and 0 < max(sizes) <= part * (1 << 20)


def test_dense_columns_of_a_design_count_as_memory() -> None:
    for changes, columns in ({}, 0), (LINEAR, 0), (CONSTANT, 1), (RANDOM, 10), ({**RANDOM, "linear_part": False}, 10):
        encoder = federated(experiment(changed(SMALL, {"encoder": changes})), TRAIN).model.encoder
        assert lockstep.fits(encoder) and count_columns(encoder) == columns


@pytest.mark.parametrize("participation", [0.3, 0.7])
def test_some_clients_a_round(participation: float) -> None:
    assert_equal(3, method="fedalc", client=BOTH, server={"participation": participation, "weights": "samples"})


def test_a_sample_of_the_records() -> None:
    """A client may have none in a round."""
    assert_equal(4, method="fedalc", client={"sample": 0.1, "weight_decay": 0.3})


def test_several_clients_of_a_label() -> None:
    users = [f"user {number % 3}" for number in range(len(TRAIN))]
    train = Split(TRAIN.features, TRAIN.labels, users=users)
    assert_equal(train=train, method="fedalc", clients="users", client=BOTH)


def test_dense_features() -> None:
    dense = csr_matrix(np.random.default_rng(5).standard_normal((50, 20)).astype(np.float32))
    assert_equal(train=Split(dense, TRAIN.labels), method="fedalc", client=BOTH)


def test_an_encoder_that_runs_one_by_one_is_equal_too() -> None:
    assert_equal(method="fedavg-fixed", encoder={"shortcut": True, "output": "raw"}, client=BOTH)


def test_a_group_in_which_nobody_has_drawn_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight decay moves all of θ all the same."""
    groups = Room.groups
    monkeypatch.setattr(Room, "groups", lambda *of: ([one] for some in groups(*of) for one in some))
    client = {"sample": 0.1, "weight_decay": 0.3}
    assert_equal(4, method="fedalc", encoder={"start": "framework"}, client=client)
    assert_equal(4, method="fedalc", encoder=LINEAR, client=client)


def test_pairs_that_several_parties_have() -> None:
    """Each party counts its part of them."""
    parties = [f"party {number % 3}" for number in range(len(TRAIN))]
    train = Split(TRAIN.features, TRAIN.labels, parties=parties)
    assert_equal(train=train, method="fedavg-fixed", clients="parties", client=BOTH)


def test_a_single_record_for_each_client() -> None:
    split = random_split(7, 20, 7, seed=3)
    own = Split(split.features, csr_matrix(np.eye(7, dtype=np.float32)))
    assert_equal(train=own, method="fedalc", client={"epochs": 3})


def test_coefficients_are_those_of_sgd() -> None:
    """For a single number with gradients 1, 2, 4: θ after three steps of torch's SGD."""
    settings = ClientSettings(learning_rate=0.3, momentum=0.6, weight_decay=0.2)
    theta = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.3, momentum=0.6, weight_decay=0.2)
    found, gradients = Coefficients(settings), np.array([1.0, 2.0, 4.0])
    for gradient in gradients:
        theta.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        found.step()
    assert theta.item() == pytest.approx(found.a * 5.0 - found.k @ gradients, rel=1e-14)


def test_likeness_by_hand() -> None:
    """Records (1, 0) and (1, 2), in both orders."""
    rows = SparseRows(csr_matrix(np.array([[1.0, 0, 0, 0, 0], [1.0, 2, 0, 0, 0]])), np.arange(2), torch.float64, "cpu")
    assert likeness(rows, np.array([0, 1])).tolist() == [[1, 1], [1, 5]]
    assert likeness(rows, np.array([1, 0])).tolist() == [[5, 1], [1, 1]]


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "mean"])
def test_parties_with_several_labels_and_robust_rules(rule: str) -> None:
    users = [f"user {number % 3}" for number in range(len(TRAIN))]
    train = Split(TRAIN.features, TRAIN.labels, users=users)
    server = {"aggregation": rule, "optimizer": "momentum"}
    assert_equal(train=train, method="fedaws", clients="users", client=BOTH, server=server)


@pytest.mark.parametrize("output", ["unit", "raw"])
def test_the_square_loss_with_trained_rows(output: str) -> None:
    client = {"loss": "square", "learning_rate": 0.02, "momentum": 0.5, **BOTH}
    assert_equal(method="fedalc", encoder={"output": output}, client=client)


@pytest.mark.parametrize("client", [{}, {"batch_size": 100, "weight_decay": 0.3, "momentum": 0.4}])
def test_one_step_of_every_client_runs_as_in_fused(client: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep.LocalSteps, "run", None)  # cannot be called
    assert_equal(method="fedalc", client=client)


def test_one_step_of_some_clients() -> None:
    """A batch size between the clients' numbers of records."""
    counts = np.asarray(TRAIN.labels.getnnz(axis=0))
    assert counts.min() < 13 < counts.max()
    assert_equal(method="fedalc", client={"batch_size": 13, "weight_decay": 0.3})


PEAK = """
import sys
import numpy as np
import psutil
from scipy.sparse import random as sparse
from fedalc.config.resolve import experiment
from fedalc.core.peak_memory import peak_mb
from fedalc.data.dataset import Split
from fedalc.training.federated import simulated

random = np.random.default_rng(0)
labels = sparse(4000, 200, 0.02, format="csr", dtype=np.float32, random_state=random)
labels.data[:] = 1
train = Split(sparse(4000, 500, 0.02, format="csr", dtype=np.float32, random_state=random), labels)
asked = {"method": "fedavg-fixed", "engine": "lockstep", "memory_budget": int(sys.argv[1]) << 20}
asked |= {"encoder": {"name": "mlp", "embedding": 128, "hidden": (256,), "dim": 128}}
asked |= {"client": {"epochs": 4, "batch_size": int(sys.argv[2]) or None}}
simulated(experiment(asked), train.rows(np.arange(50))).run_round()  # loads libraries
training = simulated(experiment(asked), train)
before = psutil.Process().memory_info().rss / 2**20
training.run_round()
print(round(peak_mb() - before))
"""


def peak_mib(budget: int, batch: int) -> int:
    """Return the MiB that a round needs beyond the data and the model, in a process of its own."""
    arguments = [sys.executable, "-c", PEAK, str(budget), str(batch)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env={**os.environ, **ONE_THREAD})
    return int(done.stdout.split()[-1])


@pytest.mark.long
@pytest.mark.parametrize(("batch", "budget"), [(0, 64), (16, 32)])
def test_memory_stays_within_the_budget(batch: int, budget: int) -> None:
    """With batches, clients have matrices of their own, and few work together anyway."""
    large, small = peak_mib(1024, batch), peak_mib(budget, batch)
    assert small <= budget, f"{small} MiB with a budget of {budget}"
    assert large > budget  # so that the budget has made a difference
