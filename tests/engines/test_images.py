"""Engines on pictures: `fused` equals `clients` in float64, blocks change nothing, batch normalisation is right."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Split
from fedalc.data.images.images import Images
from fedalc.evaluation.evaluate import evaluate
from fedalc.models.encoders import PictureRows
from fedalc.models.scoring import Scorer
from fedalc.training.federated import FederatedTraining
from tests.models.encoders.weights import save_resnet
from tests.problems import changed, federated, random_pictures

pytest.importorskip("transformers")

TRAIN = random_pictures(13, 16, 5, seed=3)  # 12 with labels
SMALL: dict[str, Any] = {
    "method": "fedalc",
    "dtype": "float64",
    "block_rows": 5,  # blocks of 5, 5 and 2 of the pictures with a label; clients are cut elsewhere
    "encoder": {"name": "resnet-small", "dim": 8, "start": "he"},
    # Not adam: it would blow a gradient of 1e-18, which is 0 in the other engine, up to a step of 1e-11.
    "server": {"optimizer": "momentum", "learning_rate": 0.5, "weight_decay": 0.1, "ema": 0.5},
    "client": {"learning_rate": 0.5, "row_learning_rate": 0.8, "sample": 1.0},
    "images": {"augment": "off"},
    "regularizer": {"lambda": 10.0, "rate": 0.01, "neighbours": 2},
    "fixed": {"steps": 5, "rate": 0.1},
    "hashing": {"tables": 2, "buckets": 3},
}
BY_STEPS = [method for method in METHODS if not METHODS[method].one_round]  # the others have a linear encoder
IN_SHORT = ("fedavg", "fedalc", "fedalc-exact", "fedmlh")


def training(engine: str, train: Split = TRAIN, **changes: Any) -> FederatedTraining:
    return federated(experiment({**changed(SMALL, changes), "engine": engine}), train)


def assert_same(ours: FederatedTraining, theirs: FederatedTraining) -> None:
    for a, b in zip(ours.tensors().values(), theirs.tensors().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def assert_equal(**changes: Any) -> None:
    fused, clients = (training(engine, **changes) for engine in ("fused", "clients"))
    start = fused.model.theta[0].detach().clone()
    losses = [[each.run_round() for _ in range(2)] for each in (fused, clients)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert (start - fused.model.theta[0]).abs().max() > 1e-4, "nothing was learnt"
    assert_same(fused, clients)
    assert fused.ledger == clients.ledger


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "method",
    # The engines' part in pictures is the same for all others; those on texts are in test_equality.
    [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.long) for name in BY_STEPS],
)
def test_every_method_on_moved_pictures_of_a_sample(method: str) -> None:
    assert_equal(method=method, images={"augment": "mirror-shift"}, client={"sample": 0.6})


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"block_rows": 7, "images": {"augment": "mirror"}, "server": {"participation": 0.6}},
        {"block_rows": 1},
        {"client": {"sample": 0.15}},  # some clients have none of their pictures
        {"client": {"sample": 0.6, "weight_decay": 0.3}, "server": {"weights": "uniform"}},
        {"method": "fedmlh", "encoder": {"dropout": 0.4}, "images": {"augment": "mirror"}},
        {"server": {"optimizer": "sgd"}},
        # An epsilon above what rounding makes of a gradient of zero.
        {"server": {"optimizer": "adam", "learning_rate": 0.01, "epsilon": 1e-3}},
        {"method": "fedalc-exact", "server": {"optimizer": "adam", "learning_rate": 0.01, "epsilon": 1e-3}},
        {"method": "fedalc-exact", "server": {"optimizer": "sgd"}, "client": {"set_size": "expected"}},
        {"method": "fedavg", "encoder": {"output": "raw"}, "client": {"loss": "square", "set_size": "ignored"}},
    ],
    ids=str,
)
def test_every_setting_both_can_express(changes: dict[str, Any]) -> None:
    assert_equal(**changes)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fedavg", "fedalc", "fedalc-exact"])
def test_frozen_statistics_of_pretrained_weights(tmp_path: Path, method: str) -> None:
    save_resnet(tmp_path)
    encoder = {"norm": "frozen", "pretrained": str(tmp_path)}
    assert_equal(method=method, encoder=encoder, client={"sample": 0.6}, images={"augment": "mirror-shift"})


def test_frozen_statistics_stay_to_the_bit_and_do_not_travel(tmp_path: Path) -> None:
    save_resnet(tmp_path)
    one = training("clients", encoder={"norm": "frozen", "pretrained": str(tmp_path)}, dtype="float32", method="fedavg")
    before = [buffer.clone() for buffer in one.model.encoder.buffers()]
    one.run_round()
    assert len(before) == 36 and one.model.statistics == []
    assert all(torch.equal(a, b) for a, b in zip(before, one.model.encoder.buffers(), strict=True))
    theta = 4 * sum(parameter.numel() for parameter in one.model.theta)
    assert one.ledger.up == 5 * (theta + 4 * 8)


@pytest.mark.long
def test_blocks_bound_memory_and_change_nothing_in_engine_clients() -> None:
    """One client with 40 pictures, in 40 blocks, 6 or one."""
    labels = np.zeros((40, 2))
    labels[:, 0], labels[7, 1] = 1, 1
    big = Split(random_pictures(40, 16, 2, seed=8).features, labels)
    whole, sevens, ones = (training("clients", big, block_rows=block) for block in (1000, 7, 1))
    for each in (whole, sevens, ones):
        each.run_round()
    assert_same(whole, ones)
    assert_same(whole, sevens)


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_a_round_whose_sample_is_empty_only_decays(engine: str) -> None:
    """Server sgd with rate 1 and no decay of its own: θ(1 - 0.5·0.3). W keeps its rows, and the loss is 0."""
    server = {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0}
    one = training(engine, method="fedavg", client={"sample": 1e-9, "weight_decay": 0.3}, server=server)
    before, W = [parameter.detach().clone() for parameter in one.model.theta], one.model.W.clone()
    assert one.run_round() == 0
    for old, new in zip(before, one.model.theta, strict=True):
        torch.testing.assert_close(new.detach(), 0.85 * old, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(one.model.W, W, rtol=1e-14, atol=1e-15)


def test_a_sampled_step_is_divided_by_what_a_sample_has_on_average() -> None:
    """Compare with the objective: Σ p_u/(0.6 n_u) Σ over the sample of max(0, 0.9 - g(x_j)ᵀw_u)²."""
    from fedalc.models.encoders import Chance

    server = {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0}
    one = training("clients", method="fedavg-fixed", client={"sample": 0.6}, server=server)
    network, W = copy.deepcopy(one.model.encoder), one.model.W
    chosen = Chance(one.settings, 1, W).chosen(np.arange(13))
    assert 0 < chosen.sum() < 13
    g = network(PictureRows(TRAIN.features, np.arange(13), torch.float64, "cpu"))
    Y = TRAIN.labels.toarray()
    terms = [(0.9 - g[j] @ W[u]).clamp(min=0) ** 2 for j, u in np.argwhere(Y) if chosen[j]]
    objective = torch.stack(terms).sum() / 0.6 / Y.sum()  # p_u/n_u is the same for all: 1/Σn
    objective.backward()
    assert one.run_round() == pytest.approx(objective.item(), rel=1e-10)
    for after, parameter in zip(one.model.theta, network.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(after, parameter - 0.5 * parameter.grad, rtol=1e-9, atol=1e-12)


# --- batch normalisation ---

BATCH: dict[str, Any] = {"encoder": {"norm": "batch"}, "block_rows": 1000}  # a block has statistics of its own


def scaled(images: Images) -> torch.Tensor:
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], dtype=torch.float64)
    return ((torch.from_numpy(images.pixels()).double() / 255 - mean) / deviation).permute(0, 3, 1, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_a_round_with_batch_normalisation_by_a_literal_twin(weights: str) -> None:
    """Run each client on its own copy: its statistics and its step; the server takes their weighted means."""
    server = {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "weights": weights, "ema": 0.0}
    one = training("clients", method="fedavg-fixed", server=server, **BATCH)
    one.run_round()  # so that statistics are not those of the start
    start = copy.deepcopy(one.model)
    one.run_round()
    Y = TRAIN.labels.toarray()
    total = {name: torch.zeros_like(value) for name, value in start.encoder.state_dict().items()}
    for u in range(5):
        share = Y[:, u].sum() / Y.sum() if weights == "samples" else 1 / 5
        alone: Any = copy.deepcopy(start.encoder)
        alone.backbone.train()
        h = alone.head(alone.backbone(scaled(TRAIN.features[np.flatnonzero(Y[:, u])])).pooler_output.flatten(1))
        g = h / h.norm(dim=1, keepdim=True)
        (0.9 - g @ start.W[u]).clamp(min=0).square().mean().backward()
        with torch.no_grad():
            for parameter in alone.parameters():
                parameter -= 0.5 * parameter.grad
        for name, value in alone.state_dict().items():
            if value.is_floating_point():
                total[name] += share * value
    found = one.model.encoder.state_dict()
    moved = [name for name in found if not torch.equal(found[name], start.encoder.state_dict()[name])]
    assert sum("running_mean" in name for name in moved) == sum("running_var" in name for name in moved) == 12
    for name, value in found.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, total[name], rtol=1e-9, atol=1e-12, msg=name)


def test_statistics_travel_with_theta() -> None:
    one = training("clients", method="fedavg-fixed", dtype="float32", **BATCH)
    one.run_round()
    channels = 32 + 2 * (32 + 64 + 128 + 256) + (64 + 128 + 256)  # of the stem, the blocks and the shortcuts
    each = 4 * (sum(parameter.numel() for parameter in one.model.theta) + 2 * channels)
    assert one.ledger.up == 5 * each and one.ledger.down == 5 * (each + 4 * 8)  # and once, fixed rows


def test_an_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    one = training("clients", **BATCH)
    one.run_round()
    model = one.averaged_model()
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    evaluate(model, TRAIN, one.held, with_map=True)
    assert all(torch.equal(before[name], value) for name, value in model.encoder.state_dict().items())
    encoded = Scorer(model, TRAIN.features, one.held).encoded
    alone = torch.cat([Scorer(model, TRAIN.features[row], one.held).encoded for row in range(13)])
    torch.testing.assert_close(encoded, alone, rtol=1e-10, atol=1e-12)
    network: Any = copy.deepcopy(model.encoder)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean += 0.5
    model.encoder = network
    assert (Scorer(model, TRAIN.features, one.held).encoded - encoded).abs().max() > 1e-3


def test_a_client_without_a_sampled_picture_keeps_the_servers_statistics() -> None:
    one = training("clients", client={"sample": 1e-9}, **BATCH)
    before = [statistic.clone() for statistic in one.model.statistics]
    one.run_round()
    for old, new in zip(before, one.model.statistics, strict=True):
        torch.testing.assert_close(new, old, rtol=1e-14, atol=0)


def test_several_encoders_have_statistics_of_their_own() -> None:
    one = training("clients", method="fedmlh", **BATCH)
    one.run_round()
    first, second = one.model.encoder.encoders  # type: ignore[misc]
    assert len(one.model.statistics) == 2 * 24
    mean = "backbone.embedder.embedder.normalization.running_mean"
    assert not torch.equal(first.state_dict()[mean], second.state_dict()[mean])


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_no_thread_is_left_after_a_round(engine: str) -> None:
    one = training(engine)
    before = threading.active_count()
    one.run_round()
    assert threading.active_count() == before
