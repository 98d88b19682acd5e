"""Runs on pictures: every method, refusals, resuming to the same bits, the selected and the saved model."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedalc
from fedalc.core.registry import METHODS, ORACLES
from fedalc.data.synthetic.mosaics import MosaicsSize, make_mosaics
from fedalc.errors import ConfigError, DataError, Interrupted
from fedalc.models.encoders import encoder_shape, encoder_size, picture_bytes
from fedalc.runs import history
from fedalc.training.base import Callback
from fedalc.training.federated import simulated
from fedalc.workflows.preflight import check_kind, check_memory
from fedalc.workflows.train import image_options
from tests.models.encoders.weights import save_resnet
from tests.problems import StopAfter, random_pictures, small_dataset, small_pictures

pytest.importorskip("transformers")

MOSAICS = make_mosaics(MosaicsSize(train=40, test=16))
DATA = small_pictures()
ENCODER: dict[str, Any] = {"name": "resnet-small", "dim": 8}
SMALL: dict[str, Any] = {
    "rounds": 3,
    "encoder": ENCODER,
    "server": {"optimizer": "adam", "learning_rate": 0.01, "participation": 0.8, "ema": 0.5},
    "client": {"sample": 1.0},
    "images": {"augment": "off"},
    "selection": {"every": 1, "validation": 0.2, "refit": True},
}
BATCH: dict[str, Any] = {**SMALL, "engine": "clients", "encoder": {**ENCODER, "norm": "batch"}}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no report: it takes longer than the training, and no test here reads it."""
    monkeypatch.setattr("fedalc.report.page.write_page", lambda *folder: None)


def state(run: fedalc.Run) -> dict[str, torch.Tensor]:
    """Return the state, including statistics."""
    model: Any = run.model
    return {**model.model.encoder.state_dict(), "W": model.model.W}


def same_bits(a: fedalc.Run, b: fedalc.Run) -> bool:
    one, other = state(a), state(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.few(3)
@pytest.mark.parametrize("method", [method for method in METHODS if not METHODS[method].one_round])
def test_every_method_runs_on_mosaics(method: str) -> None:
    keys: dict[str, Any] = {"encoder": {**ENCODER, "start": "he"}, "hashing": {"tables": 2, "buckets": 5}, "rounds": 1}
    keys |= {"server": {"optimizer": "momentum"}, "client": {"sample": 0.3}, "images": {"augment": "mirror-shift"}}
    run = fedalc.train(data=MOSAICS, method=method, **keys)
    assert run.result["clients"] == 10 and run.result["rounds_run"] == 1
    assert set(run.metrics) >= {"P@1", "mAP", "PSP@1"} and 0 < run.metrics["mAP"] < 100
    assert "validation mAP" in run.result["selection"]["metrics"]


# --- refused ---


@pytest.mark.parametrize("method", ORACLES)
def test_oracles_have_no_use_for_pictures(method: str) -> None:
    with pytest.raises(ConfigError, match=f"^method: {method} is for sparse features, but mosaics has pictures$"):
        fedalc.train(data=MOSAICS, method=method)


@pytest.mark.parametrize("encoder", ["linear", "mlp", "random-features"])
def test_text_encoders_have_no_use_for_pictures(encoder: str) -> None:
    said = f"^encoder.name: {encoder} does not fit: mosaics has pictures: use resnet50 or resnet18 or resnet-small$"
    with pytest.raises(ConfigError, match=said):
        fedalc.train(data=MOSAICS, encoder={"name": encoder})


def test_a_resnet_has_no_use_for_text() -> None:
    said = "^encoder.name: resnet-small does not fit: small has no pictures: use mlp or linear or random-features"
    with pytest.raises(ConfigError, match=said):
        fedalc.train(data=small_dataset(), encoder=ENCODER)


def test_kinds_that_fit() -> None:
    check_kind(fedalc.experiment({"encoder": ENCODER, "images": {"size": 32}}), MOSAICS)
    check_kind(fedalc.experiment({"encoder": {"name": "linear"}}), small_dataset())
    check_kind(fedalc.experiment({"method": "ovr"}), small_dataset())


def test_one_round_is_for_linear_encoders() -> None:
    with pytest.raises(ConfigError, match="linear"):
        fedalc.train(data=MOSAICS, method="fedalc-oneshot", encoder={**ENCODER, "start": "he"})


def test_parties_of_their_own_are_not_started_by_train() -> None:
    with pytest.raises(ConfigError, match=r"^engine: flower runs with real parties"):
        fedalc.train(data=DATA, engine="flower", **SMALL)


def test_a_model_that_cannot_fit_is_refused_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fedalc.experiment({"encoder": ENCODER, "method": "fedavg"})
    needed = 4 * (6 * encoder_size(DATA.feature_count, settings.encoder) + 4 * 4 * 8)
    block = 64 * picture_bytes(encoder_shape(DATA.feature_count, settings.encoder), settings.images.size) // 2
    memory = SimpleNamespace(total=needed + block)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    check_memory(settings, DATA)
    memory.total -= 1
    with pytest.raises(ConfigError, match=r"^block_rows: 64 pictures at a time need .* GB"):
        check_memory(settings, DATA)
    memory.total = needed - 1
    with pytest.raises(ConfigError, match=r"^encoder: training needs .* GB for the model"):
        check_memory(settings, DATA)


def test_how_pictures_are_read_is_taken_from_the_settings() -> None:
    settings = fedalc.experiment({"images": {"size": 64, "difficult": False, "broken": "skip"}})
    options = image_options(settings)
    assert (options.size, options.difficult, options.broken) == (64, False, "skip")
    assert image_options(fedalc.experiment()).difficult, "an object that is in the picture is a label"


# --- the loop ---


@pytest.mark.long
@pytest.mark.parametrize(
    ("norm", "phase", "refit"),
    [
        ("group", "select", True),
        ("group", "refit", True),
        ("batch", "select", False),
        ("batch", "refit", True),
        ("frozen", "select", False),
    ],
)
def test_interrupted_and_resumed_gives_the_same_bits(tmp_path: Path, norm: str, phase: str, refit: bool) -> None:
    keys = {**(BATCH if norm == "batch" else SMALL), "images": {"augment": "mirror-shift"}, "client": {"sample": 0.9}}
    if norm == "frozen":
        save_resnet(tmp_path / "weights")
        keys["encoder"] = {**ENCODER, "norm": "frozen", "pretrained": str(tmp_path / "weights")}
    keys["selection"] = {**SMALL["selection"], "refit": refit, "keep": "last"}
    whole = fedalc.train(data=DATA, folder=tmp_path / "whole", **keys)
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "cut", callbacks=[StopAfter(phase, 2)], **keys)
    if norm == "frozen":
        save_resnet(tmp_path / "weights", seed=4)  # of no concern to a run that has begun
    resumed = fedalc.train(data=DATA, folder=tmp_path / "cut", resume=True, **keys)
    assert same_bits(whole, resumed) and whole.metrics == resumed.metrics
    unbroken, continued = (history.read(tmp_path / name / "history.jsonl") for name in ("whole", "cut"))
    for record in unbroken + continued:
        del record["seconds"]
    assert unbroken == continued


@pytest.mark.long
def test_the_chosen_model_has_the_statistics_of_its_own_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation gives 1, 3, 2: round 2 is kept, with its statistics."""
    keys = {**BATCH, "selection": {"every": 1, "validation": 0.2, "refit": False, "metric": "P@1"}}
    two_rounds = fedalc.train(data=DATA, **{**keys, "rounds": 2, "selection": {**keys["selection"], "keep": "last"}})
    three_rounds = fedalc.train(data=DATA, **{**keys, "selection": {**keys["selection"], "keep": "last"}})
    figures = iter((1.0, 3.0, 2.0))
    monkeypatch.setattr("fedalc.training.selection.measure", lambda *a, **b: {"P@1": next(figures)})
    chosen = fedalc.train(data=DATA, **keys)
    assert chosen.result["rounds"] == 2 and chosen.result["rounds_run"] == 3
    assert same_bits(chosen, two_rounds)
    mean = "backbone.embedder.embedder.normalization.running_mean"
    assert not torch.equal(state(chosen)[mean], state(three_rounds)[mean])


@pytest.mark.long
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_saved_model_comes_back(tmp_path: Path, norm: str) -> None:
    run = fedalc.train(data=DATA, folder=tmp_path / "run", **(BATCH if norm == "batch" else SMALL))
    loaded = fedalc.load_run(tmp_path / "run")
    assert same_bits(run, loaded)
    predicted = (each.model.predict(DATA.test.features) for each in (run, loaded))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*predicted, strict=True))
    with pytest.raises(DataError, match=r"^the model was trained on pictures of 16 × 16, but these have 24$"):
        loaded.model.predict(random_pictures(2, 24, 4, seed=0).features)


@pytest.mark.long
def test_a_saved_model_does_not_need_the_weights_it_began_with(tmp_path: Path) -> None:
    save_resnet(tmp_path / "weights")
    keys = {**SMALL, "encoder": {**ENCODER, "norm": "frozen", "pretrained": str(tmp_path / "weights")}, "rounds": 1}
    run = fedalc.train(data=DATA, folder=tmp_path / "run", **keys)
    (tmp_path / "weights").rename(tmp_path / "elsewhere")
    assert same_bits(run, fedalc.load_run(tmp_path / "run"))


def test_map_may_choose() -> None:
    keys = {**SMALL, "selection": {"every": 1, "validation": 0.3, "metric": "mAP", "refit": False}}
    seen: list[float] = []

    class Watch(Callback):
        def evaluated(self, record: dict[str, Any]) -> None:
            seen.append(record["metrics"]["validation mAP"])

    run = fedalc.train(data=DATA, callbacks=[Watch()], **keys)
    assert len(seen) == 3 and run.result["selection"]["value"] == max(seen)
    assert run.result["selection"]["round"] == 1 + seen.index(max(seen))


def test_two_runs_give_the_same_bits_and_leave_no_thread() -> None:
    before = threading.active_count()
    first, again = (fedalc.train(data=DATA, **{**SMALL, "rounds": 1}) for _ in range(2))
    assert same_bits(first, again)
    assert threading.active_count() == before


def test_the_settings_have_the_size_of_the_pictures_that_were_given() -> None:
    run = fedalc.train(data=MOSAICS, method="fedavg", encoder=ENCODER, rounds=1, client={"sample": 0.3})
    assert run.settings.images.size == MOSAICS.train.features.size
    with pytest.raises(ConfigError, match=r"^images.size: is 64, but the pictures of \w+ have \d+ pixels a side$"):
        fedalc.train(data=MOSAICS, method="fedavg", encoder=ENCODER, rounds=1, images={"size": 64})


def test_averaged_weights_have_averaged_statistics() -> None:
    """With a decay of 0.5, after the second round: the mean over both rounds, as for θ."""
    training = simulated(
        fedalc.experiment(
            {**BATCH, "method": "fedavg", "images": {"size": MOSAICS.train.features.size}, "client": {"sample": 1.0}}
        ),
        MOSAICS.train,
    )
    seen = []
    for _ in range(2):
        training.run_round()
        seen.append([statistic.clone() for statistic in training.model.statistics])
    first, second = (min(0.5, t / (t + 9)) for t in (1, 2))
    fresh = simulated(training.settings, MOSAICS.train).model.statistics
    for start, one, two, found in zip(fresh, *seen, training.averaged_model().statistics, strict=True):
        mean = first * start + (1 - first) * one
        assert torch.allclose(found, second * mean + (1 - second) * two, atol=1e-6)


def test_too_many_pictures_at_a_time_are_refused() -> None:
    keys = {"encoder": {"name": "resnet50"}, "images": {"size": 32}, "block_rows": 10**7, "method": "fedavg"}
    with pytest.raises(ConfigError, match=r"^block_rows: 10000000 pictures at a time need \d+ GB, this machine has"):
        fedalc.train(data=MOSAICS, **keys)
