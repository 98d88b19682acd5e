"""Membership inference on models that remember their records, and on one that cannot."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import fedalc
from fedalc.audit.membership import Trained, attack_model, infer_membership, usual_settings
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.errors import DataError, FedalcError


def noise(records: int = 300, features: int = 400, labels: int = 6) -> Split:
    """Labels that have nothing to do with the features: all that a model can learn is its records."""
    random = np.random.default_rng(0)
    X = random.normal(size=(records, features)) * (random.random((records, features)) < 0.1)
    Y = np.eye(labels)[random.integers(0, labels, records)]
    return Split(csr_matrix(X), csr_matrix(Y))


def test_an_overfitted_model_tells_its_records() -> None:
    settings = experiment({"method": "fedalc-oneshot"}, overrides=["encoder.dim=6", "server.ridge=0.01"])
    (row,) = infer_membership(noise(), [Trained("overfitted", settings)], shadows=4).rows
    assert row.threshold.low > 0.9 and row.ratio is not None and row.ratio.low > 0.9


def test_a_model_without_influence_of_records_tells_nothing() -> None:
    """Its steps are smaller than the last digit of θ. The attack's scores are then independent of the halves, and the
    interval has 0.5 in it (with probability 0.95: a seed for which it has)."""
    still = {"method": "fedavg-fixed", "rounds": 1, "server": {"optimizer": "sgd", "learning_rate": 1e-30}}
    settings = experiment(still, overrides=["encoder.dim=8", "server.weight_decay=0.0"])
    (row,) = infer_membership(noise(), [Trained("still", settings)], shadows=4).rows
    for power in (row.threshold, row.ratio):
        assert power is not None and power.low <= 0.5 <= power.high


def test_the_pool_is_limited_and_the_same_for_all_settings() -> None:
    usual, demo = usual_settings(79)[:1], make_demo(DemoSize(train=300, test=1, words=300)).train
    found = infer_membership(demo, [*usual, *usual], shadows=2, most=100)
    assert (found.records, found.of_records) == (100, 300)
    assert found.rows[0] == found.rows[1]
    again = infer_membership(demo, usual, shadows=2, most=100)
    assert again.rows[0] == found.rows[0] and again.to_dict()["rows"][0]["threshold"]["members"] == 50
    assert infer_membership(demo, usual, shadows=2, most=100, seed=1).rows[0] != found.rows[0]


def test_a_finished_model_is_attacked_with_its_test_records() -> None:
    even, odd = (noise().rows(np.arange(first, 300, 2)) for first in (0, 1))
    data = Dataset("noise", even, odd, tuple("abcdef"))
    run = fedalc.train(data=data, method="fedalc-oneshot", server={"ridge": 0.01})
    attacked = attack_model("run", run.model, data)
    assert attacked.threshold.low > 0.9 and attacked.ratio is None and attacked.threshold.members == 150
    with pytest.raises(DataError, match="other labels than other"):
        attack_model("run", run.model, Dataset("other", even, odd, tuple("uvwxyz")))
    with pytest.raises(DataError, match="no test records"):
        attack_model("run", run.model, Dataset("noise", even, label_names=tuple("abcdef")))


def test_what_cannot_be_attacked_is_refused() -> None:
    with pytest.raises(DataError, match="too few to attack membership"):
        infer_membership(noise(records=19))
    with pytest.raises(FedalcError, match="come in pairs"):
        infer_membership(noise(), shadows=3)
