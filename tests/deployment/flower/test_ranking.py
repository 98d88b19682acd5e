"""P@k and nDCG@k from positive-only parties are those of one place that has all held-out records and all labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from scipy.sparse import csr_matrix, hstack, vstack

from fedalc.config.schema import SelectionSettings
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.ranking import RANK, BestAtParties, PartyHits, read_hits
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.wire import BadMessage, pack
from fedalc.errors import ConfigError
from fedalc.evaluation.evaluate import evaluate
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import byte_order
from fedalc.models.encoders import scale_rows
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    LINEAR,
    NAMES,
    OWNED,
    RUN_ID,
    SETTINGS,
    Nodes,
    asked,
    in_round,
    kept_out,
    notes,
    run,
    write_parties,
)
from tests.deployment.flower.test_equality import DESIGNS
from tests.deployment.flower.test_resume import Crash, assert_bit_for_bit, without_time
from tests.problems import random_split

FIGURES = [f"{name}@{k}" for name in ("P", "nDCG") for k in (1, 3, 5)]
SHARE = 0.3
HELD_OUT = {"held-out-share": SHARE}
EVERY = {"selection.every": 1, "selection.keep": "best", "selection.metric": "P@1", "selection.patience": "none"}
TRAINED = [name for name in METHODS if METHODS[name].trains_rows]
SHOWN = [name for name in METHODS if not (METHODS[name].trains_rows or METHODS[name].secret_rows)]


def settings_for(method: str) -> dict[str, Any]:
    solves = METHODS[method].one_round or method == "fedalc-exact"
    axes = {"encoder.dim": len(NAMES)} if METHODS[method].axis_per_label else {}
    # Two labels in the same bucket of every table tie, and rounding decides which comes first.
    no_ties = {"hashing.buckets": 97} if method == "fedmlh" else {}
    return (LINEAR if solves else SETTINGS) | EVERY | {"dtype": "float64"} | axes | no_ties


def hasher(parties: Nodes) -> Hasher:
    return Hasher("hmac-sha256", Key.read(parties[7]["key"]), run=RUN_ID)


def union(train: Split, parties: Nodes) -> Split:
    """Return the held-out records of all parties in one place, with all of their labels, in the order of W's rows."""
    out = kept_out(parties[7]["key"], train.features, SHARE)
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


@pytest.mark.few(2)
@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].encoders])
def test_the_figures_are_those_of_one_place(tmp_path: Path, train: Split, parties: Nodes, method: str) -> None:
    ranks = {} if method in SHOWN else {"rank-held-out": "on"}
    config = asked(method, settings_for(method), **HELD_OUT, **ranks, **{"num-server-rounds": 2})
    found = run(LocalGrid(parties), tmp_path / "run", config)
    split = union(train, parties)
    assert len(split) > 10 and (split.labels.getnnz(axis=1) > 1).sum() > 3
    result, history = read(tmp_path / "run")
    wanted = centralised(found, split)
    if METHODS[method].axis_per_label:  # these ignore set sizes, so parties are not told any
        wanted = {name: wanted[name] for name in ("P@1", "P@3", "P@5")}
    assert at_parties(result["metrics"]) == pytest.approx(wanted, rel=1e-12)
    assert result["selection"]["metrics"] == {f"validation {n}": result["metrics"][f"party {n}"] for n in wanted}
    assert any(wanted.values()), "nothing was hit"
    assert result["rounds"] == result["selection"]["round"] <= len(history)


@pytest.mark.few(2)
@pytest.mark.parametrize("design", ["constant", "random"])
@pytest.mark.parametrize("method", ["fedavg-fixed", "fedalc-oneshot"])
def test_with_more_columns(tmp_path: Path, train: Split, parties: Nodes, method: str, design: str) -> None:
    settings = LINEAR | EVERY | DESIGNS[design] | {"dtype": "float64"}
    settings |= {} if method == "fedalc-oneshot" else {"client.loss": "hinge"}
    found = run(LocalGrid(parties), tmp_path / "run", asked(method, settings, **HELD_OUT, **{"num-server-rounds": 2}))
    wanted = centralised(found, union(train, parties))
    assert at_parties(read(tmp_path / "run")[0]["metrics"]) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.long
def test_the_best_round_is_kept(
    tmp_path: Path, train: Split, parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate so large that later rounds are worse."""
    settings = settings_for("fedavg-fixed") | {"server.learning_rate": 1.0, "server.optimizer": "sgd"}
    settings |= {"selection.metric": "nDCG@3"}
    grid = asked("fedavg-fixed", settings, **HELD_OUT, **{"num-server-rounds": 6})
    found = run(LocalGrid(parties), tmp_path / "run", grid)
    result, history = read(tmp_path / "run")
    values = [record["metrics"]["validation nDCG@3"] for record in history]
    assert len(values) == 6 and max(values) > values[-1], "the last round would do"
    best = int(np.argmax(values)) + 1
    assert (result["rounds"], result["selection"]["round"], result["rounds_run"]) == (best, best, 6)
    assert centralised(found, union(train, parties))["nDCG@3"] == pytest.approx(values[best - 1])
    assert f"best so far is round {best}, by nDCG@3" in capsys.readouterr().out
    last = run(LocalGrid(parties), tmp_path / "last", grid | {"set": grid["set"] + '\nselection.keep="last"'})
    result, _ = read(tmp_path / "last")
    assert result["rounds"] == 6 and result["selection"] is None
    assert result["metrics"]["party nDCG@3"] == pytest.approx(values[-1])
    assert centralised(last, union(train, parties))["nDCG@3"] == pytest.approx(values[-1])


def test_patience_ends_the_run(tmp_path: Path, parties: Nodes) -> None:
    settings = settings_for("fedavg-fixed") | {"server.learning_rate": 1e-30, "server.optimizer": "sgd"}
    settings |= {"selection.patience": 2}
    run(LocalGrid(parties), tmp_path / "run", asked("fedavg-fixed", settings, **HELD_OUT, **{"num-server-rounds": 9}))
    result, _ = read(tmp_path / "run")
    assert (result["rounds"], result["rounds_run"]) == (1, 3)


def odd_split(parties: Nodes) -> tuple[Split, Split]:
    """Return (what parties have, each record once): records in two rows, records whose features are in no other, so
    that all labels tie, and a label that only held-out records have."""
    base, other = random_split(60, 20, 7, seed=3, per_instance=3), random_split(60, 10, 7, seed=4)
    features = vstack([hstack([base.features, csr_matrix((60, 10))]), hstack([csr_matrix((60, 20)), other.features])])
    features = csr_matrix(features, dtype=np.float32)
    labels = vstack([base.labels, other.labels]).toarray()
    out = kept_out(parties[7]["key"], features, SHARE)
    labels[~out, 3] = 0
    known = np.flatnonzero((out | (np.arange(120) < 60)) & (labels.sum(1) > 0) & (features.getnnz(axis=1) > 0))
    once = Split(features[known], csr_matrix(labels[known]))
    again = np.concatenate([np.arange(len(once)), np.arange(0, len(once), 4)])
    return once.rows(again), once


@pytest.mark.parametrize("method", ["fedavg-fixed", "fedalc-exact"])
def test_ties_repeated_records_and_a_label_without_client(tmp_path: Path, parties: Nodes, method: str) -> None:
    """fedalc-exact collects label sets, and so leaves out the label that has no training record."""
    split, once = odd_split(parties)
    nodes = write_parties(tmp_path, split)
    settings = LINEAR | EVERY | {"dtype": "float64", "client.loss": "square" if "exact" in method else "hinge"}
    settings |= {"selection.keep": "last"}  # after the first of conjugate gradients all labels tie for all records
    found = run(LocalGrid(nodes), tmp_path / "run", asked(method, settings, **HELD_OUT, **{"num-server-rounds": 2}))
    joined = union(once, nodes)
    without = byte_order(hasher(nodes).labels(NAMES)) == 3
    if method == "fedalc-exact":
        joined = Split(joined.features, joined.labels[:, np.flatnonzero(~without)])
        joined = joined.rows(np.flatnonzero(joined.labels.getnnz(axis=1)))
        assert found.held.all() and len(found.held) == 6
    else:
        np.testing.assert_array_equal(found.held, ~without)
    scores = scale_rows(joined.features, found.encoder.features) @ found.model.theta[0].detach().numpy()
    tied = (scores == 0).all(axis=1).sum()
    assert tied > 5 and len(joined) > tied + 5
    assert at_parties(read(tmp_path / "run")[0]["metrics"]) == pytest.approx(centralised(found, joined), rel=1e-12)


# --- what is sent ---


def sent(grid: LocalGrid, kind: str) -> list[RecordDict]:
    return [message.content for message in grid.pushed if message.metadata.message_type == kind]


def recorded(parties: Nodes, folder: Path, config: dict[str, Any]) -> LocalGrid:
    grid = LocalGrid(parties)
    grid.keeps = True
    run(grid, folder, config)
    return grid


@pytest.mark.long
def test_rows_that_are_axes_are_sent_as_their_numbers(tmp_path: Path, parties: Nodes) -> None:
    settings = settings_for("fedalc-exact") | {"embeddings.start": "by-frequency"}
    grid = recorded(parties, tmp_path / "axes", asked("fedalc-exact", settings, **HELD_OUT))
    assert {tuple(content["all-rows"]) for content in sent(grid, RANK)} == {("columns",)}
    assert sent(grid, RANK)[0]["all-rows"]["columns"].shape == (7,)
    settings |= {"embeddings.start": "random"}
    grid = recorded(parties, tmp_path / "rows", asked("fedalc-exact", settings, **HELD_OUT))
    assert {content["all-rows"]["rows"].shape for content in sent(grid, RANK)} == {(7, 8)}


@pytest.mark.few(1)
@pytest.mark.parametrize("method", [*TRAINED, "feduv"])
def test_rows_that_parties_train_or_that_are_secret_are_not_shown_to_others_unless_asked(
    tmp_path: Path, parties: Nodes, method: str
) -> None:
    grid = recorded(parties, tmp_path / "run", asked(method, settings_for(method), **HELD_OUT))
    assert not sent(grid, RANK) and not sent(grid, "query.held_out") and sent(grid, "evaluate")
    assert not [message for message in grid.pushed if "all-rows" in message.content]
    result, history = read(tmp_path / "run")
    assert set(result["metrics"]) == {"party score", "party loss"} and result["selection"] is None
    assert result["rounds"] == len(history) == 3 and {record["phase"] for record in history} == {"fit"}


@pytest.mark.long
def test_set_sizes_are_told_only_if_the_settings_say_so(
    tmp_path: Path, train: Split, parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for("fedavg-fixed") | {"selection.metric": "nDCG@3", "client.set_size": "expected"}
    grid = recorded(parties, tmp_path / "run", asked("fedavg-fixed", settings, **HELD_OUT))
    assert sent(grid, RANK) and not any("sizes" in content for content in sent(grid, RANK))
    assert "parties do not know set sizes (client.set_size), so P@3 stands for nDCG@3" in capsys.readouterr().out
    result, history = read(tmp_path / "run")
    assert list(result["metrics"]) == ["party P@1", "party P@3", "party P@5"]
    assert result["selection"]["value"] == max(record["metrics"]["validation P@3"] for record in history)
    grid = recorded(parties, tmp_path / "exact", asked("fedavg-fixed", settings_for("fedavg-fixed"), **HELD_OUT))
    sizes = np.concatenate([np.frombuffer(content["sizes"]["sizes"].data, "u1") for content in sent(grid, RANK)])
    assert sizes.max() <= 5


@pytest.mark.long
def test_a_metric_that_parties_cannot_measure(
    tmp_path: Path, parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for("fedavg-fixed") | {"selection.metric": "mAP"}
    run(LocalGrid(parties), tmp_path / "run", asked("fedavg-fixed", settings, **HELD_OUT))
    assert "parties cannot measure selection.metric = mAP: the last round is kept" in capsys.readouterr().out
    result, _ = read(tmp_path / "run")
    assert result["rounds"] == 3 and result["selection"] is None and "party P@1" in result["metrics"]


PRIVATE = 'privacy.mechanism="counts"\nprivacy.epsilon=1.0\n'


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ({"method": "fedavg-fixed"}, True),
        ({"method": "fedavg-fixed", "rank-held-out": "off"}, False),
        ({"method": "fedavg-fixed", "held-out-share": 0.0}, False),
        ({"method": "fedavg-fixed", "held-out": "somewhere"}, False),
        ({"method": "fedalc"}, False),
        ({"method": "feduv"}, False),
        ({"method": "feduv", "rank-held-out": "on"}, True),
        ({"method": "fedalc", "rank-held-out": "on"}, True),
        ({"method": "fedalc-fixed", "set": PRIVATE}, False),
        ({"method": "fedavg-fixed", "rank-held-out": "on", "held-out-share": 0.0}, "no held-out records"),
        ({"method": "fedalc-fixed", "rank-held-out": "on", "set": PRIVATE}, "hits would show them"),
        ({"method": "fedalc", "rank-held-out": "maybe"}, "auto, on or off"),
    ],
)
def test_when_parties_rank(options: dict[str, Any], ranks: bool | str) -> None:
    if isinstance(ranks, str):
        with pytest.raises(ConfigError, match=ranks):
            read_run_config(options, 1)
        return
    deployment, settings = read_run_config(options, 1)
    assert deployment.ranks == ranks
    assert settings.selection.keep == ("best" if ranks else "last")


@pytest.mark.long
def test_the_ledger_counts_it_all(tmp_path: Path, parties: Nodes) -> None:
    large = {"encoder.embedding": 100, "encoder.hidden": [400], "encoder.dim": 20, "encoder.dropout": 0.0}
    grid = LocalGrid(parties)
    run(grid, tmp_path / "run", asked("fedavg-fixed", settings_for("fedavg-fixed") | large, **HELD_OUT))
    result, _ = read(tmp_path / "run")
    for ledger, wire in (("bytes_down", grid.bytes_down), ("bytes_up", grid.bytes_up)):
        assert result[ledger] <= sum(wire.values()) <= 1.05 * result[ledger]


# --- parties that are away, or lie ---


@pytest.mark.long
def test_who_is_away_is_left_out_of_the_figures(tmp_path: Path, train: Split, parties: Nodes) -> None:
    """Then they are those of the records and labels of the others; nDCG with the whole label sets."""
    grid = LocalGrid(parties)
    grid.tampering[7] = in_round(3, lambda message, reply: None, RANK)
    settings = settings_for("fedavg-fixed") | {"selection.keep": "last"}
    found = run(grid, tmp_path / "run", asked("fedavg-fixed", settings, **HELD_OUT, **{"round-timeout": 1.0}))
    split = union(train, parties)
    own = np.isin(byte_order(hasher(parties).labels(NAMES)), OWNED[7])
    labels = split.labels.toarray() * ~own
    rest = Split(split.features, csr_matrix(labels)).rows(np.flatnonzero(labels.any(axis=1)))
    assert len(rest) < len(split)
    wanted, figures = centralised(found, rest), at_parties(read(tmp_path / "run")[0]["metrics"])
    assert {k: figures[k] for k in ("P@1", "P@3", "P@5")} == pytest.approx(
        {k: wanted[k] for k in ("P@1", "P@3", "P@5")}
    )
    assert figures["nDCG@5"] < wanted["nDCG@5"]


def test_rounds_are_compared_by_the_parties_of_both() -> None:
    best = BestAtParties(SelectionSettings(metric="P@3"), "P@3")
    best.keeps_model = False

    def consider(t: int, **hits: int) -> int:
        of = {"abc".index(party): np.array([0.0, count, count]) for party, count in hits.items()}
        best.consider_hits(t, PartyHits(of, 10), {}, None)  # type: ignore[arg-type]
        return int(best.chosen["round"])  # type: ignore[index]

    assert consider(1, a=5, b=5) == 1
    assert consider(2, a=6) == 2, "one hit more at the party that answered both"
    assert consider(3, a=5, b=9) == 2
    assert consider(4, b=9, c=9) == 2, "nothing to compare"
    assert consider(5, a=7, c=1) == 5
    copy = BestAtParties(SelectionSettings(metric="P@3"), "P@3")
    copy.restore({}, json.loads(json.dumps(best.facts())), Model(torch.nn.Identity(), torch.eye(3)))  # type: ignore[arg-type]
    assert copy.chosen == best.chosen and copy.facts() == best.facts()


MOST = np.array([4.0, 6, 6, 4, 4, 4])


@pytest.mark.parametrize(
    ("counts", "gains", "why"),
    [
        ([5, 6, 6], [4, 4, 4], "5 hits for P@1, and its held-out records allow 0 to 4"),
        ([-1, 6, 6], [0, 4, 4], "-1 hits for P@1"),
        ([1, 7, 7], [1, 4, 4], "7 hits for P@3"),
        ([1, 2, 2], [1, 2, 9.5], "9.5 hits for nDCG@5"),
        ([3, 2, 2], [3, 2, 2], "fewer hits among more labels"),
        ([1, 2, 2], [2, 2, 2], "its gain of the top label is not its number of hits"),
        ([1, 2, 2], [1, float("nan"), 2], "not finite"),
        ([1, 2], [1, 2, 2], "should be int64 3"),
    ],
)
def test_hits_that_cannot_be(counts: list[int], gains: list[float], why: str) -> None:
    content = RecordDict({"hits": pack({"counts": np.array(counts), "gains": np.array(gains, dtype=np.float64)})})
    with pytest.raises(BadMessage, match=why):
        read_hits(MOST, True, content)


def test_answers_that_are_no_hits() -> None:
    good = pack({"counts": np.array([1, 2, 2]), "gains": np.array([1.0, 2, 2])})
    np.testing.assert_array_equal(read_hits(MOST, True, RecordDict({"hits": good})), [1, 2, 2, 1, 2, 2])
    nothing = MetricRecord({"num-examples": 0})
    assert len(read_hits(MOST, True, RecordDict({"metrics": nothing}))) == 0
    for content in ({"hits": good, "metrics": nothing}, {"metrics": MetricRecord({"num-examples": 3})}, {}):
        with pytest.raises(BadMessage):
            read_hits(MOST, True, RecordDict(content))
    with pytest.raises(BadMessage, match="should have counts"):
        read_hits(MOST, False, RecordDict({"hits": good}))


def test_a_liar_is_named_and_left_out(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)

    def boast(message: Message, reply: Message) -> Message:
        hits = pack({"counts": np.full(3, 10**6), "gains": np.full(3, 1e6)})
        return Message(RecordDict({"hits": hits}), reply_to=message)

    grid.tampering[7] = in_round(2, boast, RANK)
    run(grid, tmp_path / "run", asked("fedavg-fixed", settings_for("fedavg-fixed"), **HELD_OUT))
    ((t, party, why),) = notes(tmp_path / "run")
    assert (t, party) == (2, "party 7") and why.startswith("1e+06 hits for P@1, and its held-out records allow 0 to ")


# --- what a party refuses ---


@pytest.mark.long
def test_a_party_with_few_held_out_records_sends_no_hits(tmp_path: Path, parties: Nodes) -> None:
    nodes = {node: {**config, "fewest": 8} for node, config in parties.items()}
    census_folder = tmp_path / "run"
    grid = recorded(nodes, census_folder, asked("fedavg-fixed", settings_for("fedavg-fixed"), **HELD_OUT))
    census = Census.load(census_folder)
    assert census is not None and census.ranking is not None
    records = {p: len(census.ranking.told_sizes(p)) for p in census.ranking.parties}
    names = {f"party {node}": node for node in nodes}
    few = {names[census.roster.parties[p]] for p, count in records.items() if count < 8}
    assert few and len(few) < len(records)
    replies = [r for r in grid.replies if "hits" in r.content or "metrics" in r.content]
    assert {r.metadata.src_node_id for r in replies if "metrics" in r.content} == few
    result, _ = read(census_folder)
    assert 0 <= result["metrics"]["party P@5"] <= 100


def changed(content: RecordDict, **task: Any) -> RecordDict:
    return RecordDict({**content, "task": ConfigRecord({**content["task"], **task})})


@pytest.mark.long
def test_a_party_refuses_what_does_not_fit(tmp_path: Path, parties: Nodes) -> None:
    grid = recorded(parties, tmp_path / "run", asked("fedavg-fixed", settings_for("fedavg-fixed"), **HELD_OUT))
    question = next(m for m in grid.pushed if m.metadata.message_type == RANK and m.metadata.dst_node_id == 7)
    content = question.content
    sizes = np.frombuffer(content["sizes"]["sizes"].data, "u1")
    other = sizes.copy()
    other[np.argmin(other)] += 1
    labels, numbers = content["task"]["labels"], content["task"]["numbers"]
    cases: list[tuple[RecordDict, str]] = [
        (RecordDict({**content, "sizes": pack({"sizes": other})}), "other set sizes, than before"),
        (RecordDict({**content, "sizes": pack({"sizes": np.full_like(sizes, 6)})}), "more than 5"),
        (RecordDict({**content, "sizes": pack({"sizes": np.zeros_like(sizes)})}), "fewer labels than this party's own"),
        (RecordDict({**content, "sizes": pack({"sizes": sizes[1:]})}), "should be uint8"),
        (changed(content, labels=labels[:1], numbers=numbers[:1]), "should be uint8|rank other labels"),
        (changed(content, **{"label-count": 6}), "different ones of 6|should be"),
        (changed(content, **{"label-count": 10**8}), "labels = 1e+08 is outside"),
        (changed(content, numbers=[0, 0, 0]), "not different ones of 7"),
        (RecordDict({**content, "absent": pack({"labels": np.array([7], dtype=np.int32)})}), "not among the 7 labels"),
        (RecordDict({**content, "absent": pack({"labels": np.array([1], dtype=np.int32)})}), "rank other labels"),
        (RecordDict({**content, "all-rows": pack({"rows": np.zeros((7, 5))})}), "should be float64 7 × 6"),
        (RecordDict({**content, "all-rows": pack({"columns": np.full(7, 6, np.int32)})}), "axis outside 0 to 5"),
        (RecordDict({key: content[key] for key in content if key != "all-rows"}), "there are no all-rows"),
    ]
    for hostile, why in cases:
        reply = ask(grid, hostile)
        assert reply.has_error() and any(part in str(reply.error.reason) for part in why.split("|")), reply


def ask(grid: LocalGrid, content: RecordDict, **config: Any) -> Message:
    message = Message(content, 7, RANK)
    message.metadata.__dict__["_message_id"] = "1"
    return grid.app(message, Context(1, 7, {**grid.nodes[7], **config}, grid.states[7], {}))


def with_rows(content: RecordDict, scale: float) -> RecordDict:
    rows = np.frombuffer(content["all-rows"]["rows"].data).reshape(7, 6)
    return RecordDict({**content, "all-rows": pack({"rows": scale * rows})})


@pytest.mark.long
def test_a_party_ranks_with_so_many_models_of_a_run(tmp_path: Path, parties: Nodes) -> None:
    grid = recorded(parties, tmp_path / "run", asked("fedavg-fixed", settings_for("fedavg-fixed"), **HELD_OUT))
    content = next(m.content for m in grid.pushed if m.metadata.message_type == RANK and m.metadata.dst_node_id == 7)
    limit = {"allow": "rankings=4"}
    assert ask(grid, content, **limit).has_content(), "a question that it answered before"
    assert ask(grid, with_rows(content, 2.0), **limit).has_content(), "after three rounds the fourth"
    reply = ask(grid, with_rows(content, 3.0), **limit)
    assert reply.has_error() and "rankings = 5 is outside 1 to 4" in str(reply.error.reason)


@pytest.mark.long
def test_a_party_that_does_not_rank(tmp_path: Path, parties: Nodes) -> None:
    nodes = {**parties, 7: {**parties[7], "allow": "rankings=0"}}
    run(LocalGrid(nodes), tmp_path / "run", asked("fedavg-fixed", settings_for("fedavg-fixed"), **HELD_OUT))
    assert {(party, why.partition(": ")[2][:12]) for _, party, why in notes(tmp_path / "run")} == {
        ("party 7", "rankings = 1")
    }
    assert read(tmp_path / "run")[0]["selection"] is not None


@pytest.mark.long
def test_a_model_that_sees_one_record_only(tmp_path: Path, parties: Nodes, train: Split) -> None:
    """All other records have g(x) = 0: the hits would be those of the one."""
    settings = LINEAR | EVERY | {"dtype": "float64", "encoder.output": "raw"}
    grid = recorded(parties, tmp_path / "run", asked("fedalc-exact", settings, **HELD_OUT))
    content = next(m.content for m in grid.pushed if m.metadata.message_type == RANK and m.metadata.dst_node_id == 7)
    split = union(train, parties)
    own = np.isin(byte_order(hasher(parties).labels(NAMES)), OWNED[7])
    records = split.features[np.flatnonzero(split.labels[:, np.flatnonzero(own)].getnnz(axis=1))]
    rare = int(np.flatnonzero(records.getnnz(axis=0) == 1)[0])
    theta = np.zeros((20, 8))
    honest = ask(grid, content, fewest=8)
    assert "hits" in honest.content
    theta[rare] = 1.0
    assert "hits" not in ask(grid, RecordDict({**content, "theta": pack({"0": theta})}), fewest=8).content
    theta[:] = np.random.default_rng(1).normal(size=(20, 8))
    assert "hits" in ask(grid, RecordDict({**content, "theta": pack({"0": theta})}), fewest=8).content


# --- a run that stops ---


@pytest.mark.long
@pytest.mark.parametrize("where", ["in the evaluation", "before the next checkpoint"])
def test_a_stopped_run_compares_the_same_rounds(
    tmp_path: Path, parties: Nodes, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = asked("fedavg-fixed", settings_for("fedavg-fixed") | {"server.ema": 0.5}, **HELD_OUT)
    whole = run(LocalGrid(parties), tmp_path / "whole", config)
    grid, folder = LocalGrid(parties), tmp_path / "stopped"

    def crash(message: Message) -> None:
        kind, t = message.metadata.message_type, message.metadata.group_id
        if (kind, t) == (RANK, "2") and where == "in the evaluation":
            raise Crash

    grid.before_push = crash
    with monkeypatch.context() as patch, pytest.raises(Crash):
        if where != "in the evaluation":
            from fedalc.deployment.flower.training import PartyTraining

            written = PartyTraining._record

            def record(self: PartyTraining, *arguments: Any) -> None:
                written(self, *arguments)
                if self.federated.round_number == 2:
                    raise Crash

            patch.setattr(PartyTraining, "_record", record)
        run(grid, folder, config)
    again = {"resume": True, "wait": 1.0, "round-timeout": 5.0, "num-parties": 4}
    found = run(LocalGrid(parties), folder, again)
    assert_bit_for_bit(found.model, whole.model)
    assert without_time(folder) == without_time(tmp_path / "whole")
    results = [read(path)[0] for path in (folder, tmp_path / "whole")]
    assert results[0]["selection"] == results[1]["selection"] and results[0]["bytes_up"] == results[1]["bytes_up"]


def test_a_census_of_an_earlier_version(tmp_path: Path, parties: Nodes) -> None:
    """It does not say whether parties rank: they do not."""
    folder = tmp_path / "run"
    run(LocalGrid(parties), folder, asked("fedavg-fixed", settings_for("fedavg-fixed"), **HELD_OUT))
    census = Census.load(folder)
    assert census is not None and census.ranking is not None
    facts = json.loads((folder / "census" / "facts.json").read_text())
    del facts["ranking"]
    older = Census.restored(census.tensors(), facts)
    assert older.ranking is None
    again = Census.restored(census.tensors(), census.facts())
    assert again.ranking is not None and (again.ranking.own != census.ranking.own).nnz == 0
