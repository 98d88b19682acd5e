"""Robust rules in one process: for each, engine `fused` equals `clients`, and both equal a literal round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedalc
from fedalc.config.resolve import experiment
from fedalc.data.federation import Federation
from fedalc.engines import aggregation, make_engine
from fedalc.engines.aggregation.lengths import norm
from fedalc.engines.by_party import PartyByParty
from fedalc.errors import ConfigError, Interrupted
from fedalc.models.encoders import Chance
from fedalc.training.federated import begin_training
from tests.engines.test_equality import TRAIN, after, assert_equal, settings
from tests.engines.test_users import OF_USERS
from tests.problems import StopAfter, small_dataset

ROBUST = [rule for rule in aggregation.RULES if rule != "mean"]


@pytest.mark.few(4)
@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("method", ["fedalc", "fedavg-fixed"])
@pytest.mark.parametrize("rule", ROBUST)
def test_fused_equals_clients(rule: str, method: str, participation: float) -> None:
    # Not adam: see test_equality.py.
    server = {"aggregation": rule, "participation": participation, "optimizer": "momentum"}
    assert_equal(method=method, server=server)


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", ROBUST)
def test_a_users_clients_are_one_party(rule: str) -> None:
    server = {"aggregation": rule, "optimizer": "momentum"}
    assert_equal(3, OF_USERS, clients="users", method="fedaws", server=server)


def test_party_by_party_the_mean_is_that_of_all_at_once() -> None:
    parties = np.array([0, 0, 1, 1, 1, 2, 0])
    federation = Federation(TRAIN.features, TRAIN.labels, parties=parties)
    whole, _ = after(0, "clients", method="fedavg")
    by_party = PartyByParty(whole.engine, federation, whole.method, whole.settings)
    arguments = whole.model, federation.clients, Chance(whole.settings, 1, whole.model.W), 1
    ours, theirs = by_party.run(*arguments), whole.engine.run(*arguments)
    for one, other in zip([*ours.change, ours.rows], [*theirs.change, theirs.rows], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert ours.labels.tolist() == theirs.labels.tolist() and ours.loss == pytest.approx(theirs.loss, rel=1e-12)
    assert sorted(by_party.lengths.last) == [0, 1, 2]


def test_two_rounds_of_clip_written_out() -> None:
    """Parties {0, 1, 2} and {3, …, 6}: in round 1 both are cut to the shorter of the two, in round 2 to that of round
    1."""
    parties = np.array([0, 0, 0, 1, 1, 1, 1])
    asked = settings("clients", method="fedavg-fixed", server={"aggregation": "clip", "optimizer": "sgd"})
    federation = Federation(TRAIN.features, TRAIN.labels, parties=parties)
    training = begin_training(asked, federation, lambda method: make_engine(asked, federation, method))
    plain = asked.model_copy(update={"server": asked.server.model_copy(update={"aggregation": "mean"})})
    literal = make_engine(plain, federation, training.method)
    share = [federation.counts[parties == party].sum() / federation.counts.sum() for party in (0, 1)]
    bound = None
    for number in (1, 2):
        chance = Chance(asked, number, training.model.W)
        changes = [literal.run(training.model, np.flatnonzero(parties == k), chance, number).change for k in (0, 1)]
        lengths = [norm(change) for change in changes]
        bound = min(lengths) if bound is None else bound
        cut = [p * min(1, bound / length) for p, length in zip(share, lengths, strict=True)]
        wanted = [cut[0] * a + cut[1] * b for a, b in zip(*changes, strict=True)]
        found = training.engine.run(training.model, federation.clients, chance, number).change
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
        assert max(lengths) > bound  # something was cut
        bound = min(lengths)


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_a_resumed_run_cuts_to_the_same_length(tmp_path: Path, engine: str) -> None:
    data = small_dataset(seed=3)
    keys: dict[str, Any] = {"method": "fedavg", "engine": engine, "rounds": 4, "encoder": {"dim": 8}}
    keys |= {"selection": {"validation": 0.0}, "server": {"aggregation": "clip", "participation": 0.5}}
    whole = fedalc.train(data=data, **keys)
    with pytest.raises(Interrupted):
        fedalc.train(data=data, folder=tmp_path / "run", callbacks=[StopAfter("fit", 2)], **keys)
    resumed = fedalc.train(data=data, folder=tmp_path / "run", resume=True, **keys)
    assert torch.equal(whole.model.model.W, resumed.model.model.W)  # type: ignore[union-attr]
    assert resumed.result["aggregation"] == "clip"


# --- what is asked for, and what is taken ---


def test_auto_is_clip_with_real_parties_and_the_mean_in_a_simulation() -> None:
    def chosen(**keys: Any) -> str:
        return experiment(keys).server.aggregation

    assert chosen() == chosen(engine="clients") == chosen(server={"aggregation": "auto"}) == "mean"
    assert chosen(engine="flower") == chosen(engine="flower", server={"aggregation": "auto"}) == "clip"
    assert chosen(engine="flower", server={"aggregation": "median"}) == "median"
    assert chosen(engine="flower", method="fedalc-oneshot") == chosen(engine="flower", method="fedalc-exact") == "mean"
    written = experiment({"engine": "flower"}).to_toml()
    assert 'aggregation = "clip"' in written


@pytest.mark.parametrize("rule", ROBUST)
def test_what_solves_one_objective_refuses_it(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.aggregation.*fedalc-oneshot solves one objective"):
        experiment({"method": "fedalc-oneshot", "server": {"aggregation": rule}})
    with pytest.raises(ConfigError, match=r'server\.aggregation.*"cg" solves one objective'):
        experiment({"method": "fedalc-exact", "server": {"aggregation": rule}})
    batch = {"name": "resnet18", "norm": "batch"}
    with pytest.raises(ConfigError, match=r"server\.aggregation.*running averages"):
        experiment({"engine": "clients", "encoder": batch, "server": {"aggregation": rule}})


@pytest.mark.parametrize("share", ["trim", "byzantine"])
def test_half_of_the_parties_is_too_many(share: str) -> None:
    with pytest.raises(ConfigError, match=rf"server\.{share}"):
        experiment({"server": {share: 0.5}})


def test_run_folders_of_earlier_versions_keep_the_mean(tmp_path: Path) -> None:
    from fedalc.runs.folder import read_settings

    text = experiment({"engine": "flower"}).to_toml()
    kept = [line for line in text.splitlines() if not line.startswith(("aggregation", "trim", "byzantine"))]
    (tmp_path / "config.toml").write_text("\n".join(kept))
    assert read_settings(tmp_path).server.aggregation == "mean"
    (tmp_path / "config.toml").write_text(text)
    assert read_settings(tmp_path).server.aggregation == "clip"


def test_an_engine_saves_and_restores_its_own_state() -> None:
    first, _ = after(2, "fused", method="fedavg", server={"aggregation": "clip"})
    second, _ = after(0, "fused", method="fedavg", server={"aggregation": "clip"})
    assert set(first.engine.tensors()) == {"lengths.party", "lengths.last", "lengths.usual", "lengths.largest"}
    assert first.engine.tensors().keys() <= first.tensors().keys()
    second.restore(first.tensors(), first.facts())
    for name, tensor in first.engine.tensors().items():
        assert torch.equal(tensor, second.engine.tensors()[name])
    plain, _ = after(1, "fused", method="fedavg")
    assert plain.engine.tensors() == plain.engine.facts() == {}
