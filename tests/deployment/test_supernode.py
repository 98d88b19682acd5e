"""The guard that the launcher installs in Flower's SuperNode."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flwr.supernode.cli as programs
import flwr.supernode.start_client_internal as internal
import pytest
from flwr.app import Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

from fedalc.deployment import supernode
from fedalc.deployment.flower_programs import APP


class Ended(BaseException):
    """Raised instead of ending the process."""


@pytest.fixture
def in_the_supernode(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Runs a function where Flower's SuperNode would start."""
    monkeypatch.setattr(internal, "get_fused_config_from_fab", lambda app, run: {"read": True})
    monkeypatch.setattr(NodeStateFactory, "state", NodeStateFactory.state)  # to be put back afterwards, as is this:
    for name in ("_pull_and_store_message", "_push_messages", "pull_objects", "time"):
        monkeypatch.setattr(internal, name, getattr(internal, name))

    def end(code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)

    def do(something: Callable[[], None]) -> None:
        monkeypatch.setattr(programs, "flower_supernode", something)
        supernode.main()

    return do


def make_task(state: Any, app: bytes) -> Any:
    return state.create_task(task_type="flwr-clientapp", run_id=1, fab_hash=hashlib.sha256(app).hexdigest())


def test_an_app_is_run_after_it_was_looked_at(
    in_the_supernode: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    app, done = build_fab_from_disk(APP), []

    def work() -> None:
        factory = NodeStateFactory(ObjectStoreFactory())
        with pytest.raises(RunNotRunningException):
            internal.get_fused_config_from_fab(b"no app", None)
        assert internal.get_fused_config_from_fab(app, None) == {"read": True}
        assert factory.state() is factory.state()
        assert make_task(factory.state(), app) is not None
        done.append(True)

    in_the_supernode(work)
    assert done and "an app this party does not run" in capsys.readouterr().out


def test_an_app_of_another_version_is_refused_in_words(tmp_path: Path) -> None:
    """Version 0.1 had its modules in other places."""
    shutil.copytree(APP, tmp_path / "app")
    named = tmp_path / "app" / "pyproject.toml"
    named.write_text(named.read_text().replace("fedalc.deployment.flower.", "fedalc.engines.flower."))
    reason = supernode.why_refused(build_fab_from_disk(tmp_path / "app"))
    assert reason.startswith("it is of another version of fedalc: it runs fedalc.engines.flower.client_app:app")
    assert reason.endswith("install the same version at the server and at the parties")


def test_an_app_that_nobody_looked_at_ends_the_supernode(
    in_the_supernode: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """For example with a future Flower that no longer calls the function where apps are checked."""
    with pytest.raises(Ended):
        in_the_supernode(lambda: make_task(NodeStateFactory(ObjectStoreFactory()).state(), b"an app"))
    assert "that was not checked" in capsys.readouterr().out


@pytest.mark.parametrize("name", supernode._REPLACED)
def test_a_flower_without_that_function_is_not_started(
    in_the_supernode: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(internal, name)
    with pytest.raises(SystemExit, match="install flwr"):
        in_the_supernode(lambda: pytest.fail("it was"))


def test_nothing_is_left_of_a_message_whose_run_is_stopped_while_it_is_fetched(
    in_the_supernode: Callable[[Callable[[], None]], None],
) -> None:
    """Otherwise the stopped run's app answers, and the SuperNode uses that as the answer to its next message."""
    app, done = build_fab_from_disk(APP), []
    run = Run.create_empty(7)
    run.fab_hash = hashlib.sha256(app).hexdigest()
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 7  # who makes the message
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    content = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}

    def stopped(*arguments: Any) -> None:
        raise RunNotRunningException

    def work() -> None:
        stores = ObjectStoreFactory()
        state = NodeStateFactory(stores).state()
        state.set_node_id(1)
        fetched = internal._pull_and_store_message(
            state=state, object_store=stores.store(), node_config={},
            receive=lambda: (message, get_object_tree(message)), get_run=lambda number: run,
            get_fab=lambda name, number: Fab(run.fab_hash, app, {}),
            pull_object=lambda number, name: content[name], confirm_message_received=stopped, trusted_entities=None,
        )  # fmt: skip
        assert fetched is None
        assert [task.status.status for task in state.get_tasks()] == ["finished"]
        assert not state.get_messages_legacy() and message.object_id not in stores.store()
        done.append(True)

    in_the_supernode(work)
    assert done
