"""Flower's SuperNode, restricted to installed code: `python -m fedalc.deployment.supernode …` takes
flower-supernode's arguments, and `--worker-memory-mb`.

A SuperNode runs whatever app the server sends. Ours has no code: it refers to modules of the fedalc that the party has
installed. So a party can refuse every other app. An app is a zip archive that Flower unpacks; its unpacked size is
limited too.

With `--worker-memory-mb` the node has messages answered by a worker that it keeps (`workers`), otherwise by Flower's
processes, one for each message.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import io
import os
import secrets
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from fedalc.core.safe_parsing import parse_toml
from fedalc.deployment.flower_programs import APP
from fedalc.deployment.node_signatures import signing_bodies
from fedalc.deployment.pauses import SHORTEST, Pauses
from fedalc.deployment.processes import end_with_parent
from fedalc.deployment.workers import Workers, prepare

_FILES = {"pyproject.toml", "README.md", "LICENSE"}
_UNKNOWN_FLOWER = "fedalc cannot keep this version of Flower from running a server's code; install flwr 1.41"
_REPLACED = ("get_fused_config_from_fab", "_pull_and_store_message", "_push_messages", "pull_objects", "time")
_OF_FLOWER = ".info/"  # Flower adds a list of files there
MOST_BYTES = 1 << 20
"""Of an app, packed and unpacked. Ours has 14 kB."""
MOST_FILES = 16


def why_refused(app: bytes) -> str:
    """Return why this app is not accepted; "" if it is."""
    if len(app) > MOST_BYTES:
        return f"it has {len(app):,} bytes, more than {MOST_BYTES:,}"
    try:
        with zipfile.ZipFile(io.BytesIO(app)) as archive:
            files = archive.infolist()
            # Unpacking never writes more than the size that the archive states.
            if len(files) > MOST_FILES or sum(file.file_size for file in files) > MOST_BYTES:
                return f"it unpacks to more than {MOST_FILES} files or {MOST_BYTES:,} bytes"
            foreign = [name for name in archive.namelist() if name not in _FILES and not name.startswith(_OF_FLOWER)]
            if foreign:
                return f"it contains a file of its own, {foreign[0]!r}"
            if any(name.endswith(".py") or ".." in name for name in archive.namelist()):
                return "it contains code of its own"
            components = _components(archive.read("pyproject.toml"))
    except Exception as error:  # whatever the error, refuse what cannot be read
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
    """Lets only checked apps run: an attempt to run any other ends the SuperNode."""

    def __init__(self) -> None:
        self.harmless: set[str] = set()
        """Hashes of accepted apps. Flower looks up the app to run by its hash."""

    def check(self, app: bytes) -> str:
        """Return why the app is refused. Otherwise remember that it may run."""
        reason = why_refused(app)
        if not reason:
            self.harmless.add(hashlib.sha256(app).hexdigest())
        return reason

    def before_task(self, make_task: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the creation of tasks, so that a later Flower that reads apps in another way runs none unchecked."""

        def make_checked(*arguments: Any, fab_hash: str | None = None, **named: Any) -> Any:
            if fab_hash not in self.harmless:
                print(f"fedalc refused to run an app that was not checked; {_UNKNOWN_FLOWER}", flush=True)
                os._exit(1)  # ends all threads: another one might run it
            return make_task(*arguments, fab_hash=fab_hash, **named)

        return make_checked


def as_error(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step of fetching a message, so that a run that is stopped meanwhile is an ordinary error.

    After an error Flower undoes what it began for the message. After a stopped run it does not: the stopped run's app
    answers, the SuperNode takes this for the answer to the next message, and never answers that one.
    """
    from flwr.supercore.run import RunNotRunningException

    def step_or_error(*arguments: Any) -> Any:
        try:
            return step(*arguments)
        except RunNotRunningException:
            raise RuntimeError("the run was stopped") from None

    return step_or_error


class Messages:
    """What the node does with each message: fetches it, whole or not at all, has it answered, and sends the answer."""

    def __init__(self, fetch: Callable[..., Any], push: Callable[..., Any], workers: Workers | None) -> None:
        self._fetch, self._push, self._workers = fetch, push, workers
        self._message_id = ""
        self.pauses = Pauses(idle=lambda seconds: None if workers is None else workers.end_if_idle(seconds))

    def fetch_whole(self, **named: Any) -> Any:
        def receive() -> Any:
            received: Any = self.pauses.ask(named["receive"])
            if received is not None:
                self._message_id = received[0].metadata.message_id
            return received

        steps = {step: as_error(named[step]) for step in ("pull_object", "confirm_message_received")}
        return self._fetch(**{**named, **steps, "receive": receive})

    def answer_and_push(self, *, state: Any, object_store: Any, **named: Any) -> None:
        from flwr.common.constant import Status

        if self._workers is not None:
            for task in state.get_tasks(statuses=[Status.PENDING]):
                self._workers.answer(state, object_store, task, self._message_id)
        self._push(state=state, object_store=object_store, **named)
        self.pauses.message()


def read_workers(words: list[str]) -> tuple[Workers | None, list[str]]:
    """Return the workers that the arguments ask for, and the arguments that are Flower's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--worker-memory-mb", type=int)
    own, others = parser.parse_known_args(words)
    if own.worker_memory_mb is None:
        return None, others
    return Workers(own.worker_memory_mb << 20), [*others, "--isolation", "process"]  # Flower starts no processes then


def start_workers(workers: Workers) -> None:
    """Import what workers need. Only this process hands out messages: no other program of this machine can claim one
    at the node's local port."""
    import flwr.supernode.main as service

    make = service.create_app
    secret = secrets.token_bytes(32)
    service.create_app = lambda **named: make(**{**named, "superexec_auth_secret": secret})
    prepare()
    atexit.register(workers.end)


def main() -> None:
    end_with_parent()
    import flwr.supernode.start_client_internal as internal
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    from flwr.supernode.nodestate import NodeStateFactory

    if not all(hasattr(internal, name) for name in _REPLACED):
        sys.exit(_UNKNOWN_FLOWER)
    workers, sys.argv[1:] = read_workers(sys.argv[1:])
    guard = Guard()
    read_settings: Any = internal.get_fused_config_from_fab
    messages = Messages(internal._pull_and_store_message, internal._push_messages, workers)
    make_state: Any = NodeStateFactory.state

    def read_own_settings(app: Any, *arguments: Any) -> Any:
        """Check the app. Flower calls this once per run, before it stores or runs the app."""
        reason = guard.check(app)
        if reason:
            print(f"fedalc refused: the server sent an app this party does not run: {reason}", flush=True)
            raise RunNotRunningException  # makes Flower ignore the message
        return read_settings(app, *arguments)

    def make_guarded_state(factory: Any) -> Any:
        """Guard the node's state, which is always the same object. Everything runs as a task in it."""
        state = make_state(factory)
        if "create_task" not in vars(state):
            state.create_task = guard.before_task(state.create_task)
        return state

    vars(internal).update(
        get_fused_config_from_fab=read_own_settings,
        _pull_and_store_message=messages.fetch_whole,
        _push_messages=messages.answer_and_push,
        pull_objects=partial(internal.pull_objects, initial_backoff=SHORTEST),
        time=SimpleNamespace(sleep=messages.pauses.sleep),
    )
    NodeAuthHttpInterceptor.intercept = signing_bodies(NodeAuthHttpInterceptor.intercept)  # type: ignore[method-assign]
    NodeStateFactory.state = make_guarded_state  # type: ignore[assignment, method-assign]
    if workers is not None:
        start_workers(workers)
    flower_supernode()


if __name__ == "__main__":
    main()
