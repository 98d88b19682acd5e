"""A real deployment on 127.0.0.1: TLS, node authentication, and failures.

All tests share one server and three parties. They build on each other and run in order; each step is a test, so that
a failure shows where.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fedalc.data.dataset import Dataset
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.deployment.demo import pairs
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower_programs import APP
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels
from fedalc.deployment.processes import Process
from fedalc.deployment.twin import model_in_one_process
from fedalc.models.trained import TrainedModel
from fedalc.runs.folder import read_settings

pytestmark = pytest.mark.deployment

PARTIES = ("north", "south", "east")
ROUNDS = 6  # so many that a run is still in progress when a test has read its first lines
PATIENCE = 240.0  # seconds for anything, on a machine that does other things too


@pytest.fixture(scope="module")
def data() -> Dataset:
    return make_demo(DemoSize(train=400, test=50, words=300))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> Iterator[LocalDeployment]:
    """Every path has blanks and quotes in it."""
    folder = tmp_path_factory.mktemp("deployment") / 'it\'s a "place"'
    folder.mkdir()
    poison = {
        "FEDALC_TEST_POISON": str(folder / "poison"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "poison"), os.environ.get("PYTHONPATH", "")]),
    }
    with LocalDeployment(folder) as local:
        local.start_server()
        for name, (held, names) in zip(PARTIES, split_by_labels(data.train, data.label_names, 3), strict=True):
            local.add_party(name, held, names)
            local.start_party(name, environment=poison if name == "east" else None, wait=False)
        yield local
    assert not local.processes


def wait_until(found: Callable[[], bool], process: Process) -> None:
    process.wait_for(found, PATIENCE, "there yet")


def options(folder: Path, *more: str) -> list[str]:
    words = ["--out", str(folder / "runs"), "--method", "fedalc", "--rounds", str(ROUNDS), "--parties", "3"]
    return [*words, "--set", "dtype=float64", "--held-out-share", "0", *more]


def notes(run_folder: Path) -> list[dict[str, object]]:
    """Return who was left out."""
    if not (run_folder / "parties.jsonl").exists():
        return []
    return [json.loads(line) for line in (run_folder / "parties.jsonl").read_text().splitlines()]


def test_a_party_that_is_not_registered_is_refused(deployment: LocalDeployment, data: Dataset) -> None:
    held, names = split_by_labels(data.train, data.label_names, 3)[0]
    deployment.add_party("stranger", held, names, register=False)
    process = deployment.start_party("stranger", "--patience", "0", wait=False)
    assert run_to_its_end(process, lambda line: None, PATIENCE) == 2
    assert "its node key is not registered" in process.said()
    for party in PARTIES:
        deployment.wait_connected(party)
    status = deployment.state.flower.nodes()
    assert [status[deployment.state.parties()[party]] for party in PARTIES] == ["online"] * 3


def test_a_stopped_server_goes_on_where_it_was(deployment: LocalDeployment, data: Dataset) -> None:
    """Kill it after the first round with all its processes, and restart: the result is that of an undisturbed run."""
    run_folder = deployment.folder / "runs" / "stopped"
    run = deployment.start_run(*options(deployment.folder), "--name", "stopped")
    wait_until(lambda: f"round 1 of {ROUNDS}" in run.said(), run)
    assert deployment.server is not None
    running = deployment.server.family()
    assert len(running) >= 4, "the command, the SuperLink, its SuperExec and the ServerApp"
    deployment.server.kill()
    assert not deployment.server.family()
    assert run_to_its_end(run, lambda line: None, PATIENCE) == 2
    assert "--resume" in run.said()
    deployment.start_server()
    again = deployment.start_run("--resume", str(run_folder))
    assert run_to_its_end(again, lambda line: None, PATIENCE) == 0, again.said()
    assert "continuing after round" in again.said()
    settings = read_settings(run_folder)
    assert settings.rounds == ROUNDS
    census = Census.load(run_folder)
    assert census is not None
    expected = model_in_one_process(
        settings, data.train, data.label_names, deployment.key, census.run, census.roster.owner
    )
    for name, ours, theirs in pairs(TrainedModel.load(run_folder / "model").model, expected):
        difference = (ours - theirs).abs().max().item()
        assert difference <= 1e-9 * theirs.abs().max().item(), name
    assert notes(run_folder) == []


def test_a_dead_party_and_a_poisoned_reply_are_left_out(deployment: LocalDeployment) -> None:
    """`east` answers NaN in round 1; `north` is killed after it. The others finish, and it comes back by itself."""
    run_folder = deployment.folder / "runs" / "faults"
    (deployment.folder / "poison").write_text("1")
    more = ["--min-parties", "1", "--round-timeout", "40"]
    run = deployment.start_run(*options(deployment.folder), *more, "--name", "faults")
    wait_until(lambda: f"round 1 of {ROUNDS}" in run.said(), run)
    deployment.parties["north"].kill()
    assert run_to_its_end(run, lambda line: None, PATIENCE) == 0, run.said()
    left_out = {(note["round"], note["party"]): str(note["why"]) for note in notes(run_folder)}
    assert [at for at, name in left_out if name == "east"] == [1], left_out
    assert "north" in {name for _, name in left_out} and "south" not in {name for _, name in left_out}, left_out
    assert "finite" in left_out[1, "east"].lower() or "nan" in left_out[1, "east"].lower()
    model = TrainedModel.load(run_folder / "model").model
    assert all(parameter.isfinite().all() for parameter in (*model.theta, model.W))
    result = json.loads((run_folder / "result.json").read_text())
    assert result["rounds"] == ROUNDS


def test_a_killed_party_comes_back(deployment: LocalDeployment) -> None:
    """For a minute the server believes that the party is still connected, and refuses it."""
    deployment.start_party("north")
    status = deployment.state.flower.nodes()
    assert status[deployment.state.parties()["north"]] == "online"


def test_code_that_the_server_brings_is_refused(deployment: LocalDeployment, tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(APP, app)
    (app / "extra.py").write_text("")
    run = deployment.start_run(*options(deployment.folder), "--name", "foreign", "--app", str(app))
    south = deployment.parties["south"]
    wait_until(lambda: "refused: the server sent an app" in south.said(), run)
    assert "'extra.py'" in south.said()
    run.end()
    assert south.alive


def test_everything_ends(deployment: LocalDeployment) -> None:
    before = deployment.processes
    assert len(before) > 9
    deployment.close()
    until = time.monotonic() + 5
    while running(before) and time.monotonic() < until:
        time.sleep(0.1)
    assert not deployment.processes
    assert not running(before)


def running(pids: set[int]) -> set[int]:
    """Excluding zombies."""
    return {process.pid for process in psutil.process_iter() if process.pid in pids and process.status() != "zombie"}
