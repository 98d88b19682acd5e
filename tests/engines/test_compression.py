"""What travels in fewer bytes: own rows are exact, rounding is right on average, and the engines stay equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.engines.by_party import PartyByParty
from fedalc.engines.compression import (
    Compression,
    KeptErrors,
    KnownRows,
    Wrong,
    array_bytes,
    index_array,
    read_index,
    read_numbers,
    rounded,
    triangular_factor,
)
from fedalc.errors import ConfigError
from fedalc.methods import METHODS
from fedalc.training.federated import FederatedTraining
from tests.engines.test_equality import CONSTANT, RANDOM, TRAIN, after, settings

OWN = {"rows": "own"}
KINDS = ("bfloat16", "int8")
CG: dict[str, Any] = {"method": "fedalc-exact", "server": {"optimizer": "cg", "ema": 0.0, "weight_decay": 0.0}}
ONCE: dict[str, Any] = {"method": "fedalc-oneshot", "server": {"ema": 0.0, "weight_decay": 0.0}}
LINEAR: dict[str, Any] = {"name": "linear", "dim": 9, "start": "zero", "output": "raw"}


def rounded_all(kind: str) -> dict[str, str]:
    return {"rows": "own", "up": kind, "down": kind}


def assert_same(found: FederatedTraining, wanted: FederatedTraining, close: float = 1e-10) -> None:
    for ours, theirs in zip([*found.model.theta, found.model.W], [*wanted.model.theta, wanted.model.W], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close)


# --- numbers ---


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_goes_to_a_neighbour_and_is_right_on_average(kind: str) -> None:
    numbers = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1e-6], [1], [1e4], [0]])
    generator = torch.Generator().manual_seed(2)
    draws = torch.stack([read_numbers(rounded(numbers, kind, generator), kind, (4, 50)) for _ in range(4000)])
    step = numbers.abs() / 128 if kind == "bfloat16" else (numbers.abs().amax(1, keepdim=True) / 127).expand(4, 50)
    assert bool(((draws - numbers).abs() <= step * 1.0001).all())
    error = (draws.double().mean(0) - numbers).abs()
    assert bool((error <= 5 * step / np.sqrt(4 * 4000) + 1e-12).all()), "five deviations of the mean"
    assert bool((draws[:, 3] == 0).all())


def test_full_numbers_are_the_same_bits() -> None:
    numbers = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(read_numbers(rounded(numbers, "full", torch.Generator()), "full", (3, 4)), numbers)


@pytest.mark.parametrize("size", [1, 8, 20, 3000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_indices_travel_in_the_smaller_of_two_forms(size: int, share: float) -> None:
    numbers = np.flatnonzero(np.random.default_rng(3).random(size) < share)
    sent = index_array(numbers, size)
    assert sent.nbytes <= min(4 * len(numbers), -(-size // 8)) or not len(numbers)
    assert read_index(sent, size).tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (np.array([3, 2], np.int32), "ascending"),
        (np.array([3, 3], np.int32), "ascending"),
        (np.array([-1, 3], np.int32), "beyond"),
        (np.array([30], np.int32), "beyond"),
        (np.array([0, 0, 1], np.uint8), "beyond"),
        (np.array([0.0]), "ascending"),
        (np.zeros(9, np.uint8), "ascending"),
    ],
)
def test_indices_that_cannot_be(sent: np.ndarray, problem: str) -> None:
    with pytest.raises(Wrong, match=problem):
        read_index(sent, 20)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_cannot_be(kind: str) -> None:
    sent = rounded(torch.ones(2, 3), kind, torch.Generator())
    for arrays, problem in (
        (sent | {"more": np.zeros(1)}, "not"),
        ({**sent, "values": sent["values"][:1]}, "numbers"),
        ({**sent, "values": sent["values"].astype(np.float32)}, "not"),
    ):
        with pytest.raises(Wrong, match=problem):
            read_numbers(arrays, kind, (2, 3))
    broken = {"values": np.full((2, 3), 0x7FC0, np.uint16)} if kind == "bfloat16" else dict(sent)
    if kind == "int8":
        broken["scales"] = np.array([np.inf, 1], np.float32)
    with pytest.raises(Wrong, match="finite"):
        read_numbers(broken, kind, (2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("records", [1, 3, 20])
def test_a_triangular_factor_is_the_matrix(dtype: torch.dtype, records: int) -> None:
    x = torch.randn(records, 12, dtype=dtype, generator=torch.Generator().manual_seed(4))
    factor, order = triangular_factor(x.T @ x, records)
    assert factor.shape == (12, min(records, 12)) and not bool(factor.triu(1).any())
    whole = torch.zeros(12, 12, dtype=dtype)
    whole[torch.from_numpy(order).unsqueeze(1), torch.from_numpy(order)] = factor @ factor.T
    torch.testing.assert_close(whole, x.T @ x, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1e-12)


# --- own rows ---


@pytest.mark.few(4)
@pytest.mark.parametrize("engine", ["fused", "clients", "lockstep"])
@pytest.mark.parametrize("method", [m for m in METHODS if not METHODS[m].one_round and m != "fedmlh"])
def test_own_rows_change_nothing(method: str, engine: str) -> None:
    """For every method, with some of the clients in a round. Not adam, which makes much of the last digits."""
    change: dict[str, Any] = {"method": method, "server": {"optimizer": "momentum", "participation": 0.6}}
    if method == "fedalc-exact":
        change["encoder"] = {"shortcut": False}  # it is solved for at full precision
    found, losses = after(3, engine, compression=OWN, **change)
    wanted, others = after(3, engine, **change)
    assert isinstance(found.engine, PartyByParty)
    assert_same(found, wanted)
    assert losses == pytest.approx(others)


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("design", [{}, CONSTANT, RANDOM])
def test_own_rows_solve_the_same(engine: str, design: dict[str, Any]) -> None:
    for change in (CG, ONCE):
        changes = {**change, "encoder": {**LINEAR, **design}}
        found, _ = after(1 if change is ONCE else 4, engine, compression=OWN, **changes)
        wanted, _ = after(1 if change is ONCE else 4, engine, **changes)
        assert_same(found, wanted, 1e-8)
        assert found.ledger.up < wanted.ledger.up


@pytest.mark.parametrize("method", ["fedncm", "fed3r"])
@pytest.mark.parametrize("clients", ["labels", "users"])
def test_other_sums_of_one_round(method: str, clients: str) -> None:
    """Also without Σ x xᵀ, and with several labels at a party, which send one factor."""
    users = replace(TRAIN, users=tuple(f"user {number % 3}" for number in range(len(TRAIN))))
    change: dict[str, Any] = {**ONCE, "method": method, "clients": clients, "encoder": LINEAR}
    found, _ = after(1, "fused", users, compression=OWN, **change)
    wanted, _ = after(1, "clients", users, **change)
    assert_same(found, wanted, 1e-8)
    assert found.ledger.up < 1.1 * wanted.ledger.up


def test_what_is_packed_is_bit_for_bit_the_change() -> None:
    training, _ = after(1, "clients", compression=OWN, encoder=LINEAR)
    engine = training.engine
    assert isinstance(engine, PartyByParty)
    compression, encoder = Compression(training.settings), training.model.encoder
    rows = compression.rows_of(encoder, np.array([2, 5, 11]))
    assert rows is not None
    change = torch.zeros(20, 9, dtype=torch.float64)
    change[[2, 5, 11], 3:6] = torch.randn(3, 3, dtype=torch.float64)
    sparse = torch.sparse_coo_tensor(torch.tensor([[5, 11]]), change[[5, 11]], (20, 9))
    packed = compression.change([change], encoder, rows, 1, 0)
    assert array_bytes(packed[0]) == 3 * 3 * 8 + 3 + 2
    (read,), told = compression.read_change(packed, encoder)
    assert torch.equal(read, change) and told is not None and told.tolist() == [2, 5, 11]
    (read,), _ = compression.read_change(compression.change([sparse], encoder, rows, 1, 0), encoder, sparse=True)
    change[2] = 0
    assert torch.equal(read.to_dense(), change)


def test_zeros_cost_nothing_and_rows_are_told_once() -> None:
    """Round 1 starts at zero and sends no column of θ; from round 2 on each party gets its own rows alone."""
    training, _ = after(1, "fused", compression=OWN, encoder=LINEAR, **CG)
    engine, first = training.engine, training.ledger.down
    assert isinstance(engine, PartyByParty)
    known = engine.known_rows.of
    assert sorted(known) == training.federation.clients.tolist()
    training.run_round()
    of_theta = training.ledger.down - first
    columns = int(training.server.tensors()["direction"].any(0).sum())
    assert columns == 7, "of nine axes seven are labels'"
    assert of_theta == sum(len(rows) * columns * 8 + 3 + 2 for rows in known.values())


@pytest.mark.parametrize("change", [{**CG, "encoder": LINEAR}, {"method": "fedalc", "server": {"optimizer": "sgd"}}])
def test_a_restored_training_goes_on(change: dict[str, Any]) -> None:
    """With the rows that the server was told, and the errors that parties keep."""
    compression = rounded_all("int8") | {"error_feedback": change["method"] == "fedalc"}
    whole, _ = after(4, "fused", compression=compression, **change)
    half, _ = after(2, "fused", compression=compression, **change)
    rest, _ = after(0, "fused", compression=compression, **change)
    rest.restore({name: tensor.clone() for name, tensor in half.tensors().items()}, half.facts())
    for _ in range(2):
        rest.run_round()
    assert_same(rest, whole, 0)
    assert (rest.ledger.up, rest.ledger.down) == (whole.ledger.up, whole.ledger.down)


def test_state_is_kept_by_party() -> None:
    rows, errors = KnownRows(), KeptErrors()
    rows.note(3, np.array([1, 4]))
    rows.note(4, None)
    errors.keep(3, [torch.ones(2, 2), torch.ones(3)], [torch.zeros(2, 2), torch.ones(3)])
    others, again = KnownRows(), KeptErrors()
    others.restore(rows.tensors())
    again.restore(errors.tensors())
    assert others.of[3].tolist() == [1, 4] and set(others.of) == {3}
    assert [error.tolist() for error in again.of[3]] == [[[1, 1], [1, 1]], [0, 0, 0]]
    others.forget(3)
    assert not others.of


# --- rounded ---


@pytest.mark.parametrize("kind", KINDS)
def test_engines_round_alike(kind: str) -> None:
    for change in ({}, {**CG, "encoder": LINEAR}, {**ONCE, "encoder": LINEAR}):
        rounds = 1 if change.get("method") == "fedalc-oneshot" else 3
        both = [after(rounds, engine, compression=rounded_all(kind), **change)[0] for engine in ("fused", "clients")]
        assert_same(*both)
        assert (both[0].ledger.up, both[0].ledger.down) == (both[1].ledger.up, both[1].ledger.down)


@pytest.mark.parametrize(("kind", "near"), [("bfloat16", 0.02), ("int8", 0.05)])
def test_rounded_solutions_are_near(kind: str, near: float) -> None:
    """The server takes its steps along the directions that the parties got, so rounding θ is no error."""
    for change, rounds in ((CG, 12), (ONCE, 1)):
        found, _ = after(rounds, "fused", compression=rounded_all(kind), encoder=LINEAR, **change)
        wanted, _ = after(rounds, "fused", encoder=LINEAR, **change)
        (ours,), (theirs,) = found.model.theta, wanted.model.theta
        assert 0 < (ours - theirs).norm() < near * theirs.norm()
        assert found.ledger.up < wanted.ledger.up / 3


def test_errors_are_sent_later() -> None:
    """What was sent and what is kept are together what should have been sent."""
    errors, generator = KeptErrors(), torch.Generator().manual_seed(5)
    wanted, sent = torch.zeros(4, 6), torch.zeros(4, 6)
    for _ in range(50):
        change = torch.rand(4, 6, generator=generator)
        (whole,) = errors.added(7, [change])
        read = read_numbers(rounded(whole, "int8", generator), "int8", (4, 6))
        errors.keep(7, [whole], [read])
        wanted, sent = wanted + change, sent + read
    torch.testing.assert_close(sent + errors.of[7][0], wanted)
    assert bool(((sent - wanted).abs() < 0.02).all()), "one rounding, not the sum of fifty"


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_error_feedback_comes_closer(engine: str) -> None:
    change: dict[str, Any] = {"method": "fedalc-fixed", "encoder": {"name": "linear"}}
    change["server"] = {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "ema": 0.0}
    wanted, _ = after(30, engine, **change)
    apart = []
    for feedback in (False, True):
        keep = {"rows": "own", "up": "int8", "error_feedback": feedback}
        found, _ = after(30, engine, compression=keep, **change)
        apart.append(float((found.model.theta[0] - wanted.model.theta[0]).detach().norm()))
    assert apart[1] < 0.6 * apart[0]


# --- what does not go together ---


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"method": "fedalc-exact", "secure_sums": {"on": True}, "engine": "clients"}, "rows"),
        ({"method": "fedalc-exact", "server": {"optimizer": "newton"}, "client": {"loss": "logistic"}}, "rows"),
        ({"client": {"weight_decay": 0.01}}, "rows"),
        ({"method": "fedmlh"}, "rows"),
        ({"method": "fedalc-tree"}, "rows"),
        ({"method": "fedalc-plda", "compression": {"up": "int8"}}, "up"),
        ({"method": "fedalc-exact", "compression": {"up": "int8", "error_feedback": True}}, "error_feedback"),
        ({"engine": "flower", "compression": {"up": "int8", "error_feedback": True}}, "error_feedback"),
    ],
)
def test_refused_by_name(change: dict[str, Any], name: str) -> None:
    compression = {"rows": "own"} | change.get("compression", {})
    with pytest.raises(ConfigError, match=f"compression.{name}"):
        experiment({"method": "fedalc", **change, "compression": compression})


def test_off_is_what_it_was() -> None:
    assert Compression.of(settings("fused")) is None
    training, _ = after(1, "fused")
    assert not isinstance(training.engine, PartyByParty)
