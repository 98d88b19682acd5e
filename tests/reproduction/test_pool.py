"""Plans and running them: in parallel, with failing or locked cells, stopped and resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedalc.errors import ConfigError, FedalcError, Locked
from fedalc.reproduction import pool as runner
from fedalc.reproduction import results as outcome
from fedalc.reproduction import table_text as text
from fedalc.reproduction.plan import Ended, Job, Plan, make_plan, refuse_strange
from fedalc.reproduction.pool import Watcher, run_jobs
from fedalc.reproduction.table_spec import read_table
from fedalc.reproduction.worker import _follower
from fedalc.reproduction.writing import alone_in
from fedalc.runs.folder import only_writer
from tests.commands import run
from tests.reproduction.problems import TINY, write_data, write_table


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a table with a diverging cell, data, and a full run that finds one cell locked."""
    folder = tmp_path_factory.mktemp("reproduce")
    write_table(folder / "small", paper_fedalc_lambda_10="server.learning_rate = 1e30")
    write_data(folder / "data")
    return folder


def plan_of(place: Path, rounds: int = 2, **keys: object) -> Plan:
    keys = {"presets": ("paper", "strong"), "seeds": [0]} | keys
    settings = {"rounds": rounds, "dataset": str(place / "data")}
    return make_plan(read_table(place / "small"), place / "out", keys=settings, overrides=TINY, **keys)  # type: ignore[arg-type]


def test_the_plan_has_every_cell_first_seeds_first_and_oracles_for_both_columns_once(place: Path) -> None:
    names = [job.name for job in plan_of(place, seeds=None).jobs]
    assert len(names) == 8 + 8 and names[0] == "oracles/oracle-s0"
    assert [name[-1] for name in names] == ["0"] * 8 + ["1"] * 8
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


@pytest.mark.long
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
    assert "– another process runs it" in written
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


@pytest.mark.long
def test_stopped_killed_and_taken_up_again(place: Path) -> None:
    """Start one command three times: its parent is killed, then it is stopped with Ctrl-C, then it finishes."""
    arguments = ["reproduce", "small", "--dataset", "data", "--only", "strong/fedavg", "--seeds", "0"]
    arguments += ["--out", "again", "--rounds", "1000", "--presets", "strong"]
    arguments += [part for setting in (*TINY[:-2], "selection.every=100") for part in ("--set", setting)]
    arguments += ["--set", "selection.patience=none"]
    folder = place / "again" / "small" / "strong" / "fedavg-s0"

    def start() -> subprocess.Popen[str]:
        environment = {**os.environ, "FEDALC_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "fedalc", *arguments]
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
    assert "0 of 1 runs finished; run the same command to continue" in error and "Traceback" not in error
    assert "stopping: 1 run finishes its round" in out and "– not finished" in out
    assert saved_round(folder) > saved

    done = run(*arguments, cwd=place).stdout
    assert "[1/1]" in done and (folder / "result.json").exists()
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    numbers = [record["round"] for record in records if record["phase"] == "select"]
    assert numbers == list(range(100, 1001, 100))


@pytest.mark.parametrize("written", ["[1, 2]", "{}", '{"seed": 0}', '{"seed": "a", "metrics": {}}', "null", "{"])
def test_what_is_no_result_is_named(written: str, tmp_path: Path, place: Path) -> None:
    settings = plan_of(place).jobs[0].settings
    (tmp_path / "result.json").write_text(written)
    with pytest.raises(FedalcError, match=r"result\.json: .*remove the folder"):
        Job("paper", "fedavg", settings, tmp_path).result()


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        ({"paper_fedavg": 'method = "fedaws"'}, {}, r"paper/fedavg\.toml: method is fedaws .* fedavg in row 'FedAvg'"),
        (
            {"strong_fedalc_lambda_1": "regularizer.lambda = 2"},
            {},
            r"λ is 2\.0 .* 1\.0 in row 'FedALC' of .*toml",
        ),
        ({}, {"regularizer": {"lambda": 3}}, r"fedalc-lambda-1\.toml: λ is 3\.0 with these settings"),
        ({}, {"method": "flag"}, "method is flag with these settings"),
    ],
)
def test_a_row_and_its_cell_agree(files: dict[str, str], settings: Any, message: str, tmp_path: Path) -> None:
    folder = write_table(tmp_path / "small")
    for name, line in files.items():
        preset, _, cell = name.partition("_")
        file = folder / preset / f"{cell.replace('_', '-')}.toml"
        kept = [old for old in file.read_text().splitlines() if old.split(" = ")[0] != line.split(" = ")[0]]
        file.write_text("\n".join([line, *kept]))
    with pytest.raises(ConfigError, match=message):
        make_plan(read_table(folder), tmp_path / "out", presets=["paper", "strong"], keys=settings)


def test_rounds_and_the_steps_of_oracles_are_passed_on() -> None:
    sent: list[Any] = []
    follower = _follower(SimpleNamespace(send=sent.append))  # type: ignore[arg-type]
    follower.phase("fit", 9, 0)
    follower.step(3, "learner 1 of 2")
    follower.round(4, 0.5)  # too soon after the last
    assert sent == [("phase", ("fit", 9, 0)), ("round", 3)]


def test_a_worker_has_its_number_of_threads_from_its_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    worker = runner._start(3, None)
    try:
        file = Path(f"/proc/{worker.process.pid}/environ")
        if not file.exists():
            pytest.skip("needs /proc")
        wait_for(file.read_bytes)  # it is empty while the process is being made
        began_with = file.read_bytes().split(b"\0")
    finally:
        worker.process.kill()
        worker.process.join()
    assert {b"OMP_NUM_THREADS=3", b"OPENBLAS_NUM_THREADS=3", b"MKL_NUM_THREADS=3"} <= {*began_with}
    assert os.environ["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in os.environ


class FakeProcess:
    def __init__(self, alive: bool) -> None:
        self.alive, self.exitcode = alive, None if alive else 1

    def is_alive(self) -> bool:
        return self.alive

    def join(self) -> None: ...


def test_a_job_is_not_given_to_a_worker_that_died_idle(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dead, _), (ours, theirs) = multiprocessing.Pipe(), multiprocessing.Pipe()
    fresh = runner._Worker(FakeProcess(alive=True), ours)
    pool = [runner._Worker(FakeProcess(alive=False), dead)]
    monkeypatch.setattr(runner, "_start", lambda threads, data_dir: fresh)
    job = plan_of(place).jobs[0]
    runner._give(job, pool, 1, None, Watcher())
    assert pool == [fresh] and fresh.job == job and theirs.recv() == job


def test_a_message_that_is_cut_off_is_a_death(place: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    os.write(theirs.fileno(), b"\0\0\0\x09abc")  # nine bytes are announced
    theirs.close()
    job, ended = plan_of(place).jobs[0], Ended()
    pool = [runner._Worker(FakeProcess(alive=False), ours, job)]
    runner._listen(pool, ended, Watcher())
    assert not pool and ended.failed == {job.name: "its process ended with exit code 1"}


def test_tables_are_written_one_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with alone_in(tmp_path / "table"):
            order.append("second")

    other = threading.Thread(target=second)
    with alone_in(tmp_path / "table"):
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"] and not list((tmp_path / "table").iterdir())


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
