"""fedalc-plda beside a slow twin: the joint density of all records, in the space of the features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.stats import multivariate_normal

import fedalc
from fedalc.data.dataset import Split
from fedalc.errors import ConfigError
from fedalc.models.scoring import Scorer
from fedalc.training.federated import FederatedTraining
from tests.problems import federated

RNG = np.random.default_rng(5)
PERSONS, WIDTH = 4, 5
OWNER = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3])
X = (RNG.normal(size=(PERSONS, WIDTH))[OWNER] + 0.4 * RNG.normal(size=(len(OWNER), WIDTH))).astype(np.float32)
TRAIN = Split(csr_matrix(X), csr_matrix(np.eye(PERSONS)[OWNER]))
NEW = RNG.normal(size=(6, WIDTH)).astype(np.float32)


def trained(train: Split = TRAIN, **keys: Any) -> FederatedTraining:
    settings = {"method": "fedalc-plda", "dtype": "float64", "encoder": {"features": "raw"}, **keys}
    training = federated(fedalc.experiment(settings), train)
    training.run_round()
    return training


def scores(training: FederatedTraining, features: np.ndarray) -> np.ndarray:
    count = training.federation.label_count
    scorer = Scorer(training.model, csr_matrix(features), np.ones(count, dtype=bool))
    return scorer.of_labels(slice(0, count)).numpy()


def twin(shrinkage: float) -> np.ndarray:
    """log p(x, records of u | one person) - log p(records of u) - log p(x)."""
    x = X.astype(np.float64)
    mean, means = x.mean(0), np.stack([x[u == OWNER].mean(0) for u in range(PERSONS)])
    apart, beside = means - mean, x - means[OWNER]
    between, within = apart.T @ apart / PERSONS, beside.T @ beside / len(x)
    within = (1 - shrinkage) * within + shrinkage * np.trace(within) / WIDTH * np.eye(WIDTH)

    def log_density(records: np.ndarray) -> float:
        size = len(records)
        joint = np.kron(np.ones((size, size)), between) + np.kron(np.eye(size), within)
        return float(multivariate_normal.logpdf(records.ravel(), np.tile(mean, size), joint))

    own = [x[u == OWNER] for u in range(PERSONS)]
    return np.array(
        [[log_density(np.vstack([o, new])) - log_density(o) - log_density(new[None]) for o in own] for new in NEW]
    )


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("shrinkage", [0.2, 0.5])
def test_scores_are_log_likelihood_ratios(engine: str, shrinkage: float) -> None:
    """To 1e-4: the variance in the last direction, which is 0 for the means of four persons, is made positive."""
    training = trained(engine=engine, options={"shrinkage": shrinkage})
    np.testing.assert_allclose(scores(training, NEW), twin(shrinkage), rtol=1e-6, atol=1e-4)
    assert training.knowledge is None


def test_engines_agree() -> None:
    one, other = (scores(trained(engine=engine), NEW) for engine in ("fused", "clients"))
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_person_far_from_all_is_no_one() -> None:
    """Unlike a softmax, which always gives somebody the largest share."""
    assert scores(trained(), np.full((1, WIDTH), 30.0)).max() < -10
    assert scores(trained(), X).max(axis=1).min() > 0


def test_few_directions() -> None:
    whole, few = trained(), trained(encoder={"features": "raw", "dim": 3})
    assert whole.model.W.shape == (4, 7) and few.model.W.shape == (4, 3)
    torch.testing.assert_close(few.model.encoder.state_dict()["embedding"][:, 0].abs(), _first(whole))


def _first(training: FederatedTraining) -> torch.Tensor:
    return training.model.encoder.state_dict()["embedding"][:, 0].abs()


def test_without_shrinkage_directions_without_variance_are_left_out() -> None:
    flat = X.copy()
    flat[:, -1] = 1.0
    training = trained(Split(csr_matrix(flat), TRAIN.labels), options={"shrinkage": 0.0})
    assert np.isfinite(scores(training, flat)).all()


def test_a_label_without_client_has_an_empty_row() -> None:
    labels = csr_matrix(np.eye(PERSONS + 1)[OWNER])
    assert not trained(Split(TRAIN.features, labels)).model.W[PERSONS].any()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": {"name": "linear"}}, "encoder.name: fedalc-plda has an encoder of its own, squares"),
        ({"client": {"set_size": "exact"}}, "client.set_size: fedalc-plda uses no label sets"),
        ({"secure_sums": {"on": True}}, "secure_sums.on: fedalc-plda needs each person's own sum"),
        ({"options": {"shrinkage": 2}}, "options.shrinkage"),
    ],
)
def test_what_it_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        fedalc.experiment({"method": "fedalc-plda", **values})


def test_other_methods_refuse_its_encoder() -> None:
    with pytest.raises(ConfigError, match=r"the objective is a quadratic only with encoder\.name"):
        fedalc.experiment({"method": "fedalc-oneshot", "encoder": {"name": "squares", "constant": 1.0}})
