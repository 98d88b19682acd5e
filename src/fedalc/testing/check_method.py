"""One call that puts a method through the checks that the built-in ones pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fedalc.config.experiment import Experiment, flat
from fedalc.config.facts import check_declared, method_facts
from fedalc.config.resolve import experiment
from fedalc.core.registry import METHODS
from fedalc.errors import ConfigError
from fedalc.methods import Method
from fedalc.testing.engines import assert_engines_equal, random_split, start_training

SMALL: dict[str, Any] = {
    "preset": "paper",
    "block_rows": 7,  # several blocks, the last one short
    "encoder": {"name": "linear", "dim": 6, "embedding": 5, "hidden": (8, 7), "dropout": 0.0},
    "server": {"optimizer": "momentum", "learning_rate": 0.5, "weights": "samples", "ema": 0.0},
    "client": {"learning_rate": 0.5, "row_learning_rate": 0.8},
    "regularizer": {"lambda": 10.0, "rate": 0.01, "neighbours": 2},
    "fixed": {"steps": 5, "rate": 0.1},
}
CASES: tuple[dict[str, Any], ...] = (
    {},
    {"encoder": {"name": "mlp"}},
    {"server": {"participation": 0.4}},
    {"server": {"weights": "uniform", "ema": 0.5}},
    {"client": {"loss": "square", "set_size": "expected", "label_power": 0.3}},
    {"client": {"sample": 0.4}},
)
TRAIN = random_split(50, 20, 7, seed=11)


def check_method(method: str | type[Method], rounds: int = 4, **settings: Any) -> list[str]:
    """Check a registered method, by name or class. Raises AssertionError that says what is wrong.

    Checked, in float64 on a small problem: the facts it declares; rows of W have length 1 and, where the method does
    not train rows, never move; the engines `fused` and `clients` give the same numbers, with a linear encoder and an
    mlp, all clients and some, both weights, both losses, sampled instances; the same seed gives the same bits; a
    training that is saved and restored goes on as if nothing had happened. `settings` are used in all cases. Returns
    the cases that the method refuses, each with the reason; they are not checked.
    """
    name = method if isinstance(method, str) else next((n for n in METHODS if METHODS[n] is method), None)
    assert name is not None and name in METHODS, f"{method} is not registered: use @fedalc.register_method"
    _check_facts(name)
    refused = []
    for case in CASES:
        asked = _merged(SMALL, settings, case, {"method": name, "dataset": "demo"})
        try:
            experiment(asked)
        except ConfigError as error:
            refused.append(f"{flat(case) or 'the plain case'}: {error}")
            continue
        with _named_errors(name):
            assert_engines_equal(asked, TRAIN, 1 if method_facts(name).one_round else rounds)
    plain = _merged(SMALL, settings, {"method": name, "dataset": "demo"})
    assert len(refused) < len(CASES), f"{name} refuses every case: {refused[0]}"
    if not any(reason.startswith("the plain case") for reason in refused):
        with _named_errors(name):
            _check_weights(plain)
            _check_rows(plain, rounds)
            _check_restored(plain, rounds)
    return refused


def _check_facts(name: str) -> None:
    facts = method_facts(name)
    try:
        check_declared(facts)
        settings = experiment({"method": name})
    except ConfigError as error:
        raise AssertionError(str(error)) from error
    assert facts.help, f"{name} has no help: declare one line for `fedalc list`"
    known = flat(Experiment().to_dict())
    unknown = [setting for setting in facts.ignores if setting not in known]
    assert not unknown, f"ignores: there is no setting {unknown[0]}"
    with _named_errors(name):
        looks = facts.looks_at_labels(settings)
        assert isinstance(looks, int) and looks >= 1, f"looks_at_labels returns {looks!r}, not a number from 1 on"


def _check_weights(settings: Mapping[str, Any]) -> None:
    training = start_training(settings, TRAIN, "fused")
    federation = training.federation
    counts = torch.from_numpy(federation.counts[federation.clients]).double()
    total = float(training.method.weights(counts, federation.label_of[federation.clients]).sum())
    assert abs(total - 1) < 1e-9, f"the weights of the clients sum to {total}, and should sum to 1"


def _check_rows(settings: Mapping[str, Any], rounds: int) -> None:
    training = start_training(settings, TRAIN, "fused")
    again = start_training(settings, TRAIN, "fused")
    start = training.model.W.clone()
    for number in range(rounds + 1):
        for columns in training.method.parts:
            lengths = training.model.W[:, columns].norm(dim=1)
            assert torch.allclose(lengths, torch.ones_like(lengths)), f"rows of W are not of length 1 in round {number}"
        assert torch.equal(training.model.W, again.model.W), f"the same seed gives another W in round {number}"
        fixed = training.method.trains_rows or torch.equal(training.model.W, start)
        assert fixed, f"W changes in round {number}, though the method says trains_rows = False"
        if number < (1 if training.method.one_round else rounds):
            training.run_round()
            again.run_round()


def _check_restored(settings: Mapping[str, Any], rounds: int) -> None:
    training, other = (start_training(settings, TRAIN, "fused") for _ in range(2))
    more = 0 if training.method.one_round else rounds
    for _ in range(max(1, more // 2)):
        training.run_round()
    saved = {name: tensor.detach().clone() for name, tensor in training.tensors().items()}
    other.restore(saved, training.facts())
    for _ in range(more):
        training.run_round()
        other.run_round()
    for ours, restored in zip(training.model.values, other.model.values, strict=True):
        assert torch.equal(ours, restored), "a training that is saved and restored goes on with other numbers"


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Turn an error of the method into an AssertionError that names it."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{name} fails: {type(error).__name__}: {error}") from error


def _merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
    return merged
