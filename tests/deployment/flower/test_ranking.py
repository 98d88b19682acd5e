"""P@k and nDCG@k from positive-only parties are those of one place that has all held-out records and all labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from scipy.sparse import csr_matrix, hstack, vstack

from fedalc.config.schema import SelectionSettings
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.party import held_out
from fedalc.deployment.flower.ranking import RANK, BestAtParties, PartyHits, read_hits
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.wire import BadMessage, pack
from fedalc.errors import ConfigError
from fedalc.evaluation.evaluate import evaluate
from fedalc.labels.collection.hashing import Hasher, canonical_sparse
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import byte_order
from fedalc.models.encoders import scale_rows
from fedalc.models.trained import TrainedModel
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, NAMES, OWNED, RUN_ID, SETTINGS, Nodes, asked, in_round, notes, run
from tests.deployment.flower.problem import write_parties
from tests.deployment.flower.test_resume import Crash, assert_bit_for_bit, without_time
from tests.problems import random_split

FIGURES = [f"{name}@{k}" for name in ("P", "nDCG") for k in (1, 3, 5)]
SHARE = 0.3
HELD_OUT = {"held-out-share": SHARE}
EVERY = {"selection.every": 1, "selection.metric": "P@1", "selection.patience": "none"}
FIXED = [name for name in METHODS if not METHODS[name].trains_rows]
TRAINED = [name for name in METHODS if METHODS[name].trains_rows]


def settings_for(method: str) -> dict[str, Any]:
    linear = {"fedalc-exact", "fedalc-oneshot"}
    return (LINEAR if method in linear else SETTINGS) | EVERY | {"dtype": "float64"}


def hasher(parties: Nodes) -> Hasher:
    return Hasher("hmac-sha256", Key.read(parties[7]["key"]), run=RUN_ID)


def union(train: Split, parties: Nodes) -> Split:
    """Return the held-out records of all parties in one place, with all of their labels, in the order of W's rows."""
    out = held_out(hasher(parties).instances(canonical_sparse(train.features)), SHARE)
    order = byte_order(hasher(parties).labels(NAMES))
    rows = np.flatnonzero(out & (train.labels.getnnz(axis=1) > 0))
    return Split(train.features[rows], train.labels[rows][:, order])


def centralised(found: TrainedModel, split: Split) -> dict[str, float]:
    scaled = Split(scale_rows(split.features, found.encoder.features), split.labels)
    metrics = evaluate(found.model, scaled, found.held)
    return {name: metrics[name] for name in FIGURES}


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return json.loads((folder / "result.json").read_text()), history


def at_parties(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix("party "): value for name, value in metrics.items()}


@pytest.mark.parametrize("method", [*FIXED, *TRAINED])
def test_the_figures_are_those_of_one_place(tmp_path: Path, train: Split, parties: Nodes, method: str) -> None:
    ranks = {"rank-held-out": "on"} if method in TRAINED else {}
    found = run(LocalGrid(parties), tmp_path / "run", asked(method, settings_for(method), **HELD_OUT, **ranks))
    split = union(train, parties)
    assert len(split) > 10 and (split.labels.getnnz(axis=1) > 1).sum() > 3
    result, history = read(tmp_path / "run")
    wanted = centralised(found, split)
    assert at_parties(result["metrics"]) == pytest.approx(wanted, rel=1e-12)
    assert result["selection"]["metrics"] == {f"validation {n}": result["metrics"][f"party {n}"] for n in FIGURES}
    assert any(wanted.values()), "nothing was hit"
    assert result["rounds"] == result["selection"]["round"] <= len(history)


def test_the_best_round_is_kept(tmp_path: Path, train: Split, parties: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate so large that later rounds are worse."""
    settings = settings_for("fedavg-fixed") | {"server.learning_rate": 3.0, "server.optimizer": "sgd"}
    grid = asked("fedavg-fixed", settings, **HELD_OUT, **{"num-server-rounds": 6})
    found = run(LocalGrid(parties), tmp_path / "run", grid)
    result, history = read(tmp_path / "run")
    values = [record["metrics"]["validation P@1"] for record in history]
    assert len(values) == 6 and max(values) > values[-1], "the last round would do"
    best = int(np.argmax(values)) + 1
    assert (result["rounds"], result["selection"]["round"], result["rounds_run"]) == (best, best, 6)
    assert centralised(found, union(train, parties))["P@1"] == pytest.approx(values[best - 1])
    assert f"best so far is round {best}, by P@1" in capsys.readouterr().out
    last = run(LocalGrid(parties), tmp_path / "last", grid | {"set": grid["set"] + '\nselection.keep="last"'})
    result, _ = read(tmp_path / "last")
    assert result["rounds"] == 6 and result["selection"] is None
    assert result["metrics"]["party P@1"] == pytest.approx(values[-1])
    assert centralised(last, union(train, parties))["P@1"] == pytest.approx(values[-1])


def test_patience_ends_the_run(tmp_path: Path, parties: Nodes) -> None:
    settings = settings_for("fedavg-fixed") | {"server.learning_rate": 0.0, "server.optimizer": "sgd"}
    settings |= {"selection.patience": 2}
    run(LocalGrid(parties), tmp_path / "run", asked("fedavg-fixed", settings, **HELD_OUT, **{"num-server-rounds": 9}))
    result, _ = read(tmp_path / "run")
    assert (result["rounds"], result["rounds_run"]) == (1, 3)
