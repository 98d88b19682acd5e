"""The server learns labels through the collection, with the same result as from Y; noise is accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedalc
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.keys import Key
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.labels.privacy import PrivateLabelSets
from fedalc.training.base import Callback
from fedalc.training.federated import knowledge_for, simulated
from fedalc.training.selection import Training
from tests.problems import federated, random_split, real_data, small_dataset

TRAIN = random_split(60, 20, 8, seed=4)
DATA = small_dataset()
SMALL: dict[str, Any] = {
    "rounds": 6,
    "encoder": {"name": "linear", "dim": 8},
    "regularizer": {"lambda": 10.0, "rate": 0.01, "neighbours": 3, "weighting": "sigma"},
    "fixed": {"steps": 4},
}


def learnt(method: str = "fedalc", **keys: Any) -> LabelKnowledge:
    knowledge = knowledge_for(fedalc.experiment({**SMALL, "method": method, **keys}), TRAIN)
    assert knowledge is not None
    return knowledge


def assert_same_bits(ours: Correlations, exact: Correlations) -> None:
    assert ours.instances == exact.instances
    assert ours.counts.dtype == exact.counts.dtype and ours.together.dtype == exact.together.dtype
    np.testing.assert_array_equal(ours.counts, exact.counts)
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(ours.together, name), getattr(exact.together, name))


@pytest.mark.parametrize("algorithm", ["hmac-sha256", "hmac-sha512", "hmac-md5", "sha256"])
def test_the_collection_gives_what_Y_gives(algorithm: str) -> None:
    knowledge = learnt(collection={"algorithm": algorithm})
    assert isinstance(knowledge.labels, Correlations)
    assert_same_bits(knowledge.labels, Correlations.from_label_sets(TRAIN.labels))
    assert knowledge.collection["messages"] == TRAIN.labels.nnz


@pytest.mark.parametrize("name", ["bibtex", "eurlex15k"])
def test_the_collection_gives_what_Y_gives_on_real_data(name: str) -> None:
    real_data(name)
    data = fedalc.load_dataset(name)
    knowledge = knowledge_for(fedalc.experiment({"method": "fedalc"}), data.train, data.label_names)
    assert knowledge is not None and isinstance(knowledge.labels, Correlations)
    assert_same_bits(knowledge.labels, Correlations.from_label_sets(data.train.labels))


@pytest.mark.parametrize("method", ["fedalc", "fedalc-fixed"])
def test_training_through_the_collection_is_training_on_Y(method: str) -> None:
    settings = fedalc.experiment({**SMALL, "method": method, "dtype": "float64"})
    through = federated(settings, TRAIN)
    direct = simulated(settings, TRAIN, LabelKnowledge(Correlations.from_label_sets(TRAIN.labels)))
    for _ in range(3):
        through.run_round(), direct.run_round()
    assert torch.equal(through.model.W, direct.model.W)
    for ours, theirs in zip(through.model.theta, direct.model.theta, strict=True):
        assert torch.equal(ours, theirs)


def test_identity_by_embedding_joins_what_content_joins_in_one_process() -> None:
    data = fedalc.load_dataset("demo")
    found = []
    for identity in ("content", "embedding"):
        settings = fedalc.experiment({"method": "fedalc", "collection": {"identity": identity}})
        knowledge = knowledge_for(settings, data.train, data.label_names)
        assert knowledge is not None and isinstance(knowledge.labels, Correlations)
        found.append(knowledge.labels)
    assert_same_bits(*found)


@pytest.mark.parametrize("method", ["fedavg", "fedavg-fixed", "fedaws"])
def test_methods_that_use_no_labels_collect_none(method: str) -> None:
    assert knowledge_for(fedalc.experiment({**SMALL, "method": method}), TRAIN) is None
    assert fedalc.train(data=DATA, **{**SMALL, "method": method}).result["collection"] is None


def test_the_key_is_in_no_file_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "key"
    Key.fresh().write(file)
    secret = file.read_text().split()[-1]
    collection = {"key": str(file)}
    fedalc.train(data=DATA, folder=tmp_path / "run", method="fedalc", collection=collection, **SMALL)
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert secret.encode() not in content and bytes.fromhex(secret) not in content, path


# --- differential privacy ---


def private(method: str, mechanism: str, **changes: Any) -> dict[str, Any]:
    result = fedalc.train(
        data=DATA, method=method, **SMALL, **{"privacy": {"mechanism": mechanism, "epsilon": 2.0}, **changes}
    ).result
    return dict(result)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["counts", "gradients"])
@pytest.mark.parametrize("method", ["fedalc", "fedalc-fixed"])
def test_a_run_spends_what_was_asked_over_both_phases(method: str, mechanism: str) -> None:
    spent = private(method, mechanism, selection={"validation": 0.2, "keep": "last", "refit": True})["privacy"]
    looks = 2 * {"counts": 1, "gradients": {"fedalc": 6, "fedalc-fixed": 4}[method]}[mechanism]
    assert spent["looks"] == looks
    assert 1.9 < spent["epsilon"] <= 2.0
    assert spent["delta"] == 1e-5


@pytest.mark.long
def test_a_run_that_stops_early_still_reports_what_was_planned() -> None:
    """The stopping point depends on data without noise, so fewer looks do not improve the guarantee."""
    keys = {"selection": {"validation": 0.2, "patience": 1, "every": 1, "refit": False}, "rounds": 200}
    settings = {**SMALL, **keys, "method": "fedalc", "privacy": {"mechanism": "gradients", "epsilon": 2.0}}
    result = fedalc.train(data=DATA, **settings).result
    assert result["privacy"]["looks"] == result["rounds_run"] < 200 == result["privacy"]["looks_planned"]
    assert 1.9 < result["privacy"]["epsilon"] <= 2.0


def test_without_a_mechanism_or_without_labels_nothing_is_spent() -> None:
    assert fedalc.train(data=DATA, method="fedalc", **SMALL).result["privacy"] is None
    with pytest.raises(ConfigError, match=r"privacy.mechanism: fedavg with these settings does not use label sets"):
        private("fedavg", "counts")


def test_who_names_an_epsilon_gets_it() -> None:
    asked = fedalc.experiment({"method": "fedalc"}, overrides=["privacy.epsilon=2"]).privacy
    assert (asked.mechanism, asked.epsilon) == ("counts", 2.0)


@pytest.mark.long
def test_a_private_run_does_not_tell_how_many_messages_there_were() -> None:
    result = private("fedalc", "counts", selection={"validation": 0})
    assert set(result["collection"]) == {"algorithm", "identity", "digest_bytes"}
    assert result["bytes_up"] == result["bytes_down"]


def test_noise_from_the_system_differs_and_seeded_noise_does_not() -> None:
    def counts(noise: str) -> np.ndarray:
        labels = learnt(privacy={"mechanism": "counts", "noise": noise, "labels_per_instance": 1}).labels
        assert isinstance(labels, Correlations)
        return labels.counts

    assert not np.array_equal(counts("system"), counts("system"))
    np.testing.assert_array_equal(counts("seeded"), counts("seeded"))


@pytest.mark.long
def test_gradient_noise_from_the_system_differs() -> None:
    def W(noise: str) -> torch.Tensor:
        keys = {"method": "fedalc", "privacy": {"mechanism": "gradients", "noise": noise, "sample_rate": 0.5}}
        training = federated(fedalc.experiment({**SMALL, **keys}), TRAIN)
        training.run_round()
        return training.model.W

    assert not torch.equal(W("system"), W("system"))
    assert torch.equal(W("seeded"), W("seeded"))


@pytest.mark.parametrize("mechanism", ["counts", "gradients"])
def test_phases_draw_noise_of_their_own(mechanism: str) -> None:
    settings = fedalc.experiment({**SMALL, "method": "fedalc", "privacy": {"mechanism": mechanism, "noise": "seeded"}})
    W = []
    for phase in ("select", "refit"):
        training = simulated(settings, TRAIN, knowledge_for(settings, TRAIN, phase=phase, phases=2))
        training.run_round()
        W.append(training.model.W)
    assert not torch.equal(*W)


def test_every_private_round_is_kept(tmp_path: Path) -> None:
    """Before it is reported: noise is drawn again only for a round that nobody has seen."""
    settings = fedalc.experiment({**SMALL, "method": "fedalc", "privacy": {"mechanism": "gradients"}})

    class Crash(Callback):
        def round(self, number: int, loss: float) -> None:
            if number == 4:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        Training(settings, DATA, tmp_path, [Crash()]).prepare().run()
    again = Training(settings, DATA, tmp_path, ()).prepare()
    again.resume()
    assert again.federated.round_number == 4 == again.federated.knowledge.looks  # type: ignore[union-attr]


@pytest.mark.parametrize("mechanism", ["counts", "gradients"])
def test_a_resumed_training_goes_on_with_what_was_drawn(mechanism: str) -> None:
    """Redrawn counts would cost their ε again, and past steps must stay counted."""
    settings = fedalc.experiment({**SMALL, "method": "fedalc", "privacy": {"mechanism": mechanism}})
    first, second = federated(settings, TRAIN), federated(settings, TRAIN)
    for _ in range(2):
        first.run_round()
    second.restore(dict(first.tensors()), json.loads(json.dumps(first.facts())))
    assert first.knowledge is not None and second.knowledge is not None
    assert second.knowledge.looks == first.knowledge.looks == {"counts": 1, "gradients": 2}[mechanism]
    if mechanism == "counts":
        assert isinstance(first.knowledge.labels, Correlations) and isinstance(second.knowledge.labels, Correlations)
        np.testing.assert_array_equal(first.knowledge.labels.counts, second.knowledge.labels.counts)
        first.run_round(), second.run_round()
        assert torch.equal(first.model.W, second.model.W)
    else:
        second.run_round()
        assert isinstance(second.knowledge.labels, PrivateLabelSets) and second.knowledge.looks == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"privacy": {"mechanism": "gradients"}, "regularizer": {"weighting": "conditional"}},
            "divides by private counts",
        ),
        ({"method": "fedaws", "collection": {"correlations": "x", "key": "k"}}, "does not use label sets"),
        ({"collection": {"correlations": "x"}}, "give the key file"),
        ({"collection": {"correlations": "x", "key": "k"}, "privacy": {"mechanism": "counts"}}, "collect server"),
        ({"collection": {"algorithm": "sha256", "key": "k"}}, "does not use a key"),
        ({"privacy": {"epsilon": 0}}, "epsilon"),
        ({"privacy": {"epsilon": 1e6}}, "epsilon"),
        ({"privacy": {"delta": 1.0}}, "delta"),
        ({"collection": {"digest_bytes": 4}}, "digest_bytes"),
    ],
)
def test_settings_that_cannot_be_meant(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedalc.experiment({"method": "fedalc"} | keys)


def test_a_missing_key_file_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FedalcError, match="no such key file"):
        collection = {"key": str(tmp_path / "k")}
        fedalc.train(data=DATA, folder=tmp_path / "run", method="fedalc", collection=collection, **SMALL)
    assert not (tmp_path / "run").exists()
