"""Submit a run to the server, follow it until it ends, stop it, and resume it."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedalc.deployment.flower_programs import APP, Flower, environment, plain, write_settings
from fedalc.deployment.processes import Process, is_healthy, signals_interrupt
from fedalc.deployment.state import ServerState, Submitted
from fedalc.errors import FedalcError, Interrupted, Locked

_LOST_AFTER = 15.0  # seconds without an answer from the server
_ASK_EVERY = 2.0
_LOOK_EVERY = 0.3
_NOISE = ("Using SuperLink", "Starting logstream", "Start `flwr-serverapp`", "Successfully installed", "╭", "│", "╰")
_FREE_WITHIN = 60.0  # seconds from stopping a run until its process is gone
_SETTLED_WITHIN = 20.0  # seconds from a run's last output until Flower knows how it ended


class _Lost(Exception):
    """No answer from the server."""


def submit(state: ServerState, settings: Mapping[str, Any], app: Path = APP) -> str:
    """Submit a run into the folder `run-folder`, and return its id. With `resume`, first stop an earlier one there."""
    run_folder = Path(settings["run-folder"])
    flower = state.flower
    _check_server(state)
    earlier = state.submitted(run_folder)
    if earlier is not None and _is_running(flower, earlier.run):
        if not settings.get("resume"):
            raise FedalcError(f"{run_folder}: run {earlier.run} is writing there; choose another folder (--name)")
        try:
            flower.stop(earlier.run)
        except FedalcError:  # it may have ended just now
            if _is_running(flower, earlier.run):
                raise
    if settings.get("resume"):
        _wait_until_free(run_folder)
    file = state.settings_file(run_folder)
    write_settings(file, settings)
    run = flower.submit(app, file)
    state.remember(run_folder, Submitted(run, dict(settings)))
    return run


def _is_running(flower: Flower, run: str) -> bool:
    """Return whether Flower considers the run active. After a server crash it does so for up to a minute."""
    try:
        return not flower.status(run)[0].startswith("finished")
    except FedalcError:  # the server does not know the run
        return False


def _wait_until_free(run_folder: Path) -> None:
    """Wait until a stopped run no longer writes: its process learns of the stop about ten seconds later."""
    from fedalc.runs.folder import only_writer

    deadline = time.monotonic() + _FREE_WITHIN
    while True:
        try:
            with only_writer(run_folder):
                return
        except Locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_EVERY)


def listen(state: ServerState, run: str, run_folder: Path, say: Callable[[str], None]) -> None:
    """Pass on the run's output until it ends. Raises unless it ends with success."""
    flower = state.flower
    try:
        with signals_interrupt():
            error = _follow_log(state, run, say)
            status, details = _final_status(state, run)
    except _Lost:
        hint = _how_to_continue(state, run_folder)
        raise FedalcError(f"the server no longer answers (its log: {state.log}); start it again; {hint}") from None
    except KeyboardInterrupt:
        with contextlib.suppress(FedalcError):
            flower.stop(run)
        raise Interrupted(f"run {run}; {_how_to_continue(state, run_folder)}") from None
    if status != "finished:completed":
        why = error or (status if details in ("", "N/A") else f"{status}, {details}")
        raise FedalcError(f"run {run}: {why}\n{_how_to_continue(state, run_folder)}")


def _how_to_continue(state: ServerState, run_folder: Path) -> str:
    if not (run_folder / "config.toml").is_file():
        return "it had not started training: run the same command again"
    return "continue with: " + shlex.join(
        ["fedalc", "deploy", "run", "--state", str(state.folder), "--resume", str(run_folder)]
    )


class _Output:
    """Passes on a run's output without Flower's own lines. Keeps an error for the end, and drops its traceback."""

    def __init__(self, process: Process, say: Callable[[str], None]) -> None:
        self.process, self.say = process, say
        self.error = ""

    def pass_on(self) -> None:
        for line in self.process.new_lines():
            text = plain(line).removeprefix("fedalc: ")
            if text.startswith("error: "):
                self.error = text.removeprefix("error: ")
            elif text and not self.error and not text.startswith(_NOISE):
                self.say(text)


class _Watch:
    """Raises when the server has not answered for a while, because Flower's own commands would wait forever."""

    def __init__(self, state: ServerState) -> None:
        self.connection = state.connection()
        self.answered = self.asked = time.monotonic()

    def check(self) -> bool:
        """Return whether the server answered when it was last asked."""
        now = time.monotonic()
        if now - self.asked > _ASK_EVERY:
            self.asked = now
            if is_healthy(*self.connection):
                self.answered = now
            elif now - self.answered > _LOST_AFTER:
                raise _Lost
        return self.answered >= self.asked


def _follow_log(state: ServerState, run: str, say: Callable[[str], None]) -> str:
    """Follow the log to its end, and return the error that the run reported, if any."""
    log = state.folder / "runs" / f"{run}.log"
    process = Process.start("the run", state.flower.log_command(run), log, environment(state.home))
    output, watch = _Output(process, say), _Watch(state)
    try:
        while process.alive:
            output.pass_on()
            watch.check()
            time.sleep(_LOOK_EVERY)
        output.pass_on()
        return output.error
    finally:
        process.end(patience=3)


def _final_status(state: ServerState, run: str) -> tuple[str, str]:
    deadline, watch = time.monotonic() + _SETTLED_WITHIN, _Watch(state)
    while True:
        if watch.check():
            with contextlib.suppress(FedalcError):  # the server went away just now
                status, details = state.flower.status(run)
                if status.startswith("finished") or time.monotonic() > deadline:
                    return status, details
        time.sleep(1)


def _check_server(state: ServerState) -> None:
    address, certificate = state.connection()
    if not is_healthy(address, certificate):
        raise FedalcError(f"{address}: no server answers; start it with `fedalc deploy server`")
