"""The gate: parties from anywhere, everything else from this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedalc.deployment.superlink import Gate, is_allowed

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

    async def receive() -> None: ...

    asyncio.run(Gate(service)(request, receive, send))
    return bool(reached), sent


def test_the_gate_answers_for_the_service() -> None:
    reached, sent = ask(scope("/v1/control/start-run", ELSEWHERE))
    assert not reached and sent[0]["status"] == 403
    reached, sent = ask(scope("/v1/control/start-run", ELSEWHERE, "websocket"))
    assert not reached and sent[0]["type"] == "websocket.close"
    assert ask(scope("/v1/control/start-run", ("127.0.0.1", 5000)))[0]
    assert ask(scope("/v1/fleet/send-heartbeat", ELSEWHERE))[0]
    assert ask({"type": "lifespan"})[0]


def test_flowers_own_service_gets_the_gate() -> None:
    """What the launcher relies on: the service is made by `create_app`, looked up when it is needed."""
    import flwr.superlink.cli.flower_superlink as command
    import flwr.superlink.main as service
    from flwr.superlink.routers.fleet.router import router

    assert "from flwr.superlink.main import" in open(command.__file__).read()  # noqa: SIM115, PTH123
    assert callable(service.create_app)
    assert router.prefix == "/v1/fleet"
