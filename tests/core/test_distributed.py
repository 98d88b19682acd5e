"""Two processes give the same results as one (rounds, regularisers, evaluation, checkpoints), and refusals."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import diags

import fedalc
from fedalc.core import distributed
from fedalc.errors import ConfigError, FedalcError, Interrupted
from fedalc.evaluation.evaluate import evaluate
from fedalc.models.class_embeddings import collapse_of
from fedalc.models.sharding import Shard, shard_of
from fedalc.runs import history
from fedalc.training.federated import FederatedTraining
from tests.problems import StopAfter, changed, federated, random_pictures, random_split, small_dataset

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
TRAIN, TEST = random_split(50, 20, 7, seed=11), random_split(23, 20, 7, seed=12)
SPARSE = random_split(50, 400, 7, seed=12)
SPARSE.features.data[np.random.default_rng(1).random(SPARSE.features.nnz) < 0.95] = 0
SPARSE.features.eliminate_zeros()  # few clients have few of the features
TEST = fedalc.Split(TEST.features, TEST.labels @ diags([0.0, 0, 0, 1, 1, 1, 1]))  # mAP: the first process has no label
DATA, PICTURES = small_dataset(), random_pictures(11, 16, 4, seed=3)
SMALL: dict[str, Any] = {
    "dtype": "float64",
    "block_rows": 7,
    "encoder": {"name": "mlp", "dim": 6, "embedding": 5, "hidden": (8, 7), "dropout": 0.0},
    "server": {"optimizer": "momentum", "learning_rate": 0.5, "weight_decay": 0.1, "ema": 0.5},
    "client": {"learning_rate": 0.5, "row_learning_rate": 0.8},
    "regularizer": {"lambda": 10.0, "rate": 0.01, "neighbours": 2},
    "fixed": {"steps": 5, "rate": 0.1},
    "selection": {"every": 2, "validation": 0.2},
}
SOLVED = {"encoder": {"name": "linear", "start": "zero"}, "client": {"loss": "square"}}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedaws mined": {"method": "fedaws"},
    "fedaws full": {"method": "fedaws", "regularizer": {"form": "full"}},
    "fedalc mined": {"method": "fedalc"},
    "fedalc mined, adaptive, of a sample": {"regularizer": {"margin": "adaptive", "candidates": 4}},
    "fedalc full": {"method": "fedalc", "regularizer": {"form": "full"}},
    "fedalc-fixed": {"method": "fedalc-fixed"},
    "fedalc-exact": {"method": "fedalc-exact", "server": {"optimizer": "cg", "ema": 0.0}, **SOLVED},
    "fedalc-oneshot": {"method": "fedalc-oneshot", "server": {"ema": 0.0}, **SOLVED},
    "random features": {
        "method": "fedalc-oneshot",
        "server": {"ema": 0.0},
        "client": {"loss": "square"},
        "encoder": {"name": "random-features", "random_features": 9, "constant": 0.7, "start": "zero"},
    },
    "fedmlh": {"method": "fedmlh", "hashing": {"tables": 2, "buckets": 40}},
    "flag": {"method": "flag"},
    # W starts at random: among orthogonal rows, which are the nearest ones is rounding
    "pictures": {
        "encoder": {"name": "resnet-small"},
        "images": {"size": 16, "augment": "mirror"},
        "embeddings": {"start": "random"},
    },
    "adam": {"server": {"optimizer": "adam", "learning_rate": 0.05, "epsilon": 1e-3}},
    "dropout": {"encoder": {"dropout": 0.4}},
    "sampled clients": {"server": {"participation": 0.3}},
    "few features": {"server": {"participation": 0.15, "optimizer": "sgd", "weight_decay": 0.0, "ema": 0.0}},
    "clipped": {"server": {"aggregation": "clip", "participation": 0.6}},
    "neighbours of few": {"server": {"participation": 0.3}, "regularizer": {"rows": "participants"}},
    "neighbours of one": {"server": {"participation": 0.15}, "regularizer": {"rows": "participants"}},
    "sampled instances": {"client": {"sample": 0.05}},  # in some rounds a process has none
    "noise": {"privacy": {"mechanism": "counts", "noise": "seeded"}},
    "noise in each step": {
        "privacy": {"mechanism": "gradients", "noise": "seeded"},
        "regularizer": {"weighting": "sigma"},
    },
}
CASES |= {
    f"in parts: {name}": {
        **changes,
        "shard_rows": "on",
        "server": {"optimizer": "sgd", "weight_decay": 0.0, "participation": 0.5, **changes.pop("server", {})},
    }
    for name, changes in {
        "fedavg": {"method": "fedavg"},
        "fedavg-fixed": {"method": "fedavg-fixed", "embeddings": {"start": "random"}},
        "fedaws": {"method": "fedaws"},
        "fedalc": {"method": "fedalc", "memory_budget": 2**20},
        "adaptive, of a sample": {"regularizer": {"margin": "adaptive", "candidates": 2}},
        "neighbours of few": {"regularizer": {"rows": "participants"}},
        "neighbours of few in a sample": {"regularizer": {"rows": "participants", "candidates": 3}},
        "momentum": {"server": {"optimizer": "momentum", "ema": 0.0}},
        "multi-krum": {"server": {"aggregation": "multi-krum", "participation": 0.9}},
    }.items()
}
OF_THE_SYSTEM = ("noise", "noise in each step")
RUN = {**SMALL, "rounds": 8, "selection": {**SMALL["selection"], "refit": False}}
RUNS: dict[str, dict[str, Any]] = {
    "copies": RUN,
    "parts": {**RUN, "shard_rows": "on", "server": {**SMALL["server"], "participation": 0.5}},
}


def settings(changes: dict[str, Any]) -> fedalc.Experiment:
    return fedalc.experiment(changed(SMALL, changes))


def trained(changes: dict[str, Any], train: fedalc.Split = TRAIN) -> tuple[FederatedTraining, list[float]]:
    training = federated(settings(changes), train)
    return training, [training.run_round() for _ in range(1 if training.method.one_round else 4)]


def outcome(name: str) -> dict[str, torch.Tensor]:
    train, test = {"few features": (SPARSE, SPARSE), "pictures": (PICTURES, PICTURES)}.get(name, (TRAIN, TEST))
    training, losses = trained(CASES[name], train)
    model = training.averaged_model()
    metrics = evaluate(model, test, training.held, with_map=True)
    figures = collapse_of(model, training.held)
    numbers = {"losses": losses, "metrics": list(metrics.values()), "collapse": list(figures.values())}
    tensors = {f"copy {i}": value.detach().contiguous() for i, value in enumerate(training.model.values[:-1])}
    tensors["W"] = training.model.all_rows(training.model.W).contiguous()
    return tensors | {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def work(folder: Path) -> None:
    """Run the work of one of the two processes, and write the results that the tests check."""
    rank = os.environ["RANK"]
    with distributed.joined("cpu"):
        for name in CASES:
            save_file(outcome(name), folder / f"{name} {rank}")
        for name in OF_THE_SYSTEM:
            changes = {**CASES[name], "privacy": {**CASES[name]["privacy"], "noise": "system"}}
            distributed.check_equal(trained(changes)[0].model.values, "with the system's noise")
        callbacks = [StopAfter("select", 3)] if rank == "1" else []  # the other is to stop too
        for how, keys in RUNS.items():
            with pytest.raises(Interrupted):
                fedalc.train(data=DATA, folder=folder / f"{how} stopped by two", callbacks=callbacks, **keys)
            fedalc.train(data=DATA, folder=folder / f"{how} stopped by one", resume=True, **keys)
        said: dict[str, str] = {}
        try:
            distributed.check_equal([torch.full((3,), float(rank))], "after round 7")
        except FedalcError as error:
            said["differ"] = str(error)
        if rank == "1":
            os._exit(3)  # as if killed
        try:
            distributed.barrier()
        except FedalcError as error:
            said["alone"] = str(error)
        (folder / "said").write_text(json.dumps(said))
        os._exit(0)  # torch sometimes aborts when it takes down a group whose other process is gone


def environment(rank: int, port: int) -> dict[str, str]:
    told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    return {
        **os.environ,
        **{key: str(value) for key, value in told.items()},
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        distributed.MINUTES: "1",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of the two processes."""
    place = tmp_path_factory.mktemp("two")
    for how, keys in RUNS.items():
        with pytest.raises(Interrupted):
            fedalc.train(data=DATA, folder=place / f"{how} stopped by one", callbacks=[StopAfter("select", 5)], **keys)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"from pathlib import Path; from tests.core.test_distributed import work; work(Path({str(place)!r}))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=environment(rank, port), stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 3], "\n".join(errors)
    return place


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_what_one_gives(folder: Path, name: str) -> None:
    alone = outcome(name)
    first, second = (load_file(folder / f"{name} {rank}") for rank in range(2))
    assert alone.keys() == first.keys()
    for key, value in alone.items():
        assert torch.allclose(value, first[key], rtol=1e-12, atol=1e-12), key
        own = first[key][3:] if key == "W" and name.startswith("in parts") else first[key]
        assert torch.equal(own, second[key]), key


@pytest.mark.parametrize("how", RUNS)
def test_stopped_by_one_process_and_resumed_by_another_number(folder: Path, tmp_path: Path, how: str) -> None:
    whole = fedalc.train(data=DATA, folder=tmp_path / "whole", **RUNS[how])
    stopped = folder / f"{how} stopped by two"
    assert len(history.read(stopped / "history.jsonl")) == 1  # round 2: it stopped after the third
    by_one = fedalc.train(data=DATA, folder=stopped, resume=True, **RUNS[how])
    by_two = fedalc.load_run(folder / f"{how} stopped by one")
    assert (whole.result["processes"], by_two.result["processes"]) == (1, 2)
    for run in (by_one, by_two):
        assert run.metrics == pytest.approx(whole.metrics, rel=1e-12)
        assert torch.allclose(run.model.model.W, whole.model.model.W, rtol=1e-12, atol=1e-12)
        ours, unbroken = (history.read(r.folder / "history.jsonl") for r in (run, whole) if r.folder)
        assert [r["loss"] for r in ours] == pytest.approx([r["loss"] for r in unbroken], rel=1e-12)


def test_processes_that_differ_or_are_gone_are_told(folder: Path) -> None:
    said = json.loads((folder / "said").read_text())
    assert said["differ"] == (
        "the processes' copies of the model differ after round 7: use the same processors, torch version, settings and "
        "OMP_NUM_THREADS on all machines, then continue with --resume"
    )
    assert said["alone"].startswith("process 0 of 2: another process has ended or does not answer (")
    assert said["alone"].endswith(
        "Look for its error message; if it needs longer, set FEDALC_TIMEOUT_MINUTES. "
        "A run that has begun continues with --resume"
    )


def test_the_command_under_torchrun(tmp_path: Path) -> None:
    options = ["--preset", "demo", "--encoder", "mlp", "--rounds", "6", "--set", "dtype=float64"]
    options += ["--set", "encoder.hidden=[16]", "--set", "selection.refit=false", "--out", str(tmp_path)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    two = subprocess.run(
        [*torchrun, "-m", "fedalc", "train", *options, "--name", "two"],
        env=os.environ | {"OMP_NUM_THREADS": "1", distributed.MINUTES: "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("select 6/6") == 1  # by the first process alone
    settings = fedalc.experiment(file=tmp_path / "two" / "config.toml", overrides=["name=one"])
    one = fedalc.train(settings, folder=tmp_path / "one")
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    assert result["processes"] == 2
    sets = {"micro-F1", "macro-F1"}  # need thresholds, and several processes fit none
    assert result["metrics"] == pytest.approx({k: v for k, v in one.metrics.items() if k not in sets}, rel=1e-12)
    assert {path.name for path in (tmp_path / "two").iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"engine": "clients"}, "engine: clients runs in one process: start it without torchrun, or use fused"),
        ({"method": "ovr"}, "method: ovr runs in one process: start it without torchrun"),
        ({"device": "cuda:1"}, "device: cuda:1 is a single device; with cuda each process uses its own"),
    ],
)
def test_what_has_no_shares_is_refused(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], text: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=text):
        fedalc.train(data=DATA, **changes)


def test_other_commands_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from fedalc.cli.app import app

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    error = CliRunner().invoke(app, ["compare", "--preset", "demo"]).exception
    assert str(error) == "compare runs in one process: start it without torchrun, which is for `fedalc train`"
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(FedalcError, match="torchrun sets these to numbers, but one is not a number"):
        distributed.started_as()


def test_shares_are_everything_once() -> None:
    places = [distributed.Process(rank, 3) for rank in range(3)]
    assert [distributed.own_range(7, place) for place in places] == [slice(0, 2), slice(2, 4), slice(4, 7)]
    assert [distributed.own_range(1, place) for place in places] == [slice(0, 0), slice(0, 0), slice(0, 1)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "fedmlh"}, "method fedmlh"),
        ({"server": {"participation": 1.0}}, "server.participation = 1, a round of all clients"),
        ({"embeddings": {"start": "by-frequency"}}, 'embeddings.start = "by-frequency"'),
        ({"regularizer": {"form": "full"}}, 'regularizer.form = "full"'),
        ({"regularizer": {"search": "index"}}, 'regularizer.search = "index"'),
        ({"privacy": {"mechanism": "gradients"}, "regularizer": {"weighting": "sigma"}}, 'mechanism = "gradients"'),
    ],
)
def test_parts_are_refused_where_all_rows_are_needed(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(distributed, "_here", distributed.Process(0, 2))
    with pytest.raises(ConfigError, match=f"shard_rows: every process needs all class embeddings: .*{reason}"):
        shard_of(settings({"server": {"participation": 0.5}, "shard_rows": "on", **changes}), 7)


def test_large_class_embeddings_are_put_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = settings({"server": {"participation": 0.5}, "regularizer": {"candidates": 1000}})
    rows = 2 * 10**9 // (6 * 8)  # of six numbers of eight bytes
    assert shard_of(sampled, rows + 1) is None  # one process has them all
    monkeypatch.setattr(distributed, "_here", distributed.Process(1, 3))
    assert shard_of(sampled, rows) is None
    assert shard_of(sampled, rows + 1) == Shard(rows + 1)
    assert shard_of(sampled.model_copy(update={"shard_rows": "off"}), rows + 1) is None
    assert shard_of(settings({}), rows + 1) is None  # a round of all clients needs them all
    assert shard_of(settings({"server": {"participation": 0.5}, "shard_rows": "on"}), 7) == Shard(7)


def test_neighbours_that_an_index_has_to_find_keep_all_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With six numbers per row and two processes, 8e12 operations compare 816,496 rows with each other."""
    monkeypatch.setattr(distributed, "_here", distributed.Process(0, 2))
    monkeypatch.setattr("fedalc.models.sharding.LARGE", 1000)
    sampled = settings({"server": {"participation": 0.5}})
    assert shard_of(sampled, 816_000) == Shard(816_000)
    assert shard_of(sampled, 817_000) is None
    with pytest.raises(
        ConfigError, match="shard_rows: every process needs all class embeddings: with this many classes"
    ):
        shard_of(sampled.model_copy(update={"shard_rows": "on"}), 817_000)
    few = {"server": {"participation": 0.001}, "regularizer": {"rows": "participants"}, "shard_rows": "on"}
    assert shard_of(settings(few), 817_000) == Shard(817_000)
