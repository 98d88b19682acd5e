"""A search with real parties chooses what a simulation chooses on the same split, and can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

import fedalc
from fedalc.core.interrupt import Interrupt
from fedalc.data.dataset import Dataset, Split
from fedalc.deployment.flower.census import question
from fedalc.deployment.flower.client_app import app as client_app
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.ranking import RANK, read_hits
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.server_app import run_with_parties
from fedalc.deployment.flower.sum_messages import MASKED, WEIGHTS
from fedalc.deployment.flower.wire import SEARCH, BadMessage, for_parties, pack
from fedalc.errors import ConfigError
from fedalc.labels.collection.messages import byte_order
from fedalc.runs.folder import read_settings
from fedalc.training import tuning
from fedalc.training.tuning import Search, Trial
from tests.deployment.flower.local_grid import LocalGrid, over_the_wire
from tests.deployment.flower.problem import (
    LINEAR,
    NAMES,
    OWNED,
    RUN_ID,
    Nodes,
    asked,
    fails,
    kept_out,
    notes,
    run,
    write_parties,
)
from tests.deployment.flower.test_ranking import FIGURES, hasher
from tests.deployment.flower.test_resume import Crash, renamed
from tests.problems import random_split

SHARE = 0.3
ASKED: dict[str, Any] = {
    "tune": True, "set": 'dtype="float64"', "held-out-share": SHARE, "wait": 5.0, "round-timeout": 5.0,
    "num-parties": len(OWNED), "run-id": RUN_ID, "secure-sums": "off",
}  # fmt: skip
AGAIN = {key: ASKED[key] for key in ("wait", "round-timeout", "num-parties")} | {"resume": True}


@pytest.fixture(scope="module")
def train() -> Split:
    split = random_split(160, 20, 7, seed=5)
    return split.rows(np.flatnonzero((split.labels.getnnz(axis=1) > 0) & (split.features.getnnz(axis=1) > 0)))


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory, train: Split) -> Nodes:
    return write_parties(tmp_path_factory.mktemp("parties"), train)


@pytest.fixture(scope="module", autouse=True)
def small_search() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "RANDOM_FEATURES_UP_TO", 0)
        patch.setattr(tuning, "MOST_PENALTIES", 1)
        patch.setattr(tuning, "POWERS", (0.0, 0.3, 0.6))
        patch.setattr(tuning, "BEHIND", 100.0)  # every loss gets several penalties
        patch.setattr(tuning, "JUDGED_ROUNDS", (2, 4))
        patch.setattr("fedalc.report.page.write_page", lambda *folder: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, parties: Nodes, small_search: None) -> tuple[LocalGrid, Path]:
    """A search that is not stopped: the grid and the run folder."""
    grid, folder = LocalGrid(parties), tmp_path_factory.mktemp("whole") / "run"
    run(grid, folder, ASKED)
    return grid, folder


def simulated(settings: fedalc.Experiment, train: Split, parties: Nodes) -> Search:
    """Search in one process, on the split of the parties, with labels in the order of their pseudonyms."""
    out = kept_out(parties[7]["key"], train.features, SHARE)
    labels = Split(train.features, train.labels[:, byte_order(hasher(parties).labels(NAMES))])
    fit, rest = labels.rows(np.flatnonzero(~out)), labels.rows(np.flatnonzero(out))
    settings = settings.model_copy(update={"engine": "clients"})
    search = Search(settings, Dataset("parties", fit, rest, validation=rest), Interrupt())
    search.run()
    return search


def read(folder: Path) -> tuple[dict[str, Any], list[Trial]]:
    lines = (folder / "tuning.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((folder / "result.json").read_text()), [Trial.model_validate_json(line) for line in lines]


@pytest.mark.long
def test_parties_choose_what_a_simulation_chooses(whole: tuple[LocalGrid, Path], train: Split, parties: Nodes) -> None:
    assert_as_simulated(whole[1], train, parties, trials=8)


@pytest.mark.long
@pytest.mark.parametrize("by", ["join", "sums"])
def test_under_secure_sums_they_choose_the_same(tmp_path: Path, train: Split, parties: Nodes, by: str) -> None:
    """Sums and hits of every trial are masked, and the server has no party's own. With sums, no digest either."""
    grid, folder = LocalGrid(parties), tmp_path / "run"
    grid.keeps = True
    run(grid, folder, ASKED | {"secure-sums": "on", "collection": by})
    assert_as_simulated(folder, train, parties, trials=8)
    assert read_settings(folder).secure_sums.on and not (folder / "parties.jsonl").exists()
    sent = {name for reply in grid.replies if reply.has_content() for name in reply.content}
    assert not sent & {"change", "product", "sums", "hits"} and MASKED in sent
    assert ("query.label_sets" in {kind for _, kind, _ in grid.asked}) == (by == "join")


@pytest.mark.long
def test_secure_sums_of_a_search_need_every_party(
    tmp_path: Path, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party without enough records to rank says so, and does not count, as in a plain search. One that is silent is
    asked again, with all others: no hits without it are unmasked."""
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_MATRIX", 20 * 7 - 1)
    kept = {node: config | ({"fewest": 40} if node == 55 else {}) for node, config in parties.items()}
    found, left = [], [1]

    def silent_once(question: Message, reply: Message) -> Message | None:
        if question.metadata.message_type == RANK and left[0]:
            left[0] = 0
            return None
        return reply

    for secure in ("off", "on"):
        folder, left[0] = tmp_path / secure, 1
        config = ASKED | {"run-folder": str(folder), "secure-sums": secure, "collection": "join"}
        deployment, settings = read_run_config(config, 1)
        settings = settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"dim": 5})})
        grid = LocalGrid(kept)
        grid.tampering[9] = silent_once
        run_with_parties(grid, deployment, settings)
        found.append(read(folder)[1])
        assert len([1 for node, kind, _ in grid.asked if (node, kind) == (9, RANK)]) >= len(found[-1]) + 1
    for plain, masked in zip(*found, strict=True):
        assert plain.changes == masked.changes and plain.metrics == pytest.approx(masked.metrics, rel=1e-9)
    assert "has too few records to answer" in {why for _, party, why in notes(tmp_path / "on") if party == "party 55"}


@pytest.mark.long
def test_with_random_features(tmp_path: Path, train: Split, parties: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "RANDOM_FEATURES_UP_TO", 20)
    run(LocalGrid(parties), tmp_path / "run", ASKED)
    assert_as_simulated(tmp_path / "run", train, parties, trials=11)


def test_labels_that_share_axes(tmp_path: Path, train: Split, parties: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the square loss, with one label power, which the trials use too. Real parties have no tree of labels."""
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_MATRIX", 20 * 7 - 1)
    monkeypatch.setattr("fedalc.training.tuning.tree_fits", lambda settings, data: False)
    deployment, settings = read_run_config(ASKED | {"run-folder": str(tmp_path / "run")}, 1)
    settings = settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"dim": 5})})
    run_with_parties(LocalGrid(parties), deployment, settings)
    assert_as_simulated(tmp_path / "run", train, parties, trials=2, settings=settings)


@pytest.mark.long
def test_too_many_features_for_one_round(
    tmp_path: Path, train: Split, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then conjugate gradients train the square loss, and parties judge rounds as well as label powers."""
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_GRAM", 20 * 20 - 1)
    grid, folder = LocalGrid(parties), tmp_path / "run"
    run(grid, folder, ASKED)
    assert_as_simulated(folder, train, parties, trials=8)
    square = [trial for trial in read(folder)[1] if trial.loss == "square"]
    assert all("rounds 2, label_power 0.3" in trial.also for trial in square)


@pytest.mark.long
def test_too_many_features_and_labels_for_a_search(
    tmp_path: Path, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_GRAM", 20 * 20 - 1)
    monkeypatch.setattr("fedalc.training.settings_for_data.LARGEST_MATRIX", 20 * 7 - 1)
    deployment, settings = read_run_config(ASKED | {"run-folder": str(tmp_path / "run")}, 1)
    settings = settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"dim": 5})})
    with pytest.warns(UserWarning, match="^20 features are too many for one round, and 7 labels too many for a search"):
        run_with_parties(LocalGrid(parties), deployment, settings)
    settings = read_settings(tmp_path / "run")
    assert (settings.method, settings.server.optimizer) == ("fedalc-exact", "cg") and not settings.tuning.search


def assert_as_simulated(
    folder: Path, train: Split, parties: Nodes, trials: int, settings: fedalc.Experiment | None = None
) -> None:
    result, tried = read(folder)
    wanted = simulated(settings or read_run_config(ASKED, 1)[1], train, parties)
    dim = len(NAMES) if settings is None else settings.encoder.dim
    losses = {"square", "squared-hinge", "logistic"} if dim == len(NAMES) else {"square"}
    assert [trial.key for trial in tried] == [trial.key for trial in wanted.trials]
    assert {trial.loss for trial in tried} == losses and len(tried) == trials
    for found, trial in zip(tried, wanted.trials, strict=True):
        assert found.changes == trial.changes
        assert found.also == pytest.approx(trial.also, rel=1e-9) and (len(found.also) > 1 or dim < len(NAMES))
        assert found.metrics == pytest.approx({name: trial.metrics[name] for name in FIGURES}, rel=1e-9)
    settings = read_settings(folder)
    changes = wanted.best.changes
    assert result["tuning"]["chosen"] == {
        **changes,
        "encoder": {**changes["encoder"], "dim": wanted.settings.encoder.dim},
    }
    assert settings.server.ridge == wanted.best.penalty and settings.client.loss == wanted.best.loss
    assert settings.encoder.dim == dim and not settings.tuning.search
    # The final training is on the same records, and so are its figures.
    assert {name: result["metrics"][f"party {name}"] for name in FIGURES} == pytest.approx(
        {name: wanted.best.metrics[name] for name in FIGURES}
    )
    assert result["rounds"] == wanted.best.rounds


def test_sums_are_sent_once_for_all_penalties_and_powers(whole: tuple[LocalGrid, Path]) -> None:
    grid, folder = whole
    result, tried = read(folder)
    chosen = result["tuning"]["chosen"]
    kinds = 2  # square; the first Newton steps, of both losses
    kinds += 1 if chosen["client"]["loss"] == "square" else chosen["encoder"]["constant"] > 0  # the final training
    assert sum(kind == "train.sums" for _, kind, _ in grid.asked) == kinds * len(OWNED)
    square = [trial for trial in tried if trial.loss == "square"]
    judged = len(square) + sum(len(trial.also) for trial in tried if trial.loss != "square")
    final = len({group for _, kind, group in grid.asked if kind == RANK})
    assert judged * len(OWNED) < sum(kind == RANK for _, kind, _ in grid.asked) <= (judged + final) * len(OWNED)
    counts, sums = len(OWNED) * 3 * len(FIGURES) * 8, (len(OWNED) * 20 * 21 // 2 + 20 * len(NAMES)) * 8
    assert (square[0].bytes_up, square[1].bytes_up) == (sums + counts, counts)
    spent = result["tuning"]
    assert spent["bytes_up"] == sum(trial.bytes_up for trial in tried) < result["bytes_up"]
    assert spent["bytes_down"] == sum(trial.bytes_down for trial in tried) < result["bytes_down"]
    assert result["bytes_up"] < sum(grid.bytes_up.values())
    assert result["bytes_down"] < sum(grid.bytes_down.values())


@pytest.mark.long
@pytest.mark.parametrize("t", ["train.sums", "train.curvature"])
def test_a_stopped_search_goes_on(tmp_path: Path, whole: tuple[LocalGrid, Path], parties: Nodes, t: str) -> None:
    """In the first Newton step, which needs sums, and in one by products."""
    grid, folder = LocalGrid(parties), tmp_path / "run"

    def stop(message: Message) -> None:
        if message.metadata.message_type == t and sum(kind == t for _, kind, _ in grid.asked) > len(OWNED):
            raise Crash

    grid.before_push = stop
    with pytest.raises(Crash):
        run(grid, folder, ASKED)
    before = (folder / "tuning.jsonl").read_text(encoding="utf-8")
    assert read_settings(folder).tuning.search
    again = LocalGrid(renamed(parties))
    run(again, folder, AGAIN)
    assert (folder / "tuning.jsonl").read_text(encoding="utf-8").startswith(before) and before.count("\n") > 1
    assert not any(kind.startswith("query.l") for _, kind, _ in again.asked), "label sets are collected once"
    (result, tried), (expected, wanted) = read(folder), read(whole[1])
    assert [(trial.key, trial.metrics) for trial in tried] == [(trial.key, trial.metrics) for trial in wanted]
    assert result["metrics"] == expected["metrics"] and read_settings(folder) == read_settings(whole[1])


@pytest.mark.long
def test_the_final_training_goes_on_without_a_search(tmp_path: Path, parties: Nodes) -> None:
    grid, folder = LocalGrid(parties), tmp_path / "run"

    def stop(message: Message) -> None:
        if (folder / "checkpoint").exists() and message.metadata.message_type == RANK:
            raise Crash

    grid.before_push = stop
    with pytest.raises(Crash):
        run(grid, folder, ASKED)
    before = (folder / "tuning.jsonl").read_text(encoding="utf-8")
    again = LocalGrid(renamed(parties))
    run(again, folder, AGAIN)
    result, tried = read(folder)
    assert (folder / "tuning.jsonl").read_text(encoding="utf-8") == before
    assert [Trial.model_validate(trial) for trial in result["tuning"]["tried"]] == tried
    assert {kind for _, kind, _ in again.asked} <= {"query.hello", RANK, "evaluate.scores"}, "the round was saved"


def test_the_chosen_settings_train_on_all_records(
    tmp_path: Path, whole: tuple[LocalGrid, Path], parties: Nodes
) -> None:
    """Another run, with another run id: parties would not train on held-out records in the run that held them out."""
    asked = {key: value for key, value in ASKED.items() if key not in ("tune", "set")}
    asked |= {"settings": str(whole[1] / "config.toml"), "held-out-share": 0.0, "run-id": "all-records"}
    assert read_settings(whole[1]).selection.every == read_settings(whole[1]).rounds, "ranked once, at the end"
    run(LocalGrid(parties), tmp_path / "all", asked)
    chosen, final = read_settings(whole[1]), read_settings(tmp_path / "all")
    assert final == chosen and json.loads((tmp_path / "all" / "result.json").read_text())["rounds"] == chosen.rounds


@pytest.mark.long
def test_a_missing_party_stops_the_search(tmp_path: Path, parties: Nodes) -> None:
    grid, folder = LocalGrid(parties), tmp_path / "run"
    grid.tampering[55] = lambda asked, reply: None if asked.metadata.message_type == RANK else reply
    with pytest.raises(TooFew, match=r"from party 55 in 3 attempts.*needs every party"):
        run(grid, folder, ASKED)
    run(LocalGrid(parties), folder, AGAIN)
    assert read(folder)[0]["metrics"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.zeros((3, 7)), "label_weight = 0 is outside"),
        (np.full((3, 7), 2.0), "label_weight = 2 is outside"),
        (np.ones((0, 7)), "0 weights of each label"),
        (np.ones((17, 7)), "17 weights of each label"),
        (np.ones((3, 6)), "should be float64 any × 7"),
    ],
    ids=["zero", "above 1", "none", "too many", "too few"],
)
def test_weights_that_no_label_power_gives(tmp_path: Path, parties: Nodes, weights: np.ndarray, words: str) -> None:
    grid = LocalGrid(parties)

    def other_weights(message: Message) -> None:
        if message.metadata.message_type == RANK:
            message.content[WEIGHTS] = pack({WEIGHTS: weights})

    grid.before_push = other_weights
    with fails(TooFew):
        run(grid, tmp_path / "run", ASKED)
    assert {words in why for _, _, why in notes(tmp_path / "run")} == {True}


def test_weights_outside_a_search_are_refused(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)

    def with_weights(message: Message) -> None:
        if message.metadata.message_type == RANK:
            message.content[WEIGHTS] = pack({WEIGHTS: np.ones((1, 7))})

    grid.before_push = with_weights
    run(grid, tmp_path / "run", asked("fedalc-oneshot", LINEAR, **{"held-out-share": SHARE}))
    assert {"only a search may send" in why for _, _, why in notes(tmp_path / "run")} == {True}


def test_each_weighting_counts_as_a_ranking(tmp_path: Path, parties: Nodes) -> None:
    few = {node: config | {"allow": "rankings=2"} for node, config in parties.items()}
    with fails(TooFew):
        run(LocalGrid(few), tmp_path / "run", ASKED)
    assert "rankings = 3 is outside 1 to 2" in notes(tmp_path / "run")[0][2]


def test_hits_for_each_weighting_are_checked() -> None:
    most = np.full(6, 4.0)
    counts, gains = np.array([[1, 2, 3], [2, 2, 2]]), np.array([[1.0, 1.5, 2.0], [2.0, 2.0, 2.0]])
    found = read_hits(most, True, RecordDict({"hits": pack({"counts": counts, "gains": gains})}), weightings=2)
    assert found.tolist() == [[1, 2, 3, 1.0, 1.5, 2.0], [2, 2, 2, 2.0, 2.0, 2.0]]
    for wrong, number, words in ((counts, 3, "should be int64 3 × 3"), (counts * [[1], [3]], 2, "6 hits for P@1")):
        with pytest.raises(BadMessage, match=words):
            read_hits(most, True, RecordDict({"hits": pack({"counts": wrong, "gains": gains})}), weightings=number)


# --- what a party accepts ---


def ask(settings: fedalc.Experiment, began: fedalc.Experiment | None, party: dict[str, Any], state: RecordDict) -> str:
    """Say hello with these settings, and return why the party refuses; "" if it answers."""
    content = question(settings, SHARE, RUN_ID, "" if began is None else for_parties(began))
    LocalGrid({})
    message, _ = over_the_wire(Message(content, 7, "query.hello"))
    reply = client_app(message, Context(1, 7, party, state, {}))
    return str(reply.error.reason) if reply.has_error() else ""


@pytest.fixture
def began() -> fedalc.Experiment:
    return read_run_config(ASKED, 1)[1]


def trial(began: fedalc.Experiment, **changes: Any) -> fedalc.Experiment:
    return tuning.changed(began, {"method": "fedalc-exact"} | changes)


def test_a_party_counts_trials(began: fedalc.Experiment, parties: Nodes) -> None:
    state = RecordDict()
    for dim in range(2, 10):
        assert ask(trial(began, encoder={"dim": dim}), began, parties[7], state) == ""
    assert "trials = 9 is outside 1 to 8" in ask(trial(began, encoder={"dim": 10}), began, parties[7], state)
    assert ask(trial(began, encoder={"dim": 3}), began, parties[7], state) == "", "known already"
    assert "trials = 1 is outside 1 to 0" in ask(began, began, parties[7] | {"allow": "trials=0"}, RecordDict())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 3}, "a search that changes seed"),
        ({"client": {"set_size": "expected"}}, "a search that changes client.set_size"),
        ({"method": "fedavg-fixed"}, "a search with method = 'fedavg-fixed'"),
        ({"encoder": {"constant": 5.0}}, "a search with encoder.constant = 5.0"),
        ({"client": {"loss": "softmax"}, "server": {"optimizer": "sgd"}}, "a search with client.loss = 'softmax'"),
    ],
    ids=str,
)
def test_a_party_refuses_other_trials(
    began: fedalc.Experiment, parties: Nodes, changes: dict[str, Any], words: str
) -> None:
    tried = began.model_copy(update=changes) if "method" in changes else trial(began, **changes)
    assert words in ask(tried, began, parties[7], RecordDict())


def test_a_run_does_not_become_a_search(began: fedalc.Experiment, parties: Nodes) -> None:
    plain = began.model_copy(update={"tuning": type(began.tuning)()})
    for first, then in ((None, began), (began, None)):
        state = RecordDict()
        assert ask(plain, first, parties[7], state) == ""
        assert "was used with other settings before" in ask(plain, then, parties[7], state)
    state = RecordDict()
    assert ask(began, began, parties[7], state) == ""
    other = trial(began, seed=5)
    assert "was used with other settings before" in ask(other, other, parties[7], state)


def test_a_party_that_embeds_instances_takes_no_part(began: fedalc.Experiment, parties: Nodes) -> None:
    assert "is a search" in ask(began, began, parties[7] | {"identity": "embedding"}, RecordDict())


def test_the_task_of_a_search_names_its_settings(began: fedalc.Experiment) -> None:
    record = question(began, SHARE, RUN_ID)["task"]
    assert isinstance(record, ConfigRecord) and record[SEARCH] == record["settings"]


# --- the command ---


def test_without_tune_nothing_changes() -> None:
    for config in ({}, {"tune": False}):
        assert read_run_config(config, 1)[1].method == "fedalc" and not read_run_config(config, 1)[1].tuning.search


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"held-out-share": 0.0}, "held-out-share above 0"),
        ({"rank-held-out": "off"}, "parties that rank labels"),
        ({"held-out": "demo"}, "leave out --held-out"),
        ({"num-server-rounds": 5}, "rounds: the search chooses it"),
        ({"method": "fedavg"}, "chooses settings of fedalc-exact"),
        ({"method": "fedalc-exact", "set": "selection.metric=mAP"}, "P@k or nDCG@k"),
    ],
    ids=str,
)
def test_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_run_config(ASKED | config, 1)


def test_without_set_sizes_p_at_k_chooses() -> None:
    config = ASKED | {"method": "fedalc-exact", "set": 'client.set_size="expected"'}
    assert read_run_config(config, 1)[1].selection.metric == "P@5"
