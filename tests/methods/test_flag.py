"""FLAG's weights: a case by hand, and the weights with one label per client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.methods import METHODS
from fedalc.methods.flag import label_adaptive_weights
from tests.problems import federated, random_split


def test_weights_by_hand() -> None:
    """Labels a, b, c, d of clients 0, 1: a 3 to 1, b all of client 1, c all of client 0, d nobody's: a half each.

    α_0 = (3/4, 0, 1, 1/2), α_1 = (1/4, 1, 0, 1/2); their means are 9/16 and 7/16.
    """
    held = csr_matrix([[3.0, 0.0, 5.0, 0.0], [1.0, 2.0, 0.0, 0.0]])
    assert label_adaptive_weights(held).tolist() == [9 / 16, 7 / 16]


def test_two_holders_of_one_label_share_its_weight_by_what_they_hold() -> None:
    assert label_adaptive_weights(csr_matrix([[6.0], [2.0]])).tolist() == [0.75, 0.25]


def test_with_users_a_clients_part_is_its_share_of_its_label() -> None:
    """The same clients 0 and 1 as users, without label d: (0, a), (0, c), (1, a), (1, b). A label counts 1/3."""
    method = METHODS["flag"](experiment({"method": "flag"}), 4)
    weights = method.weights(torch.tensor([3.0, 5.0, 1.0, 2.0]), np.array([0, 2, 0, 1]))
    assert weights.tolist() == pytest.approx([1 / 4, 1 / 3, 1 / 12, 1 / 3])


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_with_one_label_per_client_it_is_fedavg_fixed_with_equal_weights(weights: str) -> None:
    train = random_split(60, 20, 8, seed=4)
    small = {"dtype": "float64", "encoder": {"name": "linear", "dim": 10}}
    flag = federated(experiment({**small, "method": "flag", "server": {"weights": weights}}), train)
    plain = federated(experiment({**small, "method": "fedavg-fixed", "server": {"weights": "uniform"}}), train)
    plain.server.settings = flag.server.settings  # the presets' decay differs
    for _ in range(3):
        assert flag.run_round() == pytest.approx(plain.run_round(), rel=1e-12)
    assert torch.allclose(flag.model.theta[0], plain.model.theta[0], rtol=1e-10)
