"""Sums and updates with differential privacy of whole records: what one record changes, and what follows from them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.engines.noised_sums import DiagonalMoments, FullMoments, NoisedSums
from fedalc.engines.owned_records import OwnedRecords, whole
from fedalc.engines.record_sums import RecordSums, chosen_moments
from fedalc.engines.record_updates import owners_slopes
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError
from fedalc.labels.knowledge import planned_charge
from fedalc.labels.privacy import NoiseShares, SecureGenerator
from fedalc.labels.privacy.accounts import party_account
from fedalc.labels.privacy.record_sums import UNIT
from fedalc.training.federated import FederatedTraining
from tests.problems import federated, random_split, small_dataset

TRAIN = random_split(40, 12, 6, seed=5)
SECRET = {"mechanism": "sums", "epsilon": 1.0, "noise": "seeded"}


def settings_for(**changes: Any) -> Experiment:
    keys: dict[str, Any] = {"method": "fedalc-oneshot", "dtype": "float64", "block_rows": 7, "encoder": {"dim": 6}}
    return experiment({**keys, "privacy": SECRET, **changes})


def stepwise(**changes: Any) -> Experiment:
    keys: dict[str, Any] = {"method": "fedalc-exact", "rounds": 3, "client": {"loss": "softmax"}}
    keys |= {"server": {"optimizer": "sgd"}, "privacy": SECRET | {"mechanism": "updates"}}
    return settings_for(**keys | changes)


def owned(training: FederatedTraining, by_client: bool) -> OwnedRecords:
    return OwnedRecords(training.federation, training.method, training.settings, training.model.encoder, by_client)


def summed(train: Split, moments: Any, by_client: bool, labels_per_record: int = 1) -> tuple[RecordSums, int]:
    records = owned(federated(settings_for(), train), by_client)
    sums = RecordSums(12, 6, labels_per_record, moments).add_all(records)
    return sums, int(records.count_units()[0])


@pytest.mark.parametrize("moments", ["diagonal", "full"])
def test_client_by_client_gives_the_same_whole_numbers(moments: Any) -> None:
    (one, count), (other, counted) = (summed(TRAIN, moments, by_client) for by_client in (False, True))
    assert count == counted
    for name in ("cross", "squares", "totals", "gram"):
        assert (getattr(one, name) == getattr(other, name)).all()
    x = TRAIN.features.toarray()
    if moments == "full":  # and they are the sums, but for the rounding
        has = TRAIN.labels.getnnz(axis=1) > 0
        scaled = x[has] / np.maximum(np.linalg.norm(x[has], axis=1), 1)[:, None]
        assert one.gram / UNIT**2 == pytest.approx(scaled.T @ scaled, abs=has.sum() * 6 / UNIT)


@pytest.mark.few(2)
@pytest.mark.parametrize("labels_per_record", [1, 3])
@pytest.mark.parametrize("moments", ["diagonal", "full"])
def test_no_record_changes_the_sums_by_more_than_the_noise_is_for(moments: Any, labels_per_record: int) -> None:
    """Each record of a small dataset removed in turn, long rows and rows with all labels among them."""
    train = replace(TRAIN, features=csr_matrix(TRAIN.features * 5))
    dense = train.labels.toarray()
    dense[0] = 1
    train = replace(train, labels=csr_matrix(dense))
    whole_sums, count = summed(train, moments, False, labels_per_record)
    for record in range(12):
        rest, fewer = summed(train.rows(np.delete(np.arange(40), record)), moments, False, labels_per_record)
        assert 0 <= count - fewer <= UNIT
        for name, bound in (("cross", UNIT * math.sqrt(labels_per_record)), ("squares", UNIT), ("totals", UNIT)):
            change = getattr(whole_sums, name) - getattr(rest, name)
            assert np.linalg.norm(change.astype(float)) <= bound
        if moments == "full":
            assert np.linalg.norm((whole_sums.gram - rest.gram).astype(float)) <= UNIT**2


@pytest.mark.parametrize("clip", [0.5, 1.0, 2.0])
def test_no_record_changes_an_update_by_more_than_clip(clip: float) -> None:
    training = federated(stepwise(), TRAIN)
    scores = np.random.default_rng(0).normal(size=(12, 6)) * 3
    for by_client in (False, True):
        for some in owned(training, by_client):
            slopes = owners_slopes(some, some.x @ scores, clip)
            rows = whole(some.x, np.ones(some.x.shape[0]))
            lengths = np.linalg.norm(rows.toarray(), axis=1) * np.linalg.norm(slopes, axis=1)
            assert lengths.max() <= clip * UNIT**2
            own = clip * UNIT / some.sizes if by_client else clip * UNIT
            assert (np.linalg.norm(slopes, axis=1) <= own + 1e-9).all()


def test_a_theta_that_overflows_does_not_break_the_bound() -> None:
    """As a server may send it: scores of ±∞, and nan where these meet."""
    some = next(iter(owned(federated(stepwise(), TRAIN), by_client=True)))
    scores = np.tile([np.inf, np.inf, -np.inf, np.nan, 1e308, 0.0], (some.x.shape[0], 1))
    slopes = owners_slopes(some, scores, 1.0)
    assert (np.linalg.norm(slopes, axis=1) <= UNIT / some.sizes + 1e-9).all() and (slopes != 0).any()


@pytest.mark.long
def test_an_update_without_clipping_is_the_softmax_gradient() -> None:
    """Against the loss written out: log Σ e^s minus the mean score of the record's labels."""
    training = federated(stepwise(), TRAIN)
    theta = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    records = owned(training, by_client=False)
    found, loss = np.zeros((12, 6), dtype=np.int64), torch.zeros((), dtype=torch.float64)
    for some in records:
        slopes = owners_slopes(some, some.x @ theta.detach().numpy(), clip=2.0)
        found += whole(some.x, np.ones(some.x.shape[0])).T @ slopes
        scores, wanted = torch.from_numpy(some.x.toarray()) @ theta, torch.from_numpy(some.owners.toarray()).double()
        has = torch.from_numpy(some.times > 0)
        loss = loss + (scores.logsumexp(1) - (wanted * scores).sum(1) / torch.from_numpy(some.sizes))[has].sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    assert found / UNIT**2 == pytest.approx(gradient.numpy(), abs=40 * 4 / UNIT)


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [settings_for(), stepwise()])
def test_both_engines_give_the_same_private_model(settings: Experiment) -> None:
    one, other = (federated(settings.model_copy(update={"engine": name}), TRAIN) for name in ("fused", "clients"))
    for training in (one, other):
        for _ in range(1 if training.method.one_round else 3):
            training.run_round()
    assert torch.equal(one.model.theta[0], other.model.theta[0])
    assert one.model.theta[0].abs().max() > 0


def test_shares_of_several_parties_make_a_model_too() -> None:
    training = federated(settings_for(privacy=SECRET | {"noise_parties": 4, "noise_dropouts": 1}), TRAIN)
    training.run_round()
    assert training.is_finite()


@pytest.mark.parametrize("moments", ["diagonal", "full"])
def test_rows_of_equal_content_are_one_record(moments: Any) -> None:
    """With identity `content`: a copy adds nothing, but for what is rounded towards zero once more."""
    rows = np.r_[np.arange(40), 3, 3, 8]
    settings = settings_for(collection={"identity": "content"})
    found = []
    for train in (TRAIN, TRAIN.rows(rows)):
        for by_client in (False, True):
            records = owned(federated(settings, train), by_client)
            found.append((RecordSums(12, 6, 1, moments).add_all(records), records.count_units()[0]))
    (first, count), _, *copies = found
    scale = UNIT if moments == "full" else 1  # of a rounding error
    for sums, counted in copies:
        assert abs(count - counted) <= 30
        for name, most in (("cross", 10), ("squares", 10), ("totals", 10), ("gram", 10 * scale)):
            assert np.abs(getattr(sums, name) - getattr(first, name)).max(initial=0) <= most


@pytest.mark.parametrize("settings", [settings_for(), settings_for(privacy=SECRET | {"moments": "full"}), stepwise()])
def test_masked_by_party_the_private_model_has_the_same_clean_sums(
    settings: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all noise zero, secure sums of single labels give the model of one process."""
    path = "fedalc.labels.privacy.record_sums.gaussian_noise"
    monkeypatch.setattr(path, lambda sigma, generator, count: np.zeros(count, dtype=np.int64))
    secure = settings.model_copy(
        update={"engine": "clients", "secure_sums": settings.secure_sums.model_copy(update={"on": True})}
    )
    one, other = (federated(each, TRAIN) for each in (settings, secure))
    for training in (one, other):
        training.run_round()
    assert torch.equal(one.model.theta[0], other.model.theta[0])
    assert one.model.theta[0].abs().max() > 0


def test_a_sample_rate_that_does_nothing_does_not_lower_what_is_charged(tmp_path: Path) -> None:
    account = party_account(tmp_path)
    charges = [
        planned_charge(settings_for(privacy={"mechanism": "sums", "epsilon": 1.0} | more), account, 1)
        for more in ({}, {"sample_rate": 0.01})
    ]
    assert charges[0].release == charges[1].release and charges[0].epsilon == charges[1].epsilon


def test_diagonal_moments_are_filtered_as_the_formula_says() -> None:
    random = np.random.default_rng(1)
    squares, totals = torch.from_numpy(random.random(9) * 5), torch.from_numpy(random.normal(size=9) * 4)
    moments, cross = DiagonalMoments(squares, totals, 20.0, 0.3), torch.from_numpy(random.normal(size=(9, 4)))
    G = torch.diag(moments.diagonal) + torch.outer(moments.mean, moments.mean)
    expected = G @ torch.linalg.solve(G @ G + 1.5 * G + 7 * torch.eye(9), cross)
    assert moments.filtered(cross, 1.5, 7.0).numpy() == pytest.approx(expected.numpy(), rel=1e-9)
    assert (moments @ cross).numpy() == pytest.approx((G @ cross).numpy(), rel=1e-12)
    shrink = 1 - 9 * 0.09 / float(totals.square().sum())
    assert moments.mean.numpy() == pytest.approx(shrink * totals.numpy() / math.sqrt(20))


def test_without_noise_full_moments_are_ridge_regression() -> None:
    random = np.random.default_rng(2)
    x, W = torch.from_numpy(random.normal(size=(30, 8))), torch.eye(5, dtype=torch.float64)
    gram, cross = x.T @ x, torch.from_numpy(random.normal(size=(8, 5)))
    noised = NoisedSums(FullMoments(gram, 0.0), cross, W, 0.0, 30.0, Ledger())
    exact = Sums(gram, cross, 0.0, 30, Ledger())
    assert noised.solve(1.0).numpy() == pytest.approx(exact.solve(1.0).numpy(), rel=1e-8)
    assert noised.objective(noised.solve(1.0), 1.0) == pytest.approx(exact.objective(exact.solve(1.0), 1.0), rel=1e-8)


def test_eigenvalues_above_the_noise_are_found_without_their_bias() -> None:
    """Two strong directions in 200 dimensions, and noise that hides all others."""
    shares, size = NoiseShares(1.0, 1, 0, SecureGenerator.seeded(4)), 200
    true = np.ones(size)
    true[-2:] = 3000, 900
    noised = shares.noised_symmetric(np.diag(true * 1000).astype(np.int64), 20_000.0) / 1000
    values = FullMoments(torch.from_numpy(noised), 20.0).values.numpy()  # the noise reaches up to 20 √400 = 400
    assert sorted(values)[-2:] == pytest.approx([900, 3000], rel=0.05)
    assert np.linalg.eigvalsh(noised)[-2] > 920  # which is larger than the truth
    assert len(set(values[:-2])) == 1


def test_all_products_are_summed_only_if_records_outweigh_the_noise() -> None:
    noise = NoiseShares(1.0, 1, 0, SecureGenerator.seeded(0))
    edge = math.sqrt(2 * 50) / math.sqrt(0.3)
    assert chosen_moments("auto", 50, 79 * edge, noise) == "diagonal"
    assert chosen_moments("auto", 50, 81 * edge, noise) == "full"
    assert chosen_moments("auto", 10_000, 1e12, noise) == "diagonal"
    assert chosen_moments("full", 50, 1.0, noise) == "full"


@pytest.mark.parametrize("mechanism", ["sums", "updates"])
def test_a_private_run_says_what_it_spent_and_little_else(mechanism: str, tmp_path: Path) -> None:
    data = small_dataset()
    alone = data.train.labels.toarray()
    alone[:, 3] = 0  # a label without a record: nobody may learn that
    data = replace(data, train=replace(data.train, labels=csr_matrix(alone)))
    keys = {"method": "fedalc-oneshot"}
    if mechanism == "updates":
        keys = {"method": "fedalc-exact", "rounds": 2, "client": {"loss": "softmax"}, "server": {"optimizer": "sgd"}}
    run = fedalc.train(data, **keys, privacy={"mechanism": mechanism, "epsilon": 1.0}, folder=tmp_path / "run")
    spent = run.result["privacy"]
    assert 0.99 < spent["epsilon"] <= 1
    assert "one record" in spent["protects"]
    assert (run.result["clients"], run.result["labels_without_client"]) == (7, 0)
    assert "messages" not in run.result["collection"] and "instances" not in run.result["collection"]
    assert "left_out" in run.result["calibration"]
    *_, line = (tmp_path / "run" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert mechanism == "sums" or json.loads(line)["loss"] == 0
    seeded = fedalc.train(data, **keys, privacy={"mechanism": mechanism, "epsilon": 1.0, "noise": "seeded"})
    assert seeded.result["privacy"]["epsilon"] is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"method": "fedalc-exact"}, "sums is for fedalc-oneshot"),
        ({"selection": {"validation": 0.1}}, "held-out records"),
        ({"client": {"set_size": "expected"}}, "exact"),
        ({"privacy": SECRET | {"noise_parties": 2, "noise_dropouts": 2}}, "someone must add noise"),
        ({"privacy": SECRET | {"mechanism": "updates"}}, "several rounds"),
        ({"engine": "flower"}, "the server knows the seed"),
        ({"collection": {"identity": "embedding"}}, "by number or content"),
    ],
)
def test_what_noise_does_not_cover_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings_for(**changes)


def test_features_of_too_few_holders_are_left_out_of_the_sums() -> None:
    """Feature 0 at two labels' records, feature 1 at one label's, feature 2 nowhere."""
    x = csr_matrix(np.array([[1.0, 0, 0, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 1]]))
    Y = csr_matrix(np.array([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]))
    federation = federated(settings_for(privacy={}, encoder={"dim": 3}), Split(x, Y)).federation
    assert federation.holder_counts().tolist() == [3, 1, 0, 3]
    settings = settings_for(privacy={}, encoder={"dim": 3}, server={"least_holders": 2})
    training = federated(settings, Split(x, Y))
    training.run_round()
    theta = training.model.theta[0]
    assert (theta[1:3] == 0).all() and (theta[[0, 3]] != 0).any(1).all()
    sums = training.engine.sums(training.model, training.federation.clients)
    assert (sums.gram[1:3] == 0).all() and (sums.cross[1:3] == 0).all()
    with pytest.raises(ConfigError, match="does not cover"):
        settings_for(server={"least_holders": 2})
