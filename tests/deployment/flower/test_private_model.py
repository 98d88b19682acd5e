"""A private model with real parties: each adds its share of the noise under its mask, as in the simulation."""

from __future__ import annotations

import json
import math
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.core.seeds import derived_seed
from fedalc.data.dataset import Split
from fedalc.data.records import record_numbers
from fedalc.deployment.flower import party_noise
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.masked_sums import MaskedSums
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.sum_messages import NOISED
from fedalc.deployment.flower.wire import BadMessage, pack, unpack
from fedalc.deployment.twin import in_one_process
from fedalc.engines.record_sums import OF_COUNT, OF_DIAGONAL, RecordSums
from fedalc.engines.secure import SecureSums
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.privacy import NoiseShares, SecureGenerator, sums_multiplier
from fedalc.labels.privacy.ledger import Ledger
from fedalc.labels.privacy.record_sums import GAP, UNIT
from fedalc.runs.result import read_result
from fedalc.training.federated import FederatedTraining
from tests.data.clinics import union, write_clinics
from tests.data.test_parties import load_dataset
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    NAMES,
    OWNED,
    RUN_ID,
    Nodes,
    asked,
    fails,
    notes,
    overrides,
    run,
    write_parties,
)
from tests.deployment.flower.test_resume import Crash
from tests.deployment.flower.test_secure_sums import at_step
from tests.deployment.flower.test_shared_labels import PARTIES
from tests.problems import random_split

SUMS: dict[str, Any] = {
    "encoder.name": "linear",
    "encoder.dim": 8,
    "dtype": "float64",
    "privacy.mechanism": "sums",
    "privacy.epsilon": 0.5,
}
UPDATES = SUMS | {"privacy.mechanism": "updates", "client.loss": "softmax", "server.optimizer": "sgd"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "diagonal": ("fedalc-oneshot", SUMS),
    "full": ("fedalc-oneshot", SUMS | {"privacy.moments": "full", "privacy.noise_dropouts": 1}),
    "updates": ("fedalc-exact", UPDATES),
}


AUTO = {"secure-sums": "auto"}
NAMED = [f"party {node}" for node in OWNED]


@pytest.fixture
def private(parties: Nodes, tmp_path: Path) -> Nodes:
    return {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}


def config_of(case: str, **more: Any) -> dict[str, Any]:
    method, settings = CASES[case]
    return asked(method, settings, **AUTO | more)


def seeded(work: Any, question: Any, parties: int) -> SecureGenerator:
    """The noise of the simulation: by question, round and number of the party."""
    number, task = NAMED.index(work.context.node_config["client"]), work.message.content["task"]
    seed = derived_seed(0, f"record noise {work.question['what']}", task.get("round", 1), number)
    return SecureGenerator.seeded(seed)


def simulated(case: str, train: Split, key: str, owner: np.ndarray) -> FederatedTraining:
    method, settings = CASES[case]
    more = {"secure_sums.on": True, "privacy.noise": "seeded", "seed": 0}
    keys = {"method": method, "engine": "clients", "rounds": 3}
    training = in_one_process(experiment(keys, overrides=overrides(settings | more)), train, NAMES, key, RUN_ID, owner)
    for _ in range(1 if training.method.one_round else 3):
        training.run_round()
    return training


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_with_the_same_seeds_the_model_is_that_of_the_simulation_to_the_last_bit(
    case: str, private: Nodes, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party_noise, "generator", seeded)
    found = run(LocalGrid(private), tmp_path / "run", config_of(case, seed=0))
    census = Census.load(tmp_path / "run")
    assert census is not None
    owner = np.array([NAMED.index(census.roster.parties[party]) for party in census.roster.owner])
    training = simulated(case, train, str(private[7]["key"]), owner)
    assert torch.equal(found.model.theta[0], training.model.theta[0])
    assert found.model.theta[0].abs().max() > 0


def test_records_and_labels_at_several_parties_make_the_model_of_the_simulation(
    tmp_path: Path, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair that two parties have counts half at each."""
    clinics = write_clinics(tmp_path / "clinics", union())
    nodes = {
        node: {"data": str(clinics / name), "client": name, "key": parties[7]["key"], "state": str(tmp_path / name)}
        for node, name in PARTIES.items()
    }
    settings = SUMS | {"clients": "parties", "privacy.labels_per_instance": 2}
    silence(monkeypatch)
    totals = watched(monkeypatch)
    run(LocalGrid(nodes), tmp_path / "run", asked("fedalc-oneshot", settings, **{"num-parties": 3} | AUTO))
    data = load_dataset(clinics)
    literal = experiment(
        {"method": "fedalc-oneshot", "engine": "clients"},
        overrides=overrides(settings | {"secure_sums.on": True, "privacy.noise": "seeded"}),
    )
    training = in_one_process(literal, data.train, data.label_names, parties[7]["key"], RUN_ID)
    training.run_round()
    found, clean = totals[:2], totals[2:]
    assert [one.tolist() for one in found] == [one.tolist() for one in clean]
    records = int(record_numbers(data.train.features).max()) + 1
    assert found[0][0] / UNIT == pytest.approx(records, abs=0.1)  # each once, but for the rounding


# --- the noise ---


def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all noise zero, to see what it hides."""
    path = "fedalc.labels.privacy.record_sums.gaussian_noise"
    monkeypatch.setattr(path, lambda sigma, generator, count: np.zeros(count, dtype=np.int64))


def watched(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return a list that gets each sum, as the server unmasks it, in a deployment and in a simulation."""
    totals: list[np.ndarray] = []
    of_deployment, of_simulation = MaskedSums.total, SecureSums._sum

    def deployed(self: MaskedSums, *arguments: Any, **more: Any) -> Any:
        found = of_deployment(self, *arguments, **more)
        totals.append(found[0].view(np.int64) if more.get("whole") else found[0])
        return found

    def simulated(self: SecureSums, *arguments: Any, **more: Any) -> Any:
        found = of_simulation(self, *arguments, **more)
        totals.append(found[0])
        return found

    monkeypatch.setattr(MaskedSums, "total", deployed)
    monkeypatch.setattr(SecureSums, "_sum", simulated)
    return totals


def wide(folder: Path, features: int) -> tuple[Nodes, Split]:
    """Four parties with many features, so that there are many numbers to measure noise on."""
    split = random_split(60, features, 7, seed=3)
    split = split.rows(np.flatnonzero(split.labels.getnnz(axis=1) > 0))
    folder.mkdir()
    nodes = write_parties(folder, split)
    return {node: config | {"state": str(folder / f"state {node}")} for node, config in nodes.items()}, split


@pytest.mark.few(1)
@pytest.mark.parametrize("dropouts", [2, 0])
def test_the_noise_of_the_sum_has_the_promised_variance(
    dropouts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with `dropouts` colluding parties, who know their own shares, the rest of it still has."""
    nodes, _ = wide(tmp_path / "parties", 300)
    shares: dict[str, list[np.ndarray]] = {}
    answer = party_noise.owners_answer

    def watching(records: Any, what: str, labels: int, noise: Any) -> np.ndarray:
        noised = answer(records, what, labels, noise)
        with pytest.MonkeyPatch.context() as patch:
            silence(patch)
            shares.setdefault(what, []).append(noised - answer(records, what, labels, noise))
        return noised

    monkeypatch.setattr(party_noise, "owners_answer", watching)
    totals = watched(monkeypatch)
    settings = SUMS | {"privacy.epsilon": 1.0, "privacy.noise_dropouts": dropouts}
    run(LocalGrid(nodes), tmp_path / "run", asked("fedalc-oneshot", settings, **AUTO))
    assert len(totals) == 2 and [len(drawn) for drawn in shares.values()] == [4, 4]
    z, cross = sums_multiplier(1.0, 1e-5, 1), 300 * 7
    labels, moments = z / math.sqrt(1 - OF_COUNT - 2 * OF_DIAGONAL) * UNIT, z / math.sqrt(OF_DIAGONAL) * UNIT
    honest = np.sum(shares["diagonal"][: 4 - dropouts], axis=0)  # those who do not collude
    single = np.array(shares["diagonal"])
    for part, sigma in ((np.s_[:cross], labels), (np.s_[cross:], moments)):
        found, each = honest[part], single[:, part]
        assert found.var() == pytest.approx(sigma**2 + GAP**2, rel=5 * math.sqrt(2 / found.size))
        assert abs(found.mean()) < 5 * sigma / math.sqrt(found.size)
        assert abs(np.corrcoef(each)[np.triu_indices(4, 1)]).max() < 5 / math.sqrt(found.size)


@pytest.mark.parametrize("moments", ["diagonal", pytest.param("full", marks=pytest.mark.long)])
def test_no_record_changes_the_sums_over_all_parties_by_more_than_the_noise_is_for(
    moments: str, parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records with several labels at several parties, long ones among them, removed everywhere in turn."""
    split = random_split(30, 20, 7, seed=11)
    split = Split(csr_matrix(split.features * 3), split.labels)
    split = split.rows(np.flatnonzero((split.labels.getnnz(axis=1) > 0) & (split.features.getnnz(axis=1) > 0)))
    often = np.argsort(-split.labels.getnnz(axis=1), kind="stable")
    assert split.labels.getnnz(axis=1)[often[0]] >= 3
    silence(monkeypatch)
    totals = watched(monkeypatch)
    settings = SUMS | {"privacy.moments": moments, "encoder.features": "raw"}

    def summed(name: str, rows: np.ndarray) -> list[np.ndarray]:
        totals.clear()
        folder = tmp_path / name
        folder.mkdir()
        nodes = write_parties(folder, split.rows(rows))
        kept = {node: config | {"state": str(folder / f"state {node}")} for node, config in nodes.items()}
        run(LocalGrid(kept), folder / "run", asked("fedalc-oneshot", settings, **AUTO))
        return [total.astype(float) for total in totals]

    everything = np.arange(len(split))
    whole = summed("all", everything)
    for record in often[:2].tolist():
        count, sums = (
            a - b for a, b in zip(whole, summed(f"without {record}", np.delete(everything, record)), strict=True)
        )
        assert 0 < count[0] <= UNIT
        cross, squares = sums[: 20 * 7], sums[20 * 7 :]
        assert 0.9 * UNIT < np.linalg.norm(cross) <= UNIT  # M = 1
        if moments == "full":
            gram = np.zeros((20, 20))
            gram[np.triu_indices(20)] = squares
            assert np.linalg.norm(gram + np.triu(gram, 1).T) <= UNIT**2
        else:
            assert max(np.linalg.norm(squares[:20]), np.linalg.norm(squares[20:])) <= UNIT


@pytest.mark.long
def test_a_record_that_a_party_has_in_several_rows_counts_once(
    parties: Nodes, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch)
    totals = watched(monkeypatch)
    for name, rows in (("once", np.arange(len(train))), ("twice", np.r_[np.arange(len(train)), :5])):
        (tmp_path / name).mkdir()
        nodes = write_parties(tmp_path / name, train.rows(rows))
        kept = {node: config | {"state": str(tmp_path / name / f"{node}")} for node, config in nodes.items()}
        run(LocalGrid(kept), tmp_path / name / "run", asked("fedalc-oneshot", SUMS, **AUTO))
    (count, sums), (counted, again) = totals[:2], totals[2:]
    assert 0 <= count[0] - counted[0] <= 10 and np.abs(sums - again).max() <= 10  # rounded towards zero twice


# --- the inversion of a label with one record ---


def cosine(found: np.ndarray, record: np.ndarray) -> float:
    return float(abs(found @ record) / np.linalg.norm(found) / np.linalg.norm(record))


@pytest.mark.long
def test_the_record_of_a_label_with_one_is_in_the_plain_and_the_masked_sum_and_not_in_the_noised_one(
    parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the rows of W and multiplies what it gets with the label's."""
    features, random = 400, np.random.default_rng(3)
    x = random.normal(size=(29, features))
    labels = np.zeros((29, 7))
    labels[np.arange(28), np.arange(28) % 6] = 1
    labels[28, 6] = 1  # the one record of label 6, at party 9
    split = Split(csr_matrix(x), csr_matrix(labels))
    nodes = write_parties(tmp_path, split)
    nodes = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in nodes.items()}
    base = {key: value for key, value in SUMS.items() if not key.startswith("privacy")}
    totals = watched(monkeypatch)

    def inverted(numbers: np.ndarray, model: Any) -> float:
        label = list(model.label_names).index(alone)
        return cosine(numbers.reshape(features, -1) @ model.model.W[label].numpy(), x[28])

    nodes = {node: config | {"share-names": True} for node, config in nodes.items()}
    alone = NAMES[6]
    grid = LocalGrid(nodes)
    grid.keeps = True
    run(grid, tmp_path / "plain", asked("fedalc-oneshot", base, **{"run-id": "plain"}))
    (sent,) = [r.content for r in grid.replies if "sums" in r.content and r.metadata.src_node_id == 9]
    cross = unpack(sent, "sums", {"gram": ("float64", (None,)), "cross": ("float64", (features, 1))})["cross"]
    assert cosine(cross[:, 0], x[28]) == pytest.approx(1, abs=1e-6)
    masked = run(LocalGrid(nodes), tmp_path / "masked", asked("fedalc-oneshot", base, **AUTO, **{"run-id": "masked"}))
    _, sums = totals  # counts in buckets come first
    half = features * (features + 1) // 2
    assert inverted(sums[half:-2], masked) == pytest.approx(1, abs=1e-6)
    totals.clear()
    settings = SUMS | {"privacy.epsilon": 1.0, "privacy.moments": "diagonal"}
    private = run(LocalGrid(nodes), tmp_path / "run", asked("fedalc-oneshot", settings, **AUTO))
    label = list(private.label_names).index(alone)
    column = totals[1][: features * 7].reshape(features, 7)[:, label]
    assert cosine(column.astype(float), x[28]) < 4 / math.sqrt(features)  # chance is 0.8/√400
    assert cosine(private.model.theta[0].detach().numpy() @ private.model.W[label].numpy(), x[28]) < 0.25


# --- what a party remembers, and what it refuses ---


@pytest.fixture(scope="module")
def once(parties: Nodes, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    """The parties' states after a run, and the numbers that were unmasked."""
    folder = tmp_path_factory.mktemp("once")
    nodes = {node: config | {"state": str(folder / f"state {node}")} for node, config in parties.items()}
    with pytest.MonkeyPatch.context() as patch:
        totals = watched(patch)
        run(LocalGrid(nodes), folder / "run", config_of("diagonal"))
    return folder, totals


@pytest.fixture
def after_a_run(once: tuple[Path, list[np.ndarray]], private: Nodes) -> Nodes:
    for node, config in private.items():
        shutil.copytree(once[0] / f"state {node}", config["state"])
    return private


def problems(nodes: Nodes, folder: Path, case: str = "diagonal", change: Any = None, **more: Any) -> list[str]:
    """Run, and return why parties were left out of the run that failed."""
    grid = LocalGrid(nodes)
    grid.before_push = change or (lambda message: None)
    with fails(FedalcError):
        run(grid, folder, config_of(case, **more))
    return [why for _, _, why in notes(folder)] if (folder / "parties.jsonl").exists() else []


@pytest.mark.long
def test_asked_again_a_party_gives_the_same_noise(
    once: tuple[Path, list[np.ndarray]], after_a_run: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that crashed, or says so, asks again under the same run id. A run with another id has other noise."""
    totals = watched(monkeypatch)

    def numbered(message: Message) -> None:  # by another round: it must not count as another question
        if message.metadata.message_type == NOISED:
            message.content["task"]["round"] = 7

    for name, more in (("again", {}), ("numbered", {}), ("other", {"run-id": "another"})):
        grid = LocalGrid(after_a_run)
        grid.before_push = numbered if name == "numbered" else grid.before_push
        run(grid, tmp_path / name, config_of("diagonal", **more))
    first, (again, later, other) = once[1], (totals[start : start + 2] for start in range(0, 6, 2))
    assert all(map(np.array_equal, first, again)) and all(map(np.array_equal, first, later))
    assert (first[1] != other[1]).mean() > 0.99
    charges = Ledger(Path(after_a_run[7]["state"]) / "privacy-ledger.jsonl").charges()
    assert [charge.id for charge in charges] == [f"run {RUN_ID}", "run another"]
    assert all(charge.epsilon == pytest.approx(0.5, rel=0.01) for charge in charges)


def test_a_party_that_has_forgotten_its_noise_does_not_draw_it_again(after_a_run: Nodes, tmp_path: Path) -> None:
    for config in after_a_run.values():
        (Path(config["state"]) / "runs" / f"{RUN_ID}.json").unlink()
    assert any("drawn and forgotten" in why for why in problems(after_a_run, tmp_path / "again"))


def test_other_records_in_the_same_run_are_refused(after_a_run: Nodes, train: Split, tmp_path: Path) -> None:
    """The same noise on other records would cancel in the difference."""
    (tmp_path / "changed").mkdir()
    changed = write_parties(tmp_path / "changed", train.rows(np.arange(1, len(train))))
    later = {node: config | {"data": changed[node]["data"]} for node, config in after_a_run.items()}
    why = problems(later, tmp_path / "again")
    assert any("records have changed" in one or "than before in this run" in one for one in why)


@pytest.mark.long
@pytest.mark.parametrize("case", ["updates", "diagonal"])
def test_a_run_that_is_resumed_is_charged_once(
    case: str, private: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server crashes after the last sum and before it has saved it: parties give the same numbers again."""
    totals, run_round = watched(monkeypatch), FederatedTraining.run_round

    def crashing(self: FederatedTraining) -> float:
        loss = run_round(self)
        if self.round_number == (1 if case == "diagonal" else 2):
            raise Crash
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(FederatedTraining, "run_round", crashing)
        with pytest.raises(Crash):
            run(LocalGrid(private), tmp_path / "run", config_of(case))
    before = len(totals)
    run(LocalGrid(private), tmp_path / "run", config_of(case, resume=True))
    last = 2 if case == "diagonal" else 1
    assert all(map(np.array_equal, totals[before - last : before], totals[before : before + last]))
    assert len(Ledger(Path(private[7]["state"]) / "privacy-ledger.jsonl").charges()) == 1


def test_a_party_lost_on_the_way_costs_nothing(
    once: tuple[Path, list[np.ndarray]], after_a_run: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is unmasked without it. It is asked again, and gives what it would have given."""
    totals = watched(monkeypatch)
    grid = LocalGrid(after_a_run)
    grid.tampering = {55: at_step("masked", lambda reply: None)}
    run(grid, tmp_path / "lost", config_of("diagonal"))
    assert len(totals) == 2 and all(map(np.array_equal, once[1], totals))
    assert {party for _, party, _ in notes(tmp_path / "lost")} == {"party 55"}


def test_noised_numbers_are_not_unmasked_without_a_party_that_shares_the_noise(
    private: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that goes on without it."""
    of_deployment = MaskedSums.total

    def hasty(self: MaskedSums, *arguments: Any, **more: Any) -> Any:
        return of_deployment(self, *arguments[:-1], False, **more)

    monkeypatch.setattr(MaskedSums, "total", hasty)
    grid = LocalGrid(private)
    grid.tampering = {55: at_step("masked", lambda reply: None, times=9)}
    with fails(TooFew):
        run(grid, tmp_path / "run", config_of("diagonal"))
    assert any("too little of it would be left" in why for _, _, why in notes(tmp_path / "run"))


def with_settings(change: Callable[[dict[str, Any]], None], node: int | None = None) -> Callable[[Message], None]:
    def altered(message: Message) -> None:
        task = message.content["task"]
        if node in (None, message.metadata.dst_node_id):
            assert isinstance(task, ConfigRecord)
            settings = json.loads(str(task["settings"]))
            change(settings)
            task["settings"] = json.dumps(settings, sort_keys=True)

    return altered


def test_a_server_that_tells_one_party_a_larger_epsilon_gets_nothing(private: Nodes, tmp_path: Path) -> None:
    """The noise is part of the question that masks are bound to."""
    why = problems(private, tmp_path / "run", change=with_settings(lambda s: s["privacy"].update(epsilon=1.0), 55))
    assert not any("privacy" in one for one in why)
    named = notes(tmp_path / "run", "is named by a secure sum")
    assert {party for _, party, _ in named} == {"party 55"} and "agreed to something else" in named[0][2]


def test_numbers_without_noise_are_refused(private: Nodes, tmp_path: Path) -> None:
    def bare(message: Message) -> None:
        if message.metadata.message_type == NOISED:
            message.metadata.__dict__["_message_type"] = "train.sums"

    assert any("asks for numbers without noise" in why for why in problems(private, tmp_path / "run", change=bare))


def told(record: str, change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Message], None]:
    def altered(message: Message) -> None:
        if message.metadata.message_type == NOISED:
            wanted = {"weights": ("float64", (None,)), "shares": ("float64", (None,))}
            arrays = unpack(message.content, record, wanted)
            change(arrays)
            message.content[record] = pack(arrays)

    return altered


def test_a_record_with_fewer_labels_than_the_party_knows_of_is_refused(private: Nodes, tmp_path: Path) -> None:
    lie = told("told", lambda arrays: arrays["shares"].fill(1.0))
    assert any("fewer labels than this party alone" in one for one in problems(private, tmp_path / "run", change=lie))


def test_other_moments_after_the_first_ones_are_refused(after_a_run: Nodes, tmp_path: Path) -> None:
    """Both would show the sums of the labels twice, with different noise."""

    def other(message: Message) -> None:
        task = message.content["task"]
        if message.metadata.message_type == NOISED and task["what"] == "diagonal":
            task["what"] = "full"

    why = problems(after_a_run, tmp_path / "again", change=other)
    assert any("in another way than before" in one for one in why)


@pytest.mark.parametrize("moments", ["diagonal", "full"])
def test_noised_sums_take_no_more_memory_than_is_counted(moments: Any) -> None:
    noise = NoiseShares(3.7, 5, 0, SecureGenerator.seeded(1), drawn=1)
    RecordSums(8, 8, 5, moments).noised(noise)  # makes the tables, which are kept
    tracemalloc.start()
    numbers = RecordSums(400, 200, 5, moments).noised(noise)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 16 * len(numbers) < peak < party_noise.SUM_BYTES * len(numbers)


@pytest.mark.long
def test_too_much_memory_is_refused(private: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the sums are made. The full moments of 20 features and 7 labels are 210 + 140 numbers."""
    needed: list[int] = []

    def check(size: int) -> None:
        needed.append(size)
        if size > 1000:  # not that of the count
            raise BadMessage("asks for work that takes more memory")

    monkeypatch.setattr(party_noise, "check_memory", check)
    with fails(FedalcError):
        run(LocalGrid(private), tmp_path / "run", config_of("full"))
    assert max(needed) == 72 * 350


@pytest.mark.long
def test_a_party_counts_the_updates_of_a_run(private: Nodes, tmp_path: Path) -> None:
    """A server that goes on after the rounds that the noise is for."""
    fewer = with_settings(lambda settings: settings.update(rounds=2))
    assert any("update 3 of a run of 2" in one for one in problems(private, tmp_path / "run", "updates", fewer))


@pytest.mark.parametrize(
    ("node", "more", "problem"),
    [
        ({}, {"privacy.epsilon": 20.0}, "privacy.epsilon = 20 is outside 0 to 10"),
        ({}, {"privacy.delta": 1e-3}, "privacy.delta = 0.001 is outside"),
        ({"allow": "privacy.epsilon=0.1"}, {}, "privacy.epsilon = 0.5 is outside 0 to 0.1"),
        ({"epsilon-budget": 0.4}, {}, "this party's budget of ε"),
        ({"state": None}, {}, "no state folder"),
        ({}, {"privacy.noise_dropouts": 4}, "4 parties share the noise"),
    ],
)
def test_a_promise_that_is_too_small_is_refused(
    node: dict[str, Any], more: dict[str, Any], problem: str, private: Nodes, tmp_path: Path, capsys: Any
) -> None:
    nodes = {
        number: {key: value for key, value in (config | node).items() if value is not None}
        for number, config in private.items()
    }
    grid = LocalGrid(nodes)
    with fails(FedalcError):
        run(grid, tmp_path / "run", asked("fedalc-oneshot", SUMS | more, **AUTO))
    assert problem in capsys.readouterr().out


@pytest.mark.long
def test_a_party_with_a_budget_takes_part_until_it_is_spent_and_in_no_run_without_noise(
    private: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {node: config | {"epsilon-budget": 0.6} for node, config in private.items()}
    run(LocalGrid(nodes), tmp_path / "run", config_of("diagonal"))
    with fails(FedalcError):
        run(LocalGrid(nodes), tmp_path / "second", config_of("diagonal", **{"run-id": "second"}))
    said = capsys.readouterr().out
    assert "would spend more than this party's budget" in said and "Spent so far" not in said
    with fails(FedalcError):
        run(
            LocalGrid(nodes),
            tmp_path / "bare",
            asked("fedalc-oneshot", {"encoder.dim": 8}, **AUTO | {"run-id": "bare"}),
        )
    assert "answers no other (--epsilon-budget)" in capsys.readouterr().out


@pytest.mark.parametrize("config", [{"secure-sums": "off"}, {"num-parties": 2}, {"set": "secure_sums.on=false"}])
def test_without_secure_sums_it_is_refused(config: dict[str, Any]) -> None:
    lines = "privacy.mechanism=sums\n" + config.pop("set", "")
    with pytest.raises(ConfigError, match="needs secure sums"):
        read_run_config({"method": "fedalc-oneshot", "num-parties": 3, **config, "set": lines}, 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("privacy.noise_dropouts=3", "privacy.noise_dropouts: 3 parties share the noise"),
        ("selection.validation=0.2", "selection.validation: the server has no records"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anybody_waits(line: str, words: str) -> None:
    lines = f"privacy.mechanism=sums\nprivacy.epsilon=1.0\n{line}"
    with pytest.raises(ConfigError, match=words):
        read_run_config({"method": "fedalc-oneshot", "num-parties": 3, "set": lines}, 1)


# --- what the run folder has ---


def test_a_label_without_a_record_is_a_label_like_others(train: Split, tmp_path: Path) -> None:
    """That nobody has a record of it would tell that someone's record is not there."""
    dense = train.labels.toarray()
    dense[:, 3] = 0
    nodes = write_parties(tmp_path, Split(train.features, csr_matrix(dense)))
    nodes = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in nodes.items()}
    nodes[7]["labels"] = ",".join(NAMES[label] for label in OWNED[7])
    model = run(LocalGrid(nodes), tmp_path / "run", config_of("diagonal"))
    result = read_result(tmp_path / "run")
    assert (len(model.label_names), result["clients"], result["labels_without_client"]) == (7, 7, 0)
    assert result["privacy"]["epsilon"] == pytest.approx(0.5, rel=0.01)
    assert "messages" not in result["collection"] and "instances" not in result["collection"]
