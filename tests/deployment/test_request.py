"""What `fedalc deploy run` refuses before it submits a run, and what it submits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedalc.cli.app import app
from fedalc.config.resolve import experiment
from fedalc.deployment import submission
from fedalc.deployment.request import new_run, overrides_text, resumed_run
from fedalc.deployment.state import ServerState, Submitted
from fedalc.deployment.submission import submit
from fedalc.errors import ConfigError, FedalcError


def begun(folder: Path) -> Path:
    """Make a run that has not finished."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(experiment({"method": "fedaws"}).to_toml())
    return folder


def run(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["deploy", "run", *arguments])
    assert result.exception is not None
    raise result.exception


def test_the_folders_name_is_that_of_the_settings_in_force(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('method = "fedaws"\nseed = 3\n')
    asked: dict[str, Any] = {"settings": str(config)}

    def name(asked: Mapping[str, Any], given: str | None = None) -> str:
        return Path(new_run(asked, tmp_path / "runs", given)["run-folder"]).name

    assert name({}) == "fedalc-strong-s0"
    assert name({"tune": True, "seed": 2}) == "tuned-s2"
    assert name(asked) == "fedaws-strong-s3"
    assert name(asked | {"preset": "paper", "seed": 4}) == "fedaws-paper-s4"
    assert name(asked | {"set": overrides_text(["seed=5"])}) == "fedaws-strong-s5"
    config.write_text('name = "clinics"\n')
    assert name(asked) == "clinics"
    assert name(asked, "mine") == "mine"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "fedsgdplus"], "method"),
        (["--set", "no.such=1"], "no.such"),
        (["--set", "nonsense"], "nonsense"),
        (["--config", "nowhere.toml"], "no such file"),
        (["--parties", "2", "--min-parties", "3"], "min-parties"),
        (["--held-out-share", "1.5"], "held-out-share"),
        (["--tune", "--rounds", "5"], "the search chooses it"),
        (["--tune", "--held-out-share", "0"], "held-out-share above 0"),
        (["--tune", "--resume", "runs/old"], "--tune: not with --resume"),
    ],
)
def test_nonsense_is_refused_at_once(tmp_path: Path, options: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run("--state", str(tmp_path / "no server"), *options)


def test_a_folder_with_a_run_in_it_is_not_written_to(tmp_path: Path) -> None:
    begun(tmp_path / "one")
    with pytest.raises(
        FedalcError, match=r"already has a run; continue it \(--resume .*one\) or .* another --name"
    ) as e:
        new_run({}, tmp_path, "one")
    assert "--overwrite" not in str(e.value)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diary.txt").write_text("dear diary")
    with pytest.raises(FedalcError, match="not a run's"):
        new_run({}, tmp_path, "other")


@pytest.mark.parametrize(
    "option",
    [["--method", "fedaws"], ["--preset", "paper"], ["--rounds", "9"], ["--config", "x.toml"], ["--set", "seed=1"],
     ["--seed", "0"], ["--held-out-share", "0.2"], ["--name", "two"], ["--out", "runs"]],
)  # fmt: skip
def test_what_a_resumed_run_cannot_change_is_refused(tmp_path: Path, option: list[str]) -> None:
    folder = begun(tmp_path / "one")
    why = "not with --resume; a resumed run keeps its folder and its settings"
    with pytest.raises(ConfigError, match=f"^{option[0]}: {why}") as error:
        run("--resume", str(folder), "--state", str(tmp_path / "state"), *option)
    assert "\n" not in str(error.value)


def test_a_resumed_run_is_gone_about_as_before(tmp_path: Path) -> None:
    """With the new options. Its settings are in its folder, even if the original settings file is gone."""
    state, folder = ServerState(tmp_path), tmp_path / "runs" / "one"
    with pytest.raises(FedalcError, match="no such run folder"):
        resumed_run(state, folder, {})
    begun(folder)
    before = {"method": "fedaws", "settings": "gone.toml", "wait": 5.0, "num-parties": 3, "run-folder": str(folder)}
    state.remember(folder, Submitted("5", before))
    state.remember(tmp_path / "elsewhere" / "one", Submitted("6", {"wait": 7.0}))
    expected = {"wait": 9.0, "num-parties": 3, "run-folder": str(folder), "resume": True}
    assert resumed_run(state, folder, {"wait": 9.0}) == expected
    with pytest.raises(ConfigError, match="min-parties"):
        resumed_run(state, folder, {"min-parties": 4})


def test_only_a_run_that_was_begun_and_not_finished_is_resumed(tmp_path: Path) -> None:
    state = ServerState(tmp_path / "state")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedalcError, match="not a run folder"):
        resumed_run(state, tmp_path / "empty", {})
    (begun(tmp_path / "one") / "result.json").write_text("{}")
    with pytest.raises(FedalcError, match="nothing to resume"):
        resumed_run(state, tmp_path / "one", {})


class FakeFlower:
    """A server with one run in progress."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []

    def status(self, run: str) -> tuple[str, str]:
        return ("finished:stopped" if ("stop", run) in self.done else "running"), ""

    def stop(self, run: str) -> None:
        self.done.append(("stop", run))

    def submit(self, app: Path, settings: Path) -> str:
        self.done.append(("submit", settings.stem))
        return "8"


def test_a_new_run_never_stops_one_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only --resume may replace the run of its folder, and no other run."""
    flower = FakeFlower()
    monkeypatch.setattr(ServerState, "flower", flower)
    monkeypatch.setattr(submission, "_check_server", lambda state: None)
    state, folder = ServerState(tmp_path / "state"), tmp_path / "one"
    state.remember(folder, Submitted("7", {}))
    with pytest.raises(FedalcError, match="run 7 is writing there; choose another folder"):
        submit(state, new_run({}, tmp_path, "one"))
    assert flower.done == []
    assert submit(state, new_run({}, tmp_path, "two")) == "8"
    assert [what for what, _ in flower.done] == ["submit"]
    begun(folder)
    submit(state, resumed_run(state, folder, {}))
    assert [what for what, *_ in flower.done] == ["submit", "stop", "submit"] and flower.done[1] == ("stop", "7")


def test_a_run_that_ends_before_it_is_stopped_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending(FakeFlower):
        def stop(self, run: str) -> None:
            super().stop(run)
            raise FedalcError("flwr stop: Run is already finished.")

    flower = Ending()
    monkeypatch.setattr(ServerState, "flower", flower)
    monkeypatch.setattr(submission, "_check_server", lambda state: None)
    state, folder = ServerState(tmp_path / "state"), begun(tmp_path / "one")
    state.remember(folder, Submitted("7", {}))
    assert submit(state, resumed_run(state, folder, {})) == "8"
