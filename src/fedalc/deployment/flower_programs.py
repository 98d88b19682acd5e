"""Call Flower's programs: find them, keep them offline, and pass settings as files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedalc.core.atomic_files import write_text
from fedalc.core.safe_parsing import Unreadable, parse_json
from fedalc.errors import FedalcError

APP = Path(__file__).parent / "app"
"""The Flower app. It has no code, and refers to modules of this package."""
CONNECTION = "fedalc"
"""The server's name in Flower's configuration."""

_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
_STARTS_WITHIN = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def require_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise FedalcError("Flower is not installed: pip install 'fedalc[flower]'")


def environment(home: Path, starts_within: float = 0.2) -> dict[str, str]:
    """Return the environment for Flower's programs. They start others by name, so PATH has this Python's folder.
    `starts_within`: seconds between two looks for an app to start. At a party with `--fresh-processes` every message
    waits for that; at a server a run waits once, and each look is a request to it."""
    programs = str(Path(sys.executable).parent)
    return {
        _STARTS_WITHIN: str(starts_within),
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        **_OFFLINE,
        "FLWR_HOME": str(home),
        "PATH": programs + os.pathsep + os.environ.get("PATH", os.defpath),
        "PYTHONUNBUFFERED": "1",
    }


def write_settings(path: Path, values: Mapping[str, str | int | float | bool]) -> None:
    """Write a TOML file. Flower accepts a file in place of `key=value`, and only a file can hold every value."""
    write_text(path, "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items()))


def toml_value(value: str | int | float | bool) -> str:
    """Return a value in TOML syntax.

    >>> print(toml_value('a "b" c'), toml_value(True), toml_value(0.5))
    "a \\"b\\" c" true 0.5
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def plain(line: str) -> str:
    """Return a line of Flower's log without colours and level."""
    return re.sub(r"^(?:INFO|DEBUG)\s*:\s*", "", _COLOUR.sub("", line)).strip()


class Flower:
    """Flower's command `flwr`, connected to one server."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def register(self, public_key: Path) -> str:
        """Register a node, and return its id."""
        return str(self._ask("supernode", "register", str(public_key), CONNECTION)["node-id"])

    def unregister(self, node: str) -> None:
        self._ask("supernode", "unregister", node, CONNECTION)

    def nodes(self) -> dict[str, str]:
        """Return the status of every registered node: registered, online or offline."""
        answer = self._ask("supernode", "list", CONNECTION)
        return {str(node["node-id"]): str(node["status"]) for node in answer["nodes"]}

    def submit(self, app: Path, settings: Path) -> str:
        """Submit a run, and return its id."""
        return str(self._ask("run", str(app), CONNECTION, "--run-config", str(settings))["run-id"])

    def status(self, run: str) -> tuple[str, str]:
        """Return (`running`, `finished:completed`, `finished:failed`, …) and Flower's details."""
        known = self._ask("ls", CONNECTION, "--run-id", run)["runs"][0]
        return str(known["status"]), str(known["status-details"])

    def stop(self, run: str) -> None:
        self._ask("stop", run, CONNECTION)

    def log_command(self, run: str) -> list[str]:
        """Return the command that prints the output of a run's ServerApp until the run ends."""
        return [program("flwr"), "log", run, CONNECTION, "--stream"]

    def _ask(self, *words: str) -> dict[str, Any]:
        command = [program("flwr"), *words, "--format", "json"]
        done = subprocess.run(
            command, env=environment(self.home), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        what = " ".join(["flwr", *words[:2]])
        try:
            answer = parse_json(done.stdout[done.stdout.index("{") :])
        except (ValueError, Unreadable):
            raise FedalcError(f"{what}: {_last_lines(done.stdout + done.stderr)}") from None
        if done.returncode != 0 or not answer.get("success"):
            raise FedalcError(f"{what}: {_reason(answer) or _last_lines(done.stderr)}")
        return dict(answer)


def python_module(module: str) -> list[str]:
    """Return the command that runs a module. It does not search the current folder for modules (-P)."""
    return [sys.executable, "-P", "-m", module]


def program(name: str) -> str:
    """Return the path of one of Flower's programs, beside this Python."""
    require_flower()
    return str(Path(sys.executable).parent / name)


def _reason(answer: Mapping[str, Any]) -> str:
    """Return the error message, without the lines that Flower printed before it."""
    message = str(answer.get("error-message", ""))
    return " ".join(line.strip() for line in message.splitlines() if line.strip() and "Using SuperLink" not in line)


def _last_lines(text: str) -> str:
    lines = [line.strip("│╭╰╮╯─ ") for line in _COLOUR.sub("", text).splitlines()]
    return " ".join([line for line in lines if line and line != "Error"][-4:]) or "no answer"
