"""Plans, and running them: in parallel, with cells that fail or are locked, stopped and taken up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedalc.errors import ConfigError, Locked
from fedalc.reproduction import outcome, text
from fedalc.reproduction.plan import Plan, make_plan, refuse_strange
from fedalc.reproduction.runner import Ended, run_jobs
from fedalc.reproduction.tables import read_table
from fedalc.runs import only_writer
from tests.reproduction.problems import TINY, write_data, write_table
from tests.test_cli import run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a cell that diverges, data, and a run of all of it that finds one cell locked."""
    folder = tmp_path_factory.mktemp("reproduce")
    write_table(folder / "small", paper_fedalc_lambda_10="server.learning_rate = 1e30")
    write_data(folder / "data")
    return folder


def plan_of(place: Path, rounds: int = 2, **keys: object) -> Plan:
    keys = {"presets": ("paper", "strong"), "seeds": [0]} | keys
    settings = {"rounds": rounds, "dataset": str(place / "data")}
    return make_plan(read_table(place / "small"), place / "out", keys=settings, overrides=TINY, **keys)  # type: ignore[arg-type]


def test_the_plan_has_every_cell_first_seeds_first_and_oracles_once(place: Path) -> None:
    names = [job.name for job in plan_of(place, seeds=None).jobs]
    assert len(names) == 8 + 7 and names[0] == "oracles/oracle-s0"
    assert [name[-1] for name in names] == ["0"] * 8 + ["1"] * 7
    assert "oracles/oracle-s1" not in names
    assert plan_of(place).jobs[1].folder == place / "out" / "small" / "paper" / "fedavg-s0"


def test_only_and_presets_choose(place: Path) -> None:
    def names(**keys: object) -> list[str]:
        return [job.name for job in plan_of(place, **keys).asked]

    assert names(only=["paper/fedalc*"]) == ["paper/fedalc-lambda-1-s0", "paper/fedalc-lambda-10-s0"]
    assert names(only=["fedavg", "oracles/*"]) == ["oracles/oracle-s0", "paper/fedavg-s0", "strong/fedavg-s0"]
    assert {name.split("/")[0] for name in names(presets=["strong"])} == {"oracles", "strong"}
    with pytest.raises(ConfigError, match="no cell of small is called 'fedprox'"):
        plan_of(place, only=["fedavg", "fedprox"])


def test_what_the_settings_do_not_allow_is_left_out_with_the_reason(place: Path) -> None:
    settings = {"regularizer": {"form": "full", "margin": "adaptive"}}
    plan = make_plan(read_table(place / "small"), place / "out", presets=["paper"], keys=settings)
    assert not plan.jobs and "adaptive margin" in plan.left_out["paper/fedalc-lambda-1"]
    with pytest.raises(ConfigError, match="--seeds"):
        make_plan(read_table(place / "small"), place / "out", presets=["paper"], overrides=["seed=3"])


def test_two_workers_a_failure_and_a_locked_cell(place: Path) -> None:
    plan = plan_of(place, only=["oracle", "fedavg", "paper/fedalc-lambda-10"])
    locked = plan.folder / "strong" / "fedavg-s0"
    with only_writer(locked):
        ended = run_jobs(plan.asked, workers=2, threads=1)
    assert ended.elsewhere.keys() == {"strong/fedavg-s0"} and not ended.stopped
    assert ended.failed.keys() == {"paper/fedalc-lambda-10-s0"}
    assert "diverged" in ended.failed["paper/fedalc-lambda-10-s0"]
    assert set(ended.done) == {"oracles/oracle-s0", "paper/fedavg-s0"}
    assert [job.state for job in plan.asked] == ["done", "done", "new", "failed"]
    found = outcome.collect(plan_of(place), "the command", ended)
    written = text.markdown(found)
    assert "– failed" in written and "fedalc, λ = 10 paper seed 0: failed: training diverged" in written
    assert "– another process is at it" in written
    assert found.lines[0].cells["paper"].results == found.lines[0].cells["strong"].results != []
    assert found.lines[1].cells["paper"].results[0].cost["rounds"] == 2
    assert plan.asked[2].state == "new"  # it can be had as soon as the other process is gone


def test_a_run_that_failed_before_it_had_a_folder_is_told_too(place: Path) -> None:
    ended = Ended(failed={"strong/fedalc-s0": "device: cannot use 'cuda'"})
    found = outcome.collect(plan_of(place), "the command", ended)
    assert found.lines[-1].cells["strong"].missing == {0: "failed: device: cannot use 'cuda'"}


def test_another_setting_is_refused_by_name_before_anything_starts(place: Path) -> None:
    folder = place / "out" / "small" / "paper" / "fedavg-s0"
    folder.mkdir(parents=True, exist_ok=True)
    settings = next(job.settings for job in plan_of(place).jobs if job.folder == folder)
    (folder / "config.toml").write_text(settings.to_toml())
    plan = plan_of(place, rounds=3, only=["paper/fedavg"])
    assert plan.strange["paper/fedavg-s0"] == "rounds 2 there, 3 here"
    with pytest.raises(ConfigError, match=r"paper/fedavg-s0 was made with other settings: rounds 2 there, 3 here"):
        refuse_strange(plan)
    assert "– other settings" in text.markdown(outcome.collect(plan, "c"))
    elsewhere = settings.model_copy(update={"name": "x", "device": "cuda"})  # where it ran, not what
    (folder / "config.toml").write_text(elsewhere.to_toml())
    refuse_strange(plan_of(place, only=["paper/fedavg"]))
    (folder / "config.toml").write_text(settings.to_toml())


def test_stopped_killed_and_taken_up_again(place: Path) -> None:
    """Three starts of one command: its parent is killed, then it is stopped with Ctrl-C, then it finishes."""
    arguments = ["reproduce", "small", "--dataset", "data", "--only", "strong/fedavg", "--seeds", "0"]
    arguments += ["--out", "again", "--rounds", "1000", "--presets", "strong"]
    arguments += [part for setting in (*TINY[:-2], "selection.every=100") for part in ("--set", setting)]
    arguments += ["--set", "selection.patience=none"]
    folder = place / "again" / "small" / "strong" / "fedavg-s0"

    def start() -> subprocess.Popen[str]:
        environment = {**os.environ, "FEDALC_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "fedalc.cli", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=place, env=environment, text=True, **pipes)
        before = lines(folder)
        wait_for(lambda: lines(folder) > before)
        return process

    process = start()
    process.kill()
    process.communicate()
    wait_for(lambda: unlocked(folder))  # the orphan has saved and ended
    saved = saved_round(folder)
    assert 0 < saved < 1000

    process = start()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "0 of 1 runs finished; go on with: the same command again" in error and "Traceback" not in error
    assert "stopping: 1 run finishes its round" in out and "– not finished" in out
    assert saved_round(folder) > saved

    done = run(*arguments, cwd=place).stdout
    assert "[1/1]" in done and (folder / "result.json").exists()
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    numbers = [record["round"] for record in records if record["phase"] == "select"]
    assert numbers == list(range(100, 1001, 100))


def lines(folder: Path) -> int:
    file = folder / "history.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def saved_round(folder: Path) -> int:
    facts = json.loads((folder / "checkpoint" / "facts.json").read_text())
    return int(facts["federated"]["round"])


def unlocked(folder: Path) -> bool:
    try:
        with only_writer(folder):
            return True
    except Locked:
        return False


def wait_for(what: object) -> None:
    deadline = time.monotonic() + 120  # on a busy machine
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
