"""Set sizes from masked counts in keyed buckets: the deployment is its simulation, and the server has no digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Context, Message

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.sum_messages import BUCKET_SUMS, MASKED
from fedalc.deployment.flower.table_seals import SEALED, SEALS
from fedalc.deployment.flower.wire import pack, unpack
from fedalc.deployment.twin import in_one_process
from fedalc.labels.collection.buckets import unpacked
from fedalc.labels.collection.hashing import Hasher, canonical_features
from fedalc.labels.collection.keys import Key
from fedalc.labels.correlations import LabelCounts
from fedalc.models.model import Model
from fedalc.runs import history
from fedalc.secure_sums import party as party_module
from fedalc.secure_sums import server as server_module
from fedalc.secure_sums.party import CHECKS
from tests.data.clinics import union, write_clinics
from tests.data.test_parties import load_dataset
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, NAMES, RUN_ID, SETTINGS, Nodes, asked, overrides, run

SUMS: dict[str, Any] = LINEAR | {"collection.by": "sums", "dtype": "float64", "client.label_power": 0.3}
SUMS |= {"secure_sums.bits": 44}  # numbers are small here: more bits after the point than the default
NEWTON = SUMS | {"client.loss": "logistic", "server.optimizer": "newton", "encoder.constant": 0.5}
NEWTON |= {"secure_sums.bits": 48}  # its steps make rounded sums differ more
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cg": ("fedalc-exact", SUMS | {"server.optimizer": "cg"}),
    "newton, an axis per label": ("fedalc-exact", NEWTON | {"embeddings.start": "by-frequency"}),
    "one round": ("fedalc-oneshot", SUMS),
    "collisions": ("fedalc-oneshot", SUMS | {"collection.records": 8, "collection.collisions": 0.5}),
    "the mean only": ("fedalc-oneshot", SUMS | {"client.set_size": "expected"}),
    "n only": ("fedalc-oneshot", SUMS | {"client.set_size": "ignored"}),
}
ON = {"secure-sums": "on"}


def twin(method: str, settings: dict[str, Any], train: Split, key: str) -> Any:
    """The simulation of the same parties. Records are told apart by content, as parties do."""
    alike = settings | {"collection.identity": "content"}
    chosen = experiment({"method": method, "engine": "clients", "rounds": 3}, overrides=overrides(alike))
    training = in_one_process(chosen, train, NAMES, key, RUN_ID)
    for _ in range(1 if training.method.one_round else 3):
        training.run_round()
    return training


def assert_equal(found: Model, wanted: Model) -> None:
    assert max(parameter.abs().max().item() for parameter in wanted.theta) > 1e-3, "nothing was learnt"
    for ours, theirs in zip([*found.theta, found.W], [*wanted.theta, wanted.W], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
def test_the_deployment_is_its_simulation(
    case: str, parties: Nodes, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, settings = CASES[case]
    monkeypatch.setattr("fedalc.labels.collection.buckets.FEWEST_BUCKETS", 1)  # some records share their buckets
    found = run(LocalGrid(parties), tmp_path / "run", asked(method, settings, **ON))
    simulated = twin(method, settings, train, str(parties[7]["key"]))
    assert_equal(found.model, simulated.averaged_model())
    census = Census.load(tmp_path / "run")
    assert census is not None and census.knowledge is not None and isinstance(census.knowledge.labels, LabelCounts)
    known = simulated.knowledge.labels
    np.testing.assert_array_equal(census.knowledge.labels.counts, known.counts)
    assert census.knowledge.labels.mean_set_size == known.mean_set_size
    assert not (tmp_path / "run" / "parties.jsonl").exists()  # nobody was left out or named


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["cg", "one round"])
def test_training_by_sums_is_training_by_the_join_bit_by_bit(case: str, parties: Nodes, tmp_path: Path) -> None:
    method, settings = CASES[case]
    models = []
    for by in ("sums", "join"):
        config = asked(method, settings | {"collection.by": by}, **ON, **{"num-server-rounds": 2})
        models.append(run(LocalGrid(parties), tmp_path / by, config).model)
    assert all(map(torch.equal, models[0].values, models[1].values))


# --- labels at several parties ---

CLINICS = {3: "east", 101: "north", 7: "south"}
SHARED = {"clients": "parties"}


@pytest.fixture
def clinics(tmp_path: Path) -> Nodes:
    folder, key = write_clinics(tmp_path / "clinics", union()), tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    common = {"key": str(key), "fewest": 1}
    return {node: {"data": str(folder / party), "client": party, **common} for node, party in CLINICS.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", ["cg", "one round", "the mean only", "n only"])
def test_a_pair_at_several_parties_counts_once(case: str, clinics: Nodes, tmp_path: Path) -> None:
    method, settings = CASES[case][0], CASES[case][1] | SHARED
    config = asked(method, settings, **ON, **{"num-parties": 3})
    found = run(LocalGrid(clinics), tmp_path / "run", config)
    data = load_dataset(tmp_path / "clinics")
    alike = overrides(settings | {"collection.identity": "content"})
    chosen = experiment({"method": method, "engine": "clients", "rounds": 3}, overrides=alike)
    training = in_one_process(chosen, data.train, data.label_names, clinics[7]["key"], RUN_ID)
    for _ in range(1 if training.method.one_round else 3):
        training.run_round()
    assert_equal(found.model, training.averaged_model())
    census = Census.load(tmp_path / "run")
    assert census is not None and census.knowledge is not None and training.knowledge is not None
    np.testing.assert_array_equal(census.knowledge.labels.counts, training.knowledge.labels.counts)  # type: ignore[union-attr]


# --- ranking held-out records ---


@pytest.mark.few(1)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("set_size", ["exact", "expected"])
def test_parties_measure_as_with_the_join(
    set_size: str, shared: bool, parties: Nodes, clinics: Nodes, tmp_path: Path
) -> None:
    """The number of held-out records is a sum too: each party adds 1/m for each of its pairs."""
    method, settings = CASES["cg"]
    settings = settings | {"client.set_size": set_size} | (SHARED if shared else {})
    found = []
    for by in ("sums", "join"):
        config = {**ON, "held-out-share": 0.3, "num-parties": 3 if shared else 4, "num-server-rounds": 2}
        grid = LocalGrid(clinics if shared else parties)
        run(grid, tmp_path / by, asked(method, settings | {"collection.by": by}, **config))
        found.append(history.read(tmp_path / by / "history.jsonl")[0]["metrics"])  # later, one mean gives another θ
        assert ("query.held_out" in {kind for _, kind, _ in grid.asked}) == (by == "join")
    if shared and set_size == "expected":
        assert found[0] == {} and found[1]  # nobody knows which hits are the same
    else:
        assert set(found[0]) == set(found[1]) and 0 < found[1]["validation P@1"] < 100
        assert found[0] == pytest.approx(found[1], rel=1e-9 if set_size == "exact" else 0.01)


@pytest.mark.long
def test_a_method_without_label_sets_ranks_without_digests_too(parties: Nodes, tmp_path: Path) -> None:
    found = []
    for by in ("sums", "join"):
        settings = {name: value for name, value in SETTINGS.items() if not name.startswith("regularizer")}
        config = asked("fedavg-fixed", settings | {"collection.by": by}, **ON, **{"held-out-share": 0.3})
        grid = LocalGrid(parties)
        run(grid, tmp_path / by, config | {"num-server-rounds": 1})
        found.append(history.read(tmp_path / by / "history.jsonl")[0]["metrics"])
        kinds = {kind for _, kind, _ in grid.asked}
        assert ("query.held_out" in kinds) == (by == "join") and "query.label_sets" not in kinds
    assert found[0] == pytest.approx(found[1], rel=1e-9) and "validation nDCG@5" in found[0]


# --- what a curious server finds ---


def contents(message: Message) -> Iterator[bytes]:
    """Yield every value of a message as bytes."""
    for record in message.content.values() if message.has_content() else ():
        for name, value in record.items():
            yield name.encode()
            if isinstance(value, Array):
                yield value.data
            else:
                for each in value if isinstance(value, list) else [value]:
                    yield each if isinstance(each, bytes) else str(each).encode()


def all_that_the_server_has(grid: LocalGrid, folder: Path) -> bytes:
    files = (path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    return b"\n".join([*(part for message in [*grid.pushed, *grid.replies] for part in contents(message)), *files])


def tables_of(grid: LocalGrid) -> list[np.ndarray]:
    """Return the counts that single parties sent, before seals and n, as the server would read them."""
    found = []
    for reply in grid.replies:
        if reply.metadata.message_type == "query.bucket_counts" and reply.has_content():
            numbers = unpack(reply.content, MASKED, {"numbers": ("uint64", (None,))})["numbers"]
            words = numbers[: -CHECKS - SEALS - len(NAMES) - SEALS]
            found.append(unpacked(words, 4 * len(words)))
    return found


def watched(parties: Nodes, folder: Path, by: str, **more: Any) -> LocalGrid:
    method, settings = CASES["one round"]
    grid = LocalGrid(parties)
    grid.keeps = True
    run(grid, folder, asked(method, settings | {"collection.by": by}, **ON, **{"held-out-share": 0.3, **more}))
    return grid


def test_the_server_holds_no_digest_of_a_record(parties: Nodes, train: Split, tmp_path: Path) -> None:
    digests = {}
    for name in (RUN_ID, ""):  # of this run, and those by which records are counted in buckets
        hasher = Hasher("hmac-sha256", Key.read(parties[7]["key"]), run=name)
        found = hasher.instances(canonical_features(train.features))
        digests[name] = [digest.tobytes()[:8] for digest in found]
    seen = {}
    for by in ("sums", "join"):
        has = all_that_the_server_has(watched(parties, tmp_path / by, by), tmp_path / by)
        for name, each in digests.items():
            seen[by, name] = sum(digest in has or digest.hex().encode() in has for digest in each)
    count = len(train)  # the first bytes would be enough
    assert seen == {("sums", RUN_ID): 0, ("sums", ""): 0, ("join", RUN_ID): count, ("join", ""): 0}


@pytest.mark.long
def test_single_parties_counts_are_uniformly_random(
    parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without masks they are a list of records: most buckets are empty, the others say how many labels. With masks all
    65,536 values are equally likely, in every bucket, and other ones in every run."""
    masked = tables_of(watched(parties, tmp_path / "masked", "sums"))
    again = tables_of(watched(parties, tmp_path / "again", "sums"))
    with monkeypatch.context() as patch:
        for module in (party_module, server_module):
            patch.setattr(module, "add_mask", lambda *arguments: None)
        bare = tables_of(watched(parties, tmp_path / "bare", "sums"))
    assert len(masked) == len(bare) == 8  # four parties, training and held-out records
    for table in bare:
        assert table.max() < 10 and (table == 0).mean() > 0.5
    counts = np.concatenate(masked).astype(np.int64)
    for byte in (counts & 255, counts >> 8):
        expected = len(byte) / 256
        chi = ((np.bincount(byte, minlength=256) - expected) ** 2 / expected).sum()
        assert abs(chi - 255) < 6 * np.sqrt(2 * 255), "not uniform"
    for table, plain, other in zip(masked, bare, again, strict=True):
        for against in (plain, other):
            assert (table == against).mean() < 0.02  # by chance alone, one in 65,536


def test_false_numbers_of_holders_are_refused(clinics: Nodes, tmp_path: Path) -> None:
    """With one false number for each pair, differences of the sums would show every label set."""
    grid = LocalGrid(clinics)
    grid.keeps = True
    run(grid, tmp_path / "run", asked("fedalc-oneshot", SUMS | SHARED, **ON | {"num-parties": 3}))
    asks = [message for message in grid.pushed if message.metadata.message_type == "query.bucket_counts"]
    question = next(message for message in asks if BUCKET_SUMS in message.content)
    wanted = {"holders": ("uint16", (None, None)), "holders seals": ("uint64", (SEALED,))}
    arrays = unpack(question.content, BUCKET_SUMS, wanted)
    holders, node = arrays["holders"], question.metadata.dst_node_id
    question.content[BUCKET_SUMS] = pack(arrays | {"holders": np.where(holders > 0, 2, holders).astype(np.uint16)})
    reply = grid.app(question, Context(1, node, clinics[node], grid.states[node], {}))
    assert reply.has_error() and "other sums of bucket counts than those that the parties counted" in reply.error.reason
