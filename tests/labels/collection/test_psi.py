"""Pair counts by private set intersection are those of the join."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedalc
from fedalc.data.dataset import Split
from fedalc.errors import FedalcError
from fedalc.labels.collection.psi import Traffic, intersection_size, pair_counts
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.training.federated import knowledge_for, simulated
from tests.data.clinics import union, write_clinics
from tests.problems import random_split

TRAIN = random_split(60, 20, 7, seed=4)


@pytest.fixture
def openmined() -> None:
    pytest.importorskip("private_set_intersection", reason="needs openmined-psi: pip install 'fedalc[psi]'")


def known(train: Split, by: str, **keys: Any) -> LabelKnowledge:
    collection = {"by": by, "identity": "content"}
    settings = fedalc.experiment({"method": "fedalc", "collection": collection, **keys})
    knowledge = knowledge_for(settings, train)
    assert knowledge is not None
    return knowledge


def assert_same_counts(ours: LabelKnowledge, joined: LabelKnowledge) -> None:
    one, other = ours.labels, joined.labels
    assert isinstance(one, Correlations) and isinstance(other, Correlations)
    np.testing.assert_array_equal(one.counts, other.counts)
    assert one.counts.dtype == other.counts.dtype
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(one.together, name), getattr(other.together, name))
        assert getattr(one.together, name).dtype == getattr(other.together, name).dtype
    assert one.instances == pytest.approx(other.instances, rel=0.05)  # from a sum; c has no N


@pytest.mark.usefixtures("openmined")
def test_psi_gives_the_counts_of_the_join() -> None:
    ours = known(TRAIN, "psi")
    assert_same_counts(ours, known(TRAIN, "join"))
    assert ours.collection["intersections"] == 21 and ours.bytes_up == ours.bytes_down > 21 * 100


@pytest.mark.usefixtures("openmined")
def test_labels_at_several_parties(tmp_path: Path) -> None:
    train = fedalc.load_dataset(write_clinics(tmp_path / "clinics", union())).train
    assert_same_counts(known(train, "psi", clients="parties"), known(train, "join", clients="parties"))


@pytest.mark.usefixtures("openmined")
def test_counts_by_hand() -> None:
    a, b, c, d = "abcd"
    sets = {
        0: {0: frozenset({a, b}), 1: frozenset({b, c})},  # b at both parties: counted at the first
        1: {0: frozenset({b}), 1: frozenset({b, c}), 2: frozenset({d})},
        3: {2: frozenset({a, d})},
    }
    counts, together, traffic = pair_counts(sets, 4)
    assert counts.tolist() == [3, 3, 0, 2]
    assert together.toarray().tolist() == [[0, 2, 0, 1], [2, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]]
    # Same label: parties 0 and 1 of label 0; (0, 1), (0, 2), (1, 2) of label 1. Then each two parts of two labels that
    # are at different parties: 4 of labels 0 and 1, 2 of 0 and 3, 2 of 1 and 3. All but none of them have instances.
    assert traffic.intersections == 1 + 3 + 4 + 2 + 2


@pytest.mark.usefixtures("openmined")
def test_an_intersection_has_no_false_positives_and_no_order() -> None:
    ours, theirs = frozenset(f"{i:04d}" for i in range(300)), frozenset(f"{i:04d}" for i in range(290, 900))
    traffic = Traffic()
    assert intersection_size(ours, theirs, traffic) == intersection_size(theirs, ours, traffic) == 10
    assert intersection_size(ours, frozenset(), traffic) == 0 and traffic.intersections == 2
    assert traffic.bytes == pytest.approx(2 * 35 * (300 + 300 + 610), rel=0.01)  # a point has 33 bytes


@pytest.mark.usefixtures("openmined")
@pytest.mark.parametrize("method", ["fedalc", "fedalc-fixed", "fedalc-oneshot"])
def test_training_by_psi_is_training_by_the_join_but_for_the_estimate_of_N(method: str) -> None:
    """Weights that N does not enter are the same, bit by bit."""
    keys: dict[str, Any] = {"method": method, "dtype": "float64", "encoder": {"name": "linear", "dim": 8}, "rounds": 3}
    keys["regularizer"] = {"weighting": "conditional", "lambda": 10.0, "neighbours": 3}
    keys["fixed"] = {"weighting": "conditional", "alpha": 0.0, "steps": 5}
    keys["client"] = {"set_size": "expected"}
    if method != "fedalc-oneshot":
        keys["server"] = {"optimizer": "sgd"}
    trained = []
    for by in ("psi", "join"):
        settings = fedalc.experiment({**keys, "collection": {"by": by}})
        training = simulated(settings, TRAIN, knowledge_for(settings, TRAIN))
        for _ in range(1 if method == "fedalc-oneshot" else 3):
            training.run_round()
        trained.append(training.model)
    for ours, theirs in zip(trained[0].values, trained[1].values, strict=True):
        assert torch.equal(ours, theirs)


def test_many_labels_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.labels.collection.psi.intersection_size", lambda *_: 0)
    sets = {label: {label: frozenset(f"{label} {i}" for i in range(60))} for label in range(600)}
    with pytest.warns(UserWarning, match="of 600 labels takes about 2 hours"):
        pair_counts(sets, 600)


def test_without_openmined_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "private_set_intersection", None)
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    with pytest.raises(FedalcError, match=r"needs openmined-psi: pip install 'fedalc\[psi\]'"):
        known(TRAIN, "psi")
