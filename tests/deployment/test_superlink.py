"""The gate: parties may connect from anywhere, everything else only from this machine."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from fedalc.deployment.gate import Gate, is_allowed
from fedalc.deployment.gate_limits import MIB, Limits
from fedalc.deployment.gate_log import SeldomFilter
from fedalc.deployment.superlink import own_replies_only

ELSEWHERE = ("198.51.100.4", 5000)


def scope(path: str, client: Any, kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "path": path, "client": client, "server": ("192.0.2.7", 9443)}


@pytest.mark.parametrize("path", ["/v1/fleet/activate-node", "/v1/fleet/pull-messages", "/health"])
def test_what_a_party_needs_is_open(path: str) -> None:
    assert is_allowed(scope(path, ELSEWHERE))


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/openapi.json", "/",
     "/healthy", "/v1/fleets", "/v1/fleet/../control/start-run", "//v1/fleet/x"],
)  # fmt: skip
def test_the_rest_is_for_this_machine(path: str) -> None:
    assert not is_allowed(scope(path, ELSEWHERE))
    assert not is_allowed(scope(path, None))
    assert not is_allowed(scope(path, ("unix", 0)))
    for own in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "192.0.2.7"):
        assert is_allowed(scope(path, (own, 5000)))


def ask(request: dict[str, Any]) -> tuple[bool, list[dict[str, Any]]]:
    reached, sent = [], []

    async def service(*call: Any) -> None:
        reached.append(call)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(Gate(service)(request, receive, send))
    return bool(reached), sent


def test_the_gate_answers_for_the_service() -> None:
    reached, sent = ask(scope("/v1/control/start-run", ELSEWHERE))
    assert not reached and sent[0]["status"] == 403
    reached, sent = ask(scope("/v1/control/start-run", ELSEWHERE, "websocket"))
    assert not reached and sent[0]["type"] == "websocket.close"
    assert not ask(scope("/v1/fleet/pull-messages", ("127.0.0.1", 5000), "websocket"))[0], "Flower has none"
    assert ask(scope("/v1/control/start-run", ("127.0.0.1", 5000)))[0]
    assert ask(scope("/v1/fleet/send-heartbeat", ELSEWHERE))[0]
    assert ask({"type": "lifespan"})[0]


@pytest.mark.long
def test_flowers_service_is_made_where_the_launcher_puts_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it up to the point where it would listen."""
    import os
    import sys

    import flwr.superlink.config_loader as states
    import flwr.superlink.main as service
    import uvicorn
    from flwr.superlink.routers.fleet.router import router
    from flwr.superlink.servicer.fleet import fleet_handlers
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from fedalc.deployment import superlink

    served: list[Any] = []
    options: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **named: (served.append(app), options.update(named)))
    monkeypatch.setattr(fleet_handlers, "push_messages", fleet_handlers.push_messages)
    monkeypatch.setattr(service, "create_app", service.create_app)  # to be put back afterwards
    monkeypatch.setattr(states, "ObjectStoreFactory", states.ObjectStoreFactory)
    words = [
        "--insecure",
        "--port",
        "1",
        "--max-request-mb",
        "3",
        "--max-reply-mb",
        "7",
        "--max-connections",
        "20",
        "--messages-in-memory",
    ]
    monkeypatch.setattr(sys, "argv", ["flower-superlink", *words])
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    for logger in (loggers := [logging.getLogger(name) for name in ("uvicorn.error", "uvicorn.access", "flwr")]):
        monkeypatch.setattr(logger, "filters", [])
    superlink.main()
    assert all(any(isinstance(limit, SeldomFilter) for limit in logger.filters) for logger in loggers)
    gate = served[0].user_middleware[0]
    assert gate.cls is Gate
    assert gate.kwargs["limits"] == Limits(3 * MIB, 7 * MIB, connections=20)
    assert gate.kwargs["registered"](b"nobody's key") is None
    assert issubclass(options["http"], H11Protocol) and options["ws"] == "none"
    assert not {"FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"} & set(os.environ), "other ports"
    assert fleet_handlers.push_messages.__name__ == "push_own"
    found = states.get_objectstore_linkstate_factories("a.db", states.get_federation_manager(False))
    assert [factory.database for factory in found] == [":flwr-in-memory:", "a.db"]
    paths = {getattr(route, "path", "") for route in router.routes}
    assert paths and all(is_allowed(scope(path, ELSEWHERE)) for path in paths), paths


def test_a_reply_in_the_name_of_another_node_is_refused() -> None:
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.error import FlowerError

    taken: list[Any] = []
    push = own_replies_only(lambda request, state: taken.append(request))
    for sender in (5, 6):
        message = Message(metadata=Metadata(src_node_id=5))
        request = PushMessagesRequest(node=Node(node_id=sender), messages_list=[message])
        if sender == 5:
            push(request=request, state=None)
        else:
            with pytest.raises(FlowerError, match="not its own message"):
                push(request=request, state=None)
    assert [request.node.node_id for request in taken] == [5]
