"""Flower's SuperNode, which runs installed code only: `python -m fedalc.deployment.supernode …` takes
flower-supernode's arguments.

A SuperNode runs whatever app the server's run brings along. Ours brings no code: it names modules of the fedalc that
the party has installed itself. So a party can refuse every app that is more than that. An app is a zip archive, which
Flower unpacks; what it may unpack to is bounded too.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Callable
from typing import Any

from fedalc.core.safe_parsing import parse_toml
from fedalc.deployment.flower_programs import APP
from fedalc.deployment.node_signatures import signing_bodies
from fedalc.deployment.processes import end_with_parent

_FILES = {"pyproject.toml", "README.md", "LICENSE"}
_UNKNOWN_FLOWER = "this version of Flower cannot be kept from running a server's code; install flwr 1.41"
_OF_FLOWER = ".info/"  # the list of files that Flower adds
MOST_BYTES = 1 << 20
"""Of an app, packed and unpacked. Ours has 14 KB."""
MOST_FILES = 16


def why_refused(app: bytes) -> str:
    """What an app has that it should not have, or nothing."""
    if len(app) > MOST_BYTES:
        return f"it has {len(app):,} bytes, more than the {MOST_BYTES:,} that are read"
    try:
        with zipfile.ZipFile(io.BytesIO(app)) as archive:
            files = archive.infolist()
            # Nothing that unpacks zip archives takes more of a file than the archive says that there is.
            if len(files) > MOST_FILES or sum(file.file_size for file in files) > MOST_BYTES:
                return f"it unpacks to more than {MOST_FILES} files or {MOST_BYTES:,} bytes"
            foreign = [name for name in archive.namelist() if name not in _FILES and not name.startswith(_OF_FLOWER)]
            if foreign:
                return f"it brings a file of its own, {foreign[0]!r}"
            if any(name.endswith(".py") or ".." in name for name in archive.namelist()):
                return "it brings code of its own"
            components = _components(archive.read("pyproject.toml"))
    except Exception as error:  # whatever is wrong with it: what cannot be read is refused
        return f"it cannot be read ({error or type(error).__name__})"
    own = _components((APP / "pyproject.toml").read_bytes())
    if components == own:
        return ""
    if components.keys() == own.keys() and all(name.startswith("fedalc.") for name in components.values()):
        return (
            f"it is of another version of fedalc: it runs {components['clientapp']}, and here that is "
            f"{own['clientapp']}; install the same version at the server and at the parties"
        )
    return f"it runs {components} instead of {own}"


def _components(pyproject: bytes) -> dict[str, str]:
    return dict(parse_toml(pyproject)["tool"]["flwr"]["app"]["components"])


class Guard:
    """Lets an app run only after it was looked at: what comes to be run in any other way ends the SuperNode."""

    def __init__(self) -> None:
        self.harmless: set[str] = set()
        """Hashes of what was looked at, by which Flower finds the app that it runs."""

    def look_at(self, app: bytes) -> str:
        reason = why_refused(app)
        if not reason:
            self.harmless.add(hashlib.sha256(app).hexdigest())
        return reason

    def before_task(self, make_task: Callable[..., Any]) -> Callable[..., Any]:
        """A later Flower that reads apps in another way must not run one unseen."""

        def make_checked(*arguments: Any, fab_hash: str | None = None, **named: Any) -> Any:
            if fab_hash not in self.harmless:
                print(f"fedalc refused: an app was to run that nobody had looked at; {_UNKNOWN_FLOWER}", flush=True)
                os._exit(1)  # of all threads: one of them would go on and run it
            return make_task(*arguments, fab_hash=fab_hash, **named)

        return make_checked


def as_error(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step in fetching a message, where the end of the run meanwhile is an error like others.

    Flower takes back what it has begun for a message when an error comes, and forgets to when the run was stopped: the
    stopped run's app answers then, and the SuperNode takes its answer for that to the message it has fetched next,
    which it never answers.
    """
    from flwr.supercore.run import RunNotRunningException

    def step_or_error(*arguments: Any) -> Any:
        try:
            return step(*arguments)
        except RunNotRunningException:
            raise RuntimeError("the run was stopped") from None

    return step_or_error


def main() -> None:
    end_with_parent()
    import flwr.supernode.start_client_internal as internal
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    from flwr.supernode.nodestate import NodeStateFactory

    if not hasattr(internal, "get_fused_config_from_fab") or not hasattr(internal, "_pull_and_store_message"):
        sys.exit(_UNKNOWN_FLOWER)
    guard = Guard()
    read_settings: Any = internal.get_fused_config_from_fab
    fetch: Any = internal._pull_and_store_message
    make_state: Any = NodeStateFactory.state

    def read_own_settings(app: Any, *arguments: Any) -> Any:
        """Called once per run, before anything of the app is stored or run."""
        reason = guard.look_at(app)
        if reason:
            print(f"fedalc refused: the server sent an app this party does not run: {reason}", flush=True)
            raise RunNotRunningException  # the one that Flower takes as: leave this message alone
        return read_settings(app, *arguments)

    def fetch_whole(**named: Any) -> Any:
        steps = {step: as_error(named[step]) for step in ("pull_object", "confirm_message_received")}
        return fetch(**{**named, **steps})

    def make_guarded_state(factory: Any) -> Any:
        """Always the same one; nothing runs but by a task in it."""
        state = make_state(factory)
        if "create_task" not in vars(state):
            state.create_task = guard.before_task(state.create_task)
        return state

    vars(internal)["get_fused_config_from_fab"] = read_own_settings
    vars(internal)["_pull_and_store_message"] = fetch_whole
    NodeAuthHttpInterceptor.intercept = signing_bodies(NodeAuthHttpInterceptor.intercept)  # type: ignore[method-assign]
    NodeStateFactory.state = make_guarded_state  # type: ignore[assignment, method-assign]
    flower_supernode()


if __name__ == "__main__":
    main()
