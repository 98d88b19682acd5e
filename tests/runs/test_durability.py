"""Run folders survive damage: flipped bits, full disks, edited settings, kills and power cuts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedalc
from fedalc.cli.app import app
from fedalc.core import atomic_files as files
from fedalc.core.tensor_folder import FACTS, SUMS, TENSORS, Damaged, load_folder
from fedalc.deployment.server import Server
from fedalc.deployment.state import ServerState
from fedalc.errors import ConfigError, FedalcError, Interrupted, Locked
from fedalc.runs import history
from fedalc.runs.folder import only_writer
from fedalc.training.base import Callback
from fedalc.training.selection import Training
from fedalc.workflows.load_model import load_model
from fedalc.workflows.train import write_report
from tests.problems import StopAfter, changed
from tests.training.test_selection import DATA, same_bits
from tests.training.test_selection import SMALL as LARGER

SMALL = {**LARGER, "rounds": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedalc.Run:
    return fedalc.train(data=DATA, folder=tmp_path_factory.mktemp("whole") / "run", **SMALL)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make runs that were stopped in either phase, with two checkpoints.

    In refit the previous checkpoint belongs to the previous phase, and the history has a line that neither covers.
    """

    class Crash(Callback):
        def round(self, number: int, loss: float) -> None:
            if number == SMALL["rounds"]:
                patch.setattr(Training, "checkpoint_seconds", 1e9)

        def evaluated(self, record: dict[str, Any]) -> None:
            if record["phase"] == "refit":
                raise Interrupted("crash")

    folders = {phase: tmp_path_factory.mktemp("begun") / "run" for phase in ("select", "refit")}
    for phase, follower in (("select", StopAfter("select", 3)), ("refit", Crash())):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(Training, "checkpoint_seconds", -1.0)
            fedalc.train(data=DATA, folder=folders[phase], callbacks=[follower], **SMALL)
    return folders


@pytest.fixture
def stopped(begun: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun["select"], tmp_path / "run"))


def resume(folder: Path, **more: Any) -> fedalc.Run:
    return fedalc.train(data=DATA, folder=folder, resume=True, **{**SMALL, **more})


def flip(file: Path, place: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def without_time(folder: Path) -> list[dict[str, Any]]:
    records = history.read(folder / "history.jsonl")
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.mark.parametrize("name", [TENSORS, FACTS, SUMS])
def test_no_flipped_bit_goes_unnoticed(stopped: Path, whole: fedalc.Run, name: str) -> None:
    assert whole.folder is not None
    for folder, load in ((stopped / "checkpoint", load_folder), (whole.folder / "model", load_model)):
        file = folder / name
        size = file.stat().st_size
        for number in range(100):
            place, bit = number * size // 100, number % 8
            flip(file, place, bit)
            with pytest.raises(Damaged, match="damaged"):
                load(folder)
            flip(file, place, bit)
        load(folder)


@pytest.mark.parametrize("phase", ["select", "refit"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, begun: dict[str, Path], whole: fedalc.Run, phase: str
) -> None:
    stopped = Path(shutil.copytree(begun[phase], tmp_path / "run"))
    assert load_folder(stopped / "checkpoint")[1]["phase"] == phase
    assert load_folder(stopped / "checkpoint.old")[1]["phase"] == "select"
    assert history.read(stopped / "history.jsonl")[-1]["phase"] == phase

    class Listener(Callback):
        told: list[str] = []

        def note(self, text: str) -> None:
            self.told.append(text)

    flip(stopped / "checkpoint" / TENSORS, 500)
    with pytest.warns(UserWarning, match=r"checkpoint: damaged, .* resuming from the checkpoint before it"):
        run = resume(stopped, callbacks=[Listener()])
    assert same_bits(run, whole) and run.metrics == whole.metrics
    assert whole.folder is not None and without_time(stopped) == without_time(whole.folder)
    assert len(Listener.told) == 1 and "damaged" in Listener.told[0]
    assert not list(stopped.glob("checkpoint.*"))


def test_when_both_checkpoints_are_damaged_it_says_so(stopped: Path) -> None:
    for name in ("checkpoint", "checkpoint.old"):
        flip(stopped / name / FACTS, 30)
    with pytest.raises(Damaged, match=r"checkpoint: damaged.*checkpoint.old: damaged.*--overwrite"):
        resume(stopped)


@pytest.mark.long
@pytest.mark.parametrize(("phase", "number"), [("select", 3), ("refit", 1)])
@pytest.mark.parametrize("mechanism", ["counts", "gradients"])
def test_a_private_run_does_not_draw_its_noise_twice(tmp_path: Path, phase: str, number: int, mechanism: str) -> None:
    private = {"privacy": {"mechanism": mechanism, "epsilon": 4.0}, "regularizer": {"weighting": "sigma"}}
    keys = changed(SMALL, {"server": {"participation": 1.0}, "selection": {"keep": "last"}, **private})
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "run", callbacks=[StopAfter(phase, number)], **keys)
    shutil.rmtree(tmp_path / "run" / "checkpoint.old")  # the last two may be of one round
    shutil.copytree(tmp_path / "run" / "checkpoint", tmp_path / "run" / "checkpoint.old")
    flip(tmp_path / "run" / "checkpoint" / TENSORS, 500)
    if mechanism == "counts" and phase == "refit":  # the older one has the noised counts of its phase
        with pytest.warns(UserWarning, match="resuming from"):
            assert fedalc.train(data=DATA, folder=tmp_path / "run", resume=True, **keys).metrics
        return
    with pytest.raises(Damaged, match="draw noise again"):
        fedalc.train(data=DATA, folder=tmp_path / "run", resume=True, **keys)


def test_settings_edited_meanwhile_are_refused_by_name(stopped: Path, whole: fedalc.Run) -> None:
    config = stopped / "config.toml"
    config.write_text(config.read_text().replace("learning_rate = 0.02", "learning_rate = 0.03"))
    edited = changed(SMALL, {"server": {"learning_rate": 0.03}})
    with pytest.raises(ConfigError, match=r"edited.*server\.learning_rate was 0\.02 and is 0\.03"):
        resume(stopped, **edited)
    config.write_text(config.read_text().replace("learning_rate = 0.03", "learning_rate = 0.02"))
    config.write_text(config.read_text().replace("memory_budget = ", "memory_budget = 1"))  # as much more
    more = fedalc.experiment(file=config).memory_budget
    assert same_bits(resume(stopped, memory_budget=more), whole)


def test_folders_of_older_versions_go_on(stopped: Path, whole: fedalc.Run) -> None:
    """They have no checksums, no settings in the checkpoint, and no previous checkpoint."""
    shutil.rmtree(stopped / "checkpoint.old")
    (stopped / "checkpoint" / SUMS).unlink()
    facts = json.loads((stopped / "checkpoint" / FACTS).read_text())
    del facts["settings"]
    (stopped / "checkpoint" / FACTS).write_text(json.dumps(facts))
    run = resume(stopped)
    assert same_bits(run, whole)
    (stopped / "model" / SUMS).unlink()
    assert same_bits(fedalc.load_run(stopped), whole)


class Full:
    """The disk is full from the n-th fsync on."""

    def __init__(self, patch: pytest.MonkeyPatch, calls: int) -> None:
        self.left, self._fsync = calls, os.fsync
        patch.setattr(os, "fsync", self)

    def __call__(self, handle: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fsync(handle)


@pytest.mark.parametrize("calls", [0, 3, 5, 9, 20])
def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_afterwards(
    stopped: Path, whole: fedalc.Run, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "checkpoint_seconds", -1.0)
    with monkeypatch.context() as patch:
        Full(patch, calls)
        with pytest.raises(FedalcError, match=r"cannot be written: No space left.*free some.*intact.*--resume") as told:
            resume(stopped)
    assert str(stopped) in str(told.value)
    assert same_bits(resume(stopped), whole)
    assert not list(stopped.glob("*.part")) and not list(stopped.glob("checkpoint.*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a device")
def test_a_device_that_is_full_is_a_clear_error() -> None:
    with pytest.raises(FedalcError, match="/dev/full: cannot be written: No space left"):
        files.write_text(Path("/dev/full"), "text")


@pytest.mark.long
def test_tensors_that_do_not_fit_on_the_disk_are_no_traceback(tmp_path: Path) -> None:
    """safetensors raises its own error for that. Here a limit on file size causes it."""
    code = (
        "import resource, signal, sys, pathlib, torch; from fedalc.core.tensor_folder import save_folder, load_folder\n"
        "from fedalc.errors import FedalcError\n"
        "place = pathlib.Path(sys.argv[1]); save_folder(place, {'W': torch.ones(10)}, {}, keep_previous=True)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))\n"
        "try: save_folder(place, {'W': torch.ones(10000)}, {}, keep_previous=True)\n"
        "except FedalcError as error: print(error, len(load_folder(place)[0]['W']))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], capture_output=True, text=True)
    assert (
        ended.stdout == f"{tmp_path / 'c'}: cannot be written: File too large; free some disk space and try again 10\n"
    )


def test_what_a_killed_process_left_behind_goes(stopped: Path) -> None:
    for name in ("result.json.0a1b2c3d.part", "config.toml.ffff0000.part", "contact-sheet.png.part"):
        (stopped / name).write_text("half")
    for name in ("checkpoint.part", "checkpoint.old.0a1b2c3d.part", "model.part", "census.part"):
        (stopped / name).mkdir()
        (stopped / name / TENSORS).write_text("half")
    (stopped / "thesis.part").write_text("precious")
    resume(stopped)
    assert [path.name for path in stopped.glob("*.part")] == ["thesis.part"]


def test_a_log_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    files.append_text(tmp_path / "log", "one\n")
    with (tmp_path / "log").open("a") as log:
        log.write("tw")
    files.append_text(tmp_path / "log", "three\n")
    assert (tmp_path / "log").read_text() == "one\ntw\nthree\n"


def test_a_lost_report_is_made_again(tmp_path: Path, whole: fedalc.Run) -> None:
    from typer.testing import CliRunner

    assert whole.folder is not None
    folder = Path(shutil.copytree(whole.folder, tmp_path / "run"))
    first = (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    assert same_bits(resume(folder), whole)
    assert (folder / "report.html").read_text() == first
    with pytest.raises(FedalcError, match="finished"):
        resume(folder)
    (folder / "report.html").unlink()
    ended = CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
    assert ended.stdout.strip() == str(folder / "report.html") and (folder / "report.html").read_text() == first
    (folder / "result.json").unlink()
    with pytest.raises(FedalcError, match="has not finished"):
        write_report(folder)


def test_a_report_that_cannot_be_drawn_loses_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.report.page.write_page", None)
    with pytest.raises(TypeError):
        fedalc.train(data=DATA, folder=tmp_path / "run", **SMALL)
    assert fedalc.load_run(tmp_path / "run").metrics


@pytest.mark.long
def test_two_servers_do_not_share_a_state_folder(tmp_path: Path) -> None:
    """The second one starts nothing and changes nothing, on any port."""
    state = tmp_path / "state"
    code = (
        "import sys, pathlib; from fedalc.runs.folder import only_writer\n"
        "with only_writer(pathlib.Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == b"locked\n"
        with pytest.raises(Locked, match="another server is running"), Server(ServerState(state), None).running():
            pytest.fail("two servers")
        assert [path.name for path in state.iterdir()] == [".lock"]
        first.communicate()
    with only_writer(state):
        pass


@pytest.mark.long
def test_kills_and_power_cuts() -> None:
    """A few cases of `make crash-test`, in a separate process because it forks."""
    command = [sys.executable, "-m", "tests.crash", "--tiny"]
    around = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=around, cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr
    assert "all promises kept" in ended.stdout


def test_the_current_folder_is_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path "." has no name to put ".old" behind."""
    monkeypatch.chdir(tmp_path)
    assert files.previous(Path()) == tmp_path.with_name(f"{tmp_path.name}.old")
    with pytest.raises(FedalcError, match="not a saved model"):
        load_model(Path())
