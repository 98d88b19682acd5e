"""Secure sums in a simulation: the plain sums in fixed point, bit for bit, with real masks and true bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedalc
from fedalc.config.resolve import experiment
from fedalc.data.federation import Federation
from fedalc.engines import make_engine
from fedalc.engines.aggregation.lengths import norm
from fedalc.engines.secure import SecureSums, cut
from fedalc.errors import ConfigError, FedalcError
from fedalc.models.encoders import Chance
from fedalc.secure_sums import InProcess, Question, encoded
from fedalc.training.federated import FederatedTraining, begin_training, knowledge_for
from tests.engines.test_equality import SMALL, TRAIN
from tests.problems import changed, small_dataset

PARTIES = np.array([0, 0, 1, 1, 1, 2, 3])  # of the seven labels
LINEAR = {"name": "linear", "start": "zero", "constant": 0.7, "output": "raw"}
CASES: dict[str, dict[str, Any]] = {
    "adam": {"method": "fedavg-fixed"},
    "square": {"method": "fedalc-fixed", "client": {"loss": "square"}, "server": {"optimizer": "momentum"}},
    "part of the clients": {"method": "fedavg-fixed", "server": {"participation": 0.4, "weights": "uniform"}},
    "epochs": {"method": "fedavg-fixed", "client": {"epochs": 2, "batch_size": 4}},
    "conjugate gradients": {
        "method": "fedalc-exact",
        "client": {"loss": "square"},
        "encoder": LINEAR,
        "server": {"optimizer": "cg", "ema": 0.0},
    },
    "newton": {
        "method": "fedalc-exact",
        "client": {"loss": "logistic"},
        "encoder": LINEAR | {"dim": 9},
        "server": {"optimizer": "newton", "ema": 0.0},
    },
    "one round": {"method": "fedalc-oneshot", "encoder": LINEAR, "server": {"ema": 0.0}},
    "fedncm": {"method": "fedncm", "encoder": {"name": "linear"}, "server": {"ema": 0.0}},
}


def trained(rounds: int, secure: dict[str, Any], **changes: Any) -> FederatedTraining:
    asked = experiment({**changed(SMALL, changes), "engine": "clients", "secure_sums": secure})
    federation = Federation(TRAIN.features, TRAIN.labels, parties=PARTIES)
    training = begin_training(
        asked, federation, lambda method: make_engine(asked, federation, method), knowledge_for(asked, TRAIN)
    )
    training.losses = [training.run_round() for _ in range(rounds)]  # type: ignore[attr-defined]
    return training


def plain_total(self: InProcess, question: Question, vector_of: Any) -> np.ndarray:
    """What `InProcess.total` gives, without a key or a mask."""
    return np.sum([encoded(vector_of(n), question.bits) for n in self.parties], axis=0, dtype=np.uint64)


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_plain_run_bit_for_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches the plain run is the same in its first round, if the order of batches does not depend on labels."""
    monkeypatch.setattr(Federation, "number_of", lambda self, client: 0)
    rounds = 1 if "round" in case or case in ("fedncm", "epochs") else 3
    masked = trained(rounds, {"on": True}, **CASES[case])
    assert isinstance(masked.engine, SecureSums)
    off = trained(rounds, {"on": False}, **CASES[case])
    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "total", plain_total)
        unmasked = trained(rounds, {"on": True}, **CASES[case])
    assert masked.losses == unmasked.losses  # type: ignore[attr-defined]
    for ours, same, floating in zip(masked.model.theta, unmasked.model.theta, off.model.theta, strict=True):
        assert torch.equal(ours, same)
        torch.testing.assert_close(ours, floating, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(masked.losses, off.losses, rtol=1e-6)  # type: ignore[attr-defined]


def test_the_bytes_are_those_that_travel() -> None:
    masked, off = (trained(1, {"on": on}, **CASES["adam"]) for on in (True, False))
    numbers, parties = sum(p.numel() for p in masked.model.theta), 4
    up = masked.ledger.up - parties * 8 * (numbers + 4)  # weight, loss, residue and one
    # Of each party: keys and an empty history, boxes and hashes of shares, no complaint, a tag, one share of each
    # dealer, nobody disagrees.
    name = len("party 000000000")
    keys, history = 4 + name + 5 * 32, 4 + len("{}")
    assert up == parties * (keys + history + (4 + 3 * 48) + (4 + 4 * 64) + 4 + 32 + (4 + 4 * 17) + 4)
    rows = len(masked.federation.clients) * masked.model.W.numel() * 8
    theta = parties * 8 * numbers
    # To each party: the roster, dealers with boxes and hashes, survivors, agreements.
    lists = (8 + 4 * keys + 4 + history) + (4 + 4 * 4) + (4 + 3 * 48) + (4 + 3 * 64) + (4 + 4 * 4) + (4 + 4 * 36)
    assert masked.ledger.down == rows + theta + parties * lists
    assert off.ledger.up == theta


def test_each_party_cuts_its_own_change() -> None:
    whole = trained(0, {"on": True}, method="fedavg-fixed")
    federation, clients = whole.federation, whole.federation.clients
    assert isinstance(whole.engine, SecureSums) and isinstance(federation, Federation)
    arguments = whole.model, clients, Chance(whole.settings, 1, whole.model.W), 1
    changes = {
        party: whole.engine.inner.run(whole.model, clients[federation.party_of == party], *arguments[2:]).change
        for party in range(4)
    }
    lengths = sorted(norm(change) for change in changes.values())
    longest = (lengths[1] + lengths[2]) / 2
    cutting = trained(0, {"on": True, "norm": longest}, method="fedavg-fixed")
    found = cutting.engine.run(*arguments).change
    share = {k: federation.counts[federation.party_of == k].sum() / federation.counts.sum() for k in changes}
    for place, ours in enumerate(found):
        wanted = sum(share[k] * min(1.0, longest / norm(change)) * change[place] for k, change in changes.items())
        torch.testing.assert_close(ours, wanted, rtol=1e-8, atol=1e-11)
    assert norm(cut(changes[0], 1e9)) == norm(changes[0])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"method": "fedalc"}, "fedalc trains class embeddings"),
        ({"method": "fedavg"}, "fedavg trains class embeddings"),
        ({"method": "fedaws"}, "fedaws trains class embeddings"),
        ({"method": "feduv"}, "feduv has rows that only their owners may know"),
        ({"method": "fedavg-fixed", "server": {"aggregation": "median"}}, 'server.aggregation = "median" compares'),
        ({"method": "fedavg-fixed", "server": {"aggregation": "clip"}}, "secure_sums.norm has each party cut"),
        ({"method": "fedavg-fixed", "engine": "fused"}, 'use engine = "clients"'),
        ({"method": "fedavg-fixed", "clients": "users"}, "users are not parties"),
        ({"method": "fedalc-exact", "encoder": {"name": "linear"}, "tuning": {"search": True}}, "a simulated search"),
        ({"method": "ovr"}, "ovr is centralised"),
    ],
)
def test_what_does_not_go_with_secure_sums_is_refused_by_name(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        experiment({**settings, "secure_sums": {"on": True}})
    assert str(error.value).startswith("secure_sums.on: ")


def test_two_parties_are_refused() -> None:
    data = small_dataset(labels=2)
    with pytest.raises(ConfigError, match=r"secure_sums\.on: a sum over 2 parties shows single ones"):
        fedalc.train(data=data, method="fedavg-fixed", rounds=1, secure_sums={"on": True})


def test_many_parties_are_slow_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.engines.secure.CUBE", 1.0)
    with pytest.warns(UserWarning, match="4 simulated parties take about 64 s for the shares of each sum"):
        fedalc.train(data=small_dataset(labels=4), method="fedavg-fixed", rounds=1, secure_sums={"on": True})


def test_overflow_says_which_setting() -> None:
    with pytest.raises(FedalcError, match=r"secure_sums\.bits: overflow.*use fewer bits"):
        trained(1, {"on": True, "bits": 60}, **CASES["one round"])


def test_a_whole_run_of_labels_as_parties() -> None:
    data = small_dataset(seed=3)
    keys: dict[str, Any] = {"method": "fedalc-oneshot", "rounds": 1, "encoder": {"name": "linear", "dim": 8}}
    secure = fedalc.train(data=data, **keys, secure_sums={"on": True, "threshold": 0.8})
    off = fedalc.train(data=data, **keys, engine="clients")
    assert secure.settings.engine == "clients"
    assert secure.metrics == pytest.approx(off.metrics)
    assert secure.result["bytes_up"] > off.result["bytes_up"]
