"""The order of batches under secure sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedalc.config.resolve import experiment
from fedalc.engines.per_client import ClientsEngine
from fedalc.models.encoders import Chance
from fedalc.training.federated import simulated
from tests.problems import random_split


@pytest.mark.parametrize("secure", [False, True])
def test_batches_of_two_rounds_are_the_same_under_secure_sums(secure: bool) -> None:
    """Otherwise the sums of two rounds at one θ differ by the parts of clients with several batches: an outside tester
    had a party that was the only one."""
    settings = experiment(
        {"method": "fedavg-fixed", "engine": "clients", "client": {"batch_size": 4}, "secure_sums": {"on": secure}}
    )
    training = simulated(settings, random_split(60, 20, 4, seed=3))
    engine = ClientsEngine(training.federation, training.method, settings)
    chance = Chance(settings, 1, training.model.W)
    largest = int(np.argmax(training.federation.counts))
    first, second = (np.concatenate(engine._batches(largest, chance, 0, number)) for number in (1, 2))
    assert sorted(first) == sorted(second) and len(first) > 4
    assert (first.tolist() == second.tolist()) == secure
    other = np.concatenate(engine._batches(largest, chance, 1, 1))  # of another epoch
    assert first.tolist() != other.tolist()


def test_batches_do_not_depend_on_numbers_under_secure_sums() -> None:
    """The server gives labels their numbers, others in each run: an outside tester had the part of the largest party
    from two runs at one θ."""
    settings = experiment(
        {"method": "fedavg-fixed", "engine": "clients", "client": {"batch_size": 4}, "secure_sums": {"on": True}}
    )
    training = simulated(settings, random_split(60, 20, 4, seed=3))
    chance = Chance(settings, 1, training.model.W)
    largest = int(np.argmax(training.federation.counts))
    orders = []
    for numbers in ([0, 1, 2, 3], [3, 2, 1, 0]):
        federation = replace(training.federation, numbers=np.array(numbers))
        orders.append(ClientsEngine(federation, training.method, settings)._batches(largest, chance, 0, 1))
    assert len(orders[0]) > 1
    assert all(np.array_equal(first, second) for first, second in zip(*orders, strict=True))
