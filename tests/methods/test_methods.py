"""Each method: which rows move, how W starts, and rounds computed by hand."""

from __future__ import annotations

import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.core.registry import METHODS
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.methods import make_method
from fedalc.models.class_embeddings import collapse
from tests.problems import federated, random_split

TRAIN = random_split(60, 20, 8, seed=4)
SMALL = {"dtype": "float64", "encoder": {"name": "linear", "dim": 10}}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].encoders])
def test_rows_start_at_unit_length_and_keep_it(method: str) -> None:
    training = federated(experiment({**SMALL, "method": method}), TRAIN)
    for _ in range(3):
        for part in training.method.parts:
            assert torch.allclose(training.model.W[:, part].norm(dim=1), torch.ones(8, dtype=torch.float64))
        training.run_round()


@pytest.mark.parametrize("method", ["fedavg-fixed", "flag", "fedmlh", "fedalc-fixed"])
def test_a_fixed_W_never_moves(method: str) -> None:
    training = federated(experiment({**SMALL, "method": method}), TRAIN)
    before = training.model.W.clone()
    for _ in range(3):
        training.run_round()
    assert torch.equal(training.model.W, before)


def test_server_step_of_fedaws_by_hand() -> None:
    """Two rows at 60°: d = 1/2, and each is the other's nearest. ∇_0 of -d² over both orders is 2·2d·w_1 = 2 w_1."""
    settings = experiment({**SMALL, "method": "fedaws", "regularizer": {"lambda": 2.0, "rate": 0.1}})
    method = make_method(settings, 2)
    W = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]], dtype=torch.float64)
    after = method.server_step(W.clone(), torch.arange(2), seeded())
    raw = W - 0.2 * 2 * W.flip(0)
    assert torch.allclose(after, raw / raw.norm(dim=1, keepdim=True))


def test_server_step_of_fedalc_by_hand() -> None:
    """Labels {0}, {0, 1}: σ_01 = 1/2, σ_10 = 0. With ν = 1 and d = 1/2 the gap is 1/2, so ∇_0 = (1/2)·2·(1/2)·w_1."""
    from scipy.sparse import csr_matrix

    known = Correlations.from_label_sets(csr_matrix([[1, 0], [1, 1]]))
    keys = {"lambda": 3.0, "rate": 0.1, "margin": 1.0}
    method = make_method(experiment({**SMALL, "method": "fedalc", "regularizer": keys}), 2, LabelKnowledge(known))
    W = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]], dtype=torch.float64)
    raw = W - 0.3 * 0.5 * W.flip(0)
    assert torch.allclose(method.server_step(W.clone(), torch.arange(2), seeded()), raw / raw.norm(dim=1, keepdim=True))


def test_fedalc_fixed_brings_labels_that_occur_together_near() -> None:
    from scipy.sparse import csr_matrix

    pairs = csr_matrix([[1, 1, 0, 0]] * 5 + [[0, 0, 1, 1]] * 5)
    settings = experiment({**SMALL, "method": "fedalc-fixed", "fixed": {"steps": 300, "rate": 0.1}})
    W = make_method(settings, pairs.shape[1], LabelKnowledge(Correlations.from_label_sets(pairs))).start(seeded())
    cosine = W @ W.T
    assert cosine[0, 1] > 0.9 and cosine[2, 3] > 0.9
    assert cosine[0, 2] < 0.1 and cosine[1, 3] < 0.1


def test_averaging_collapses_and_spreading_out_cures_it() -> None:
    keys = {**SMALL, "client": {"row_learning_rate": 0.5}, "server": {"optimizer": "adam", "learning_rate": 0.05}}
    apart = {"regularizer": {"lambda": 300.0, "rate": 1e-3, "neighbours": 7, "weighting": "sigma", "margin": 1.0}}
    after = {}
    for method in ("fedavg", "fedaws", "fedalc"):
        training = federated(experiment({**keys, **apart, "method": method}), TRAIN)
        for _ in range(60):
            training.run_round()
        after[method] = collapse(training.model.W)["mean_cosine"]
    assert after["fedavg"] > 0.8
    assert after["fedaws"] < 0.2 and after["fedalc"] < 0.2


def test_a_sample_of_candidates_changes_with_the_round() -> None:
    settings = experiment({**SMALL, "method": "fedaws", "regularizer": {"candidates": 3}})
    method = make_method(settings, TRAIN.labels.shape[1])
    W = method.start(seeded())
    first = method._candidates(W, torch.Generator().manual_seed(1))
    second = method._candidates(W, torch.Generator().manual_seed(2))
    assert len(first) == 3 and first.tolist() == sorted(set(first.tolist()))
    assert first.tolist() != second.tolist()
