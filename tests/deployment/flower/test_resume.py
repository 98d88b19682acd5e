"""A stopped run continues: no finished round is lost, and the result is identical to the last bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from safetensors.torch import load_file, save_file

from fedalc.deployment.flower import take_census as taking
from fedalc.deployment.flower.connections import TooFew
from fedalc.errors import FedalcError, Locked
from fedalc.models.model import Model
from fedalc.runs.folder import Taken, only_writer
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, SETTINGS, Nodes, asked, fails, in_round, notes, run

EVALUATING = {"held-out-share": 0.2}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fedalc": ("fedalc", SETTINGS, {}),
    "fedaws, momentum, evaluated at parties": ("fedaws", SETTINGS | {"selection.every": 1}, EVALUATING),
    "fedaws, adam": ("fedaws", SETTINGS | {"server.optimizer": "adam", "server.ema": 0.5}, {}),
    "fedalc-exact, cg": ("fedalc-exact", LINEAR | {"server.optimizer": "cg", "client.label_power": 0.3}, {}),
    "fedalc, noised counts": (
        "fedalc",
        SETTINGS | {"privacy.mechanism": "counts", "privacy.epsilon": 1.0, "privacy.noise": "seeded"},
        {},
    ),
}


class Crash(Exception):
    """Raised by the grid, as if the SuperLink had stopped."""


def crash_in(grid: LocalGrid, kind: str, t: int, after: int = 2) -> None:
    """Crash once this many parties have been asked."""
    seen: list[int] = []

    def before(message: Message) -> None:
        if (message.metadata.message_type, message.metadata.group_id) == (kind, str(t)):
            seen.append(1)
            if len(seen) > after:
                raise Crash

    grid.before_push = before


def renamed(parties: Nodes) -> Nodes:
    """Return the same parties with other node ids, in another order."""
    return {1000 - node: config for node, config in reversed(parties.items())}


def assert_bit_for_bit(found: Model, wanted: Model) -> None:
    for ours, theirs in zip([*found.theta, found.W], [*wanted.theta, wanted.W], strict=True):
        assert torch.equal(ours, theirs)


def without_time(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("crashes", [True, False])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, parties: Nodes, case: str, crashes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by a crash in mid-round, or because too few parties are left."""
    method, settings, more = CASES[case]
    whole = run(LocalGrid(parties), tmp_path / "whole", asked(method, settings, **more))
    grid, folder = LocalGrid(parties), tmp_path / "stopped"
    if crashes:
        crash_in(grid, "train", 3)
    else:
        for node in (101, 7, 55):
            grid.tampering[node] = lambda m, reply: None if m.metadata.group_id == "3" else reply
    with pytest.raises(Crash if crashes else TooFew):
        run(grid, folder, asked(method, settings, **more))
    assert json.loads((folder / "checkpoint" / "facts.json").read_text())["federated"]["round"] == 2
    monkeypatch.setattr(taking, "protected", None)  # noise that was drawn is not drawn again
    again = LocalGrid(renamed(parties))
    resumed = run(again, folder, {"resume": True, "wait": 5.0, "round-timeout": 5.0, "num-parties": 4})
    assert_bit_for_bit(resumed.model, whole.model)
    assert {group for _, kind, group in again.asked if kind == "train"} == {"3"}
    assert without_time(folder) == without_time(tmp_path / "whole")
    results = [json.loads((place / "result.json").read_text()) for place in (folder, tmp_path / "whole")]
    for key in ("metrics", "privacy", "bytes_up", "bytes_down", "rounds", "collection"):
        assert results[0][key] == results[1][key]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["evaluate", "train"])
def test_a_crash_before_a_rounds_evaluation_loses_nothing(tmp_path: Path, parties: Nodes, kind: str) -> None:
    grid, folder = LocalGrid(parties), tmp_path / "run"
    crash_in(grid, kind, 2, after=0)
    settings = SETTINGS | {"selection.every": 1}
    with pytest.raises(Crash):
        run(grid, folder, asked("fedaws", settings, **EVALUATING))
    facts = json.loads((folder / "checkpoint" / "facts.json").read_text())
    assert facts["federated"]["round"] == (2 if kind == "evaluate" else 1)
    run(LocalGrid(renamed(parties)), folder, asked("fedaws", settings, **EVALUATING, resume=True))
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3]
    assert all(record["loss"] > 0 and record["metrics"] for record in records)


@pytest.mark.long
@pytest.mark.parametrize("t", [2, 3, 4])
def test_a_newton_step_goes_on_after_a_stop(tmp_path: Path, parties: Nodes, t: int) -> None:
    """Within a step, whose direction is in the checkpoint, and between two."""
    newton = {"client.loss": "squared-hinge", "server.optimizer": "newton", "server.newton_rounds": 2}
    asking = asked("fedalc-exact", LINEAR | newton, **{"num-server-rounds": 5})
    whole = run(LocalGrid(parties), tmp_path / "whole", asking)
    grid, folder = LocalGrid(parties), tmp_path / "stopped"
    crash_in(grid, "train" if t == 4 else "train.curvature", t)
    with pytest.raises(Crash):
        run(grid, folder, asking)
    again = {"resume": True, "wait": 5.0, "round-timeout": 5.0, "num-parties": 4}
    assert_bit_for_bit(run(LocalGrid(renamed(parties)), folder, again).model, whole.model)


def test_nobody_left_to_evaluate_ends_no_run(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    grid.script = {4: {}}  # census and three rounds have had their look
    run(grid, tmp_path / "run", asked("fedavg", SETTINGS, **EVALUATING))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"] == {}


def test_stopped_before_its_first_round(tmp_path: Path, parties: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(LocalGrid(parties), tmp_path / "whole", asked("fedalc", SETTINGS))
    grid, folder = LocalGrid(parties), tmp_path / "run"
    crash_in(grid, "train", 1, after=0)
    with pytest.raises(Crash):
        run(grid, folder, asked("fedalc", SETTINGS))
    monkeypatch.setattr(taking, "join", None)  # label sets are not collected again
    resumed = run(LocalGrid(renamed(parties)), folder, asked("fedalc", SETTINGS, resume=True))
    assert_bit_for_bit(resumed.model, whole.model)


@pytest.mark.long
def test_stopped_before_its_census_was_saved(tmp_path: Path, parties: Nodes) -> None:
    whole = run(LocalGrid(parties), tmp_path / "whole", asked("fedalc", SETTINGS))
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(tmp_path / "whole" / "config.toml", folder)
    resumed = run(LocalGrid(parties), folder, asked("fedalc", SETTINGS, resume=True))
    assert_bit_for_bit(resumed.model, whole.model)


@pytest.mark.few(1)
@pytest.mark.parametrize("of_earlier_version", [False, True])
def test_the_usual_length_of_changes_outlives_a_stop(tmp_path: Path, parties: Nodes, of_earlier_version: bool) -> None:
    grid, folder = LocalGrid(parties), tmp_path / "run"
    crash_in(grid, "train", 2, after=0)
    with pytest.raises(Crash):
        run(grid, folder, asked("fedavg", SETTINGS))
    (state,) = (folder / "checkpoint").glob("*.safetensors")
    saved = load_file(state)
    (length,) = (name for name in saved if name.endswith("lengths.largest"))
    assert saved[length] > 0
    if of_earlier_version:
        facts = folder / "checkpoint" / "facts.json"
        said = json.loads(facts.read_text())
        said["federated"]["usual_length"] = 1e-9
        facts.write_text(json.dumps(said))
        saved = {name: tensor for name, tensor in saved.items() if name != length and "answers." not in name}
    else:
        saved[length].fill_(1e-9)
    save_file(saved, state)
    (folder / "checkpoint" / "SHA256SUMS").unlink()
    with fails(TooFew):  # so much longer than usual are they all
        run(LocalGrid(parties), folder, {"resume": True, "wait": 1.0, "round-timeout": 1.0, "num-parties": 4})
    assert "credible" in notes(folder)[-1][2]


def test_a_change_that_was_sent_before_the_stop_is_refused_after_it(tmp_path: Path, parties: Nodes) -> None:
    grid, folder = LocalGrid(parties), tmp_path / "run"
    sent: list[RecordDict] = []

    def keep(message: Message, reply: Message) -> Message:
        sent.append(RecordDict(dict(reply.content)))
        return reply

    def send_again(message: Message, reply: Message) -> Message:
        return Message(RecordDict({**sent[0], "answer": reply.content["answer"]}), reply_to=message)

    grid.tampering[7] = in_round(1, keep)
    crash_in(grid, "train", 2, after=0)
    with pytest.raises(Crash):
        run(grid, folder, asked("fedavg", SETTINGS))
    again = LocalGrid(parties)
    again.tampering[7] = in_round(2, send_again)
    run(again, folder, asked("fedavg", SETTINGS, resume=True))
    assert notes(folder) == [(2, "party 7", "its change is the one that it sent in an earlier round")]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, parties: Nodes) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "run"
    grid = LocalGrid(parties)
    crash_in(grid, "train", 2, after=0)
    with pytest.raises(Crash):
        run(grid, folder, asked("fedalc", SETTINGS))
    return folder


@pytest.fixture
def stopped(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "stopped"))


def resume(folder: Path, parties: Nodes, **more: Any) -> None:
    run(LocalGrid(parties), folder, {"resume": True, "wait": 1.0, "round-timeout": 2.0, "num-parties": 4, **more})


def test_a_finished_run_is_not_resumed(stopped: Path, parties: Nodes) -> None:
    resume(stopped, parties)
    with pytest.raises(Taken, match="finished"):
        resume(stopped, parties)


def test_a_new_run_does_not_write_over_another(stopped: Path, parties: Nodes) -> None:
    with pytest.raises(Taken, match="already"):
        run(LocalGrid(parties), stopped, asked("fedalc", SETTINGS))


def test_what_is_no_run_is_not_resumed(tmp_path: Path, parties: Nodes) -> None:
    with pytest.raises(FedalcError, match="not a run folder"):
        resume(tmp_path, parties)


def test_settings_that_were_altered_do_not_fit(stopped: Path, parties: Nodes) -> None:
    config = stopped / "config.toml"
    config.write_text(config.read_text().replace("embedding = 5", "embedding = 4"))
    with pytest.raises(FedalcError, match=r"config\.toml was edited .* encoder\.embedding was 5 and is 4"):
        resume(stopped, parties)


def test_more_parties_than_the_run_has_cannot_be_asked_for(stopped: Path, parties: Nodes) -> None:
    with pytest.raises(TooFew, match=r"4 parties .* at least 5"):
        resume(stopped, parties, **{"num-parties": 5, "min-parties": 5})


@pytest.mark.parametrize("part", ["census", "checkpoint"])
@pytest.mark.parametrize("damage", ["truncated", "not JSON", "a fact missing", "no facts", "a tensor less"])
def test_damage_is_said_to_be_damage(stopped: Path, parties: Nodes, part: str, damage: str) -> None:
    folder = stopped / part
    shutil.rmtree(stopped / "checkpoint.old")
    tensors, facts = folder / "tensors.safetensors", folder / "facts.json"
    if damage == "truncated":
        tensors.write_bytes(tensors.read_bytes()[:-9])
    elif damage == "not JSON":
        facts.write_text("{")
    elif damage == "a fact missing":
        facts.write_text("{}")
    elif damage == "no facts":
        facts.unlink()
    else:
        kept = {k: v for k, v in load_file(tensors).items() if k not in ("W", "roster.owner")}
        save_file(kept, tensors)
    with pytest.raises(FedalcError, match=r"damaged|missing|other data"):
        resume(stopped, parties)


def test_a_census_that_is_gone_cannot_be_taken_again(stopped: Path, parties: Nodes) -> None:
    shutil.rmtree(stopped / "census")
    with pytest.raises(FedalcError, match="census: is missing"):
        resume(stopped, parties)


def test_a_resumed_run_keeps_its_held_out_share(tmp_path: Path, parties: Nodes) -> None:
    grid, folder = LocalGrid(parties), tmp_path / "run"
    crash_in(grid, "train", 2, after=0)
    with pytest.raises(Crash):
        run(grid, folder, asked("fedavg", SETTINGS, **EVALUATING))
    again = LocalGrid(parties)
    again.keeps = True
    run(again, folder, {"resume": True, "wait": 1.0, "round-timeout": 2.0, "num-parties": 4, "held-out-share": 0.5})
    assert {message.content["task"]["share"] for message in again.pushed} == {0.2}


def test_two_servers_do_not_write_to_one_folder(stopped: Path, parties: Nodes) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    grid = LocalGrid(parties)
    with only_writer(stopped), pytest.raises(Locked):
        run(grid, stopped, {"resume": True, "wait": 1.0, "round-timeout": 2.0, "num-parties": 4})
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before
    assert not grid.asked


def test_the_second_of_two_new_runs_is_refused_also_in_mid_census(tmp_path: Path, parties: Nodes) -> None:
    """Another run began there during its census: it writes nothing, not even who was left out."""
    grid, folder = LocalGrid(parties), tmp_path / "run"
    grid.nodes[1] = {"data": "/nowhere"}

    def other_begins(message: Message) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text("")

    grid.before_push = other_begins
    with fails(FedalcError):
        run(grid, folder, asked("fedavg", SETTINGS))
    assert [path.name for path in folder.iterdir()] == ["config.toml"]
