"""Evaluation: at the parties on their held-out data, or at the server on its own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Split
from fedalc.data.federation import Federation
from fedalc.deployment.flower.held_out import read_held_out, server_data
from fedalc.deployment.flower.measuring import read_metrics
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.wire import BadMessage
from fedalc.deployment.local import write_xmlc
from fedalc.errors import DataError
from fedalc.labels.collection.hashing import Hasher, canonical_sparse
from fedalc.labels.collection.keys import Key
from fedalc.models.encoders import SparseRows, scale_rows
from fedalc.models.trained import TrainedModel
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    NAMES,
    RUN_ID,
    SETTINGS,
    Nodes,
    asked,
    in_round,
    kept_out,
    notes,
    places,
    run,
)
from tests.problems import random_split

SHARE = {"held-out-share": 0.3}


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())["metrics"]


def by_hand(found: TrainedModel, train: Split, parties: Nodes, owned: list[int]) -> tuple[float, float, int]:
    """Return (score, hinge loss, pairs) over all held-out pairs of these labels, computed without Flower."""
    out, model = kept_out(parties[7]["key"], train.features, 0.3), found.model
    score, loss, pairs = 0.0, 0.0, 0
    for label in owned:
        rows = np.flatnonzero(out & (train.labels[:, [label]].toarray().ravel() > 0))
        if not len(rows):
            continue
        x = scale_rows(train.features[rows], found.encoder.features)
        with torch.no_grad():
            g = model.encoder(SparseRows(x, rows, torch.float32, "cpu"))
        s = g @ model.W[int(places(parties[7]["key"], [label])[0])]
        score, pairs = score + s.sum().item(), pairs + len(rows)
        loss += (0.9 - s).clamp(min=0).square().sum().item()
    return score, loss, pairs


def test_at_parties_every_held_out_pair_counts_the_same(tmp_path: Path, train: Split, parties: Nodes) -> None:
    settings = SETTINGS | {"encoder.dropout": 0.0}
    found = run(LocalGrid(parties), tmp_path / "run", asked("fedavg", settings, **SHARE))
    score, loss, pairs = by_hand(found, train, parties, list(range(7)))
    assert pairs > 10
    assert result(tmp_path / "run") == pytest.approx(
        {"party score": score / pairs, "party loss": loss / pairs}, rel=1e-5
    )


@pytest.mark.long
def test_a_party_that_says_it_has_more_weighs_no_more(tmp_path: Path, train: Split, parties: Nodes) -> None:
    grid = LocalGrid(parties)

    def boast(message: Message, reply: Message) -> Message:
        said = MetricRecord({**reply.content["metrics"], "num-examples": 10**9})
        return Message(RecordDict({"metrics": said}), reply_to=message)

    grid.tampering[7] = in_round(3, boast, "evaluate")
    run(grid, tmp_path / "boast", asked("fedavg", SETTINGS, **SHARE))
    run(LocalGrid(parties), tmp_path / "run", asked("fedavg", SETTINGS, **SHARE))
    assert result(tmp_path / "boast") == result(tmp_path / "run")


@pytest.mark.few(1)
@pytest.mark.parametrize("bad", [{"score": float("nan"), "loss": 0.1}, {"score": 0.1}, {"score": 1, "loss": 1}, None])
def test_metrics_that_are_none_are_left_out(
    tmp_path: Path, train: Split, parties: Nodes, bad: dict[str, Any] | None
) -> None:
    grid = LocalGrid(parties)

    def answer(message: Message, reply: Message) -> Message:
        return Message(RecordDict({} if bad is None else {"metrics": MetricRecord(bad)}), reply_to=message)

    grid.tampering[7] = in_round(3, answer, "evaluate")
    found = run(grid, tmp_path / "run", asked("fedavg", SETTINGS, **SHARE))
    score, loss, pairs = by_hand(found, train, parties, [0, 4, 5, 6])
    wanted = {"party score": score / pairs, "party loss": loss / pairs}
    assert result(tmp_path / "run") == pytest.approx(wanted, rel=1e-5)
    why = "there is no metrics" if bad is None else "no metrics, or none that are finite numbers"
    assert notes(tmp_path / "run") == [(3, "party 7", why)]


@pytest.mark.parametrize(
    ("metrics", "more", "why"),
    [
        (
            {"num-examples": 0},
            {"extra": ConfigRecord({"x": b"z" * 1000})},
            "has records that were not requested: extra",
        ),
        ({"num-examples": 0, "junk": [1.0] * 1000}, {}, "metrics has values that were not requested: junk"),
        ({"num-examples": 0, "score": 0.5}, {}, "metrics has values that were not requested: score"),
        ({"num-examples": 0}, {}, None),
    ],
)
def test_who_has_nothing_to_measure_brings_nothing_else(
    metrics: dict[str, Any], more: dict[str, Any], why: str | None
) -> None:
    content = RecordDict({"metrics": MetricRecord(metrics), **more})
    if why is None:
        assert read_metrics(("score", "loss"), content) == {}
    else:
        with pytest.raises(BadMessage, match=why):
            read_metrics(("score", "loss"), content)


def test_the_last_model_is_measured_once(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    run(grid, tmp_path / "run", asked("fedavg", SETTINGS, **SHARE))
    assert sum(kind == "evaluate" for _, kind, _ in grid.asked) == 4


def test_what_is_held_out_is_never_trained_on_nor_collected(
    tmp_path: Path, train: Split, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parties with an instance hold it out: they decide by its digest."""
    key = Key.read(parties[7]["key"])
    digests = Hasher("hmac-sha256", key, run=RUN_ID).instances(canonical_sparse(train.features))
    secret = [
        key.for_run(RUN_ID).mac("sha256", b"fedalc/1/instance/draw/1.0\0" + digest.tobytes())[:8] for digest in digests
    ]
    keys = np.array([int.from_bytes(start, "little", signed=True) for start in secret])
    out = kept_out(parties[7]["key"], train.features, 0.3)
    shared = np.asarray(train.labels.sum(axis=1)).ravel() > 1
    assert (out & shared).any() and (~out & shared).any()
    used: set[int] = set()
    keys_of = Federation.keys_of

    def watched(self: Federation, instances: np.ndarray) -> np.ndarray:
        used.update(keys_of(self, instances).tolist())
        return keys_of(self, instances)

    monkeypatch.setattr(Federation, "keys_of", watched)
    grid = LocalGrid(parties)
    grid.keeps = True
    run(grid, tmp_path / "run", asked("fedalc", SETTINGS, **SHARE))
    assert used == set(keys[~out].tolist())
    collected = b"".join(r.content["messages"]["digests"].data for r in grid.replies if "messages" in r.content)
    assert all(digests[row].tobytes() not in collected for row in np.flatnonzero(out))
    assert all(digests[row].tobytes() in collected for row in np.flatnonzero(~out))
    assert not any(start in collected for start in secret)


def write_held_out(folder: Path, split: Split, names: list[str]) -> Path:
    folder.mkdir()
    write_xmlc(folder / "held.txt", split.features, split.labels)
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    return folder / "held.txt"


@pytest.mark.parametrize("known_by", ["name", "pseudonym"])
def test_at_the_server(tmp_path: Path, parties: Nodes, known_by: str) -> None:
    """With columns in another order and a label that no party has; the parties then train on all their data."""
    test = random_split(30, 20, 7, seed=5)
    hasher = Hasher("hmac-sha256", Key.read(parties[7]["key"]), run=RUN_ID)
    names = [p.tobytes().hex() for p in hasher.labels(NAMES)] if known_by == "pseudonym" else NAMES
    order = [3, 0, 6, 1, 5, 2, 4]
    path = write_held_out(tmp_path / "held", Split(test.features, test.labels[:, order]), [names[u] for u in order])
    nodes = {node: {**config, "share-names": known_by == "name"} for node, config in parties.items()}
    grid = LocalGrid(nodes)
    found = run(grid, tmp_path / "run", asked("fedavg", SETTINGS, **SHARE, **{"held-out": str(path)}))
    assert not [1 for _, kind, _ in grid.asked if kind == "evaluate"]
    labelled = np.flatnonzero(test.labels.getnnz(axis=1))
    place = {int(places(parties[7]["key"], [u])[0]): u for u in range(7)}
    best, _ = found.predict(test.features[labelled], 1)
    hits = [test.labels[row, place[int(top)]] for row, (top,) in zip(labelled, best, strict=True)]
    assert result(tmp_path / "run")["P@1"] == pytest.approx(100 * np.mean(hits))
    assert found.label_names[0] == (NAMES[place[0]] if known_by == "name" else names[place[0]])


def roster(names: tuple[str, ...]) -> Roster:
    pseudonyms = np.arange(16 * len(names), dtype=np.uint8).reshape(len(names), 16)
    ones = np.ones(len(names), dtype=np.int64)
    labels, owner = np.arange(len(names)), np.zeros(len(names), dtype=np.int64)
    return Roster(("a", "b"), pseudonyms, labels, owner, ones, ones, 20, names)


def test_labels_unknown_to_the_parties(tmp_path: Path) -> None:
    split = random_split(10, 20, 3, seed=1, per_instance=2)
    path = write_held_out(tmp_path / "held", split, ["x", "y", "z"])
    data = server_data(roster(("z", "w")), read_held_out(str(path), Experiment()), print)
    had = np.flatnonzero(split.labels[:, [2]].toarray().ravel())
    assert len(data.test) == len(had) < 10, "nothing can be measured of an instance with unknown labels only"
    np.testing.assert_array_equal(data.test.labels.toarray(), [[1, 0]] * len(had))
    with pytest.raises(DataError, match="none of its labels"):
        server_data(roster(("u", "v")), read_held_out(str(path), Experiment()), print)


def test_a_party_cannot_take_anothers_label_by_its_name(tmp_path: Path) -> None:
    """Neither by using the same name, nor by using another's pseudonym as the name."""
    split = random_split(10, 20, 2, seed=1)
    pseudonym = bytes(range(16)).hex()  # of label 0
    path = write_held_out(tmp_path / "held", split, ["same", pseudonym])
    data = server_data(roster(("same", "same", pseudonym)), read_held_out(str(path), Experiment()), print)
    assert data.test.labels.sum(axis=0).tolist() == [[split.labels[:, 1].sum(), 0, 0]]


def test_another_number_of_features(tmp_path: Path) -> None:
    path = write_held_out(tmp_path / "held", random_split(5, 19, 1, seed=1), ["x"])
    with pytest.raises(DataError, match="19 features, the parties' data has 20"):
        server_data(roster(("x",)), read_held_out(str(path), Experiment()), print)
