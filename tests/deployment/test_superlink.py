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


def test_flowers_service_is_made_where_the_launcher_puts_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the moment in which it would listen."""
    import sys

    import flwr.superlink.main as service
    import uvicorn
    from flwr.superlink.routers.fleet.router import router

    from fedalc.deployment import superlink

    served: list[Any] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: served.append(app))
    monkeypatch.setattr(service, "create_app", service.create_app)  # to be put back afterwards
    monkeypatch.setattr(sys, "argv", ["flower-superlink", "--insecure", "--port", "1"])
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    superlink.main()
    assert served[0].user_middleware[0].cls is Gate
    paths = {getattr(route, "path", "") for route in router.routes}
    assert paths and all(is_allowed(scope(path, ELSEWHERE)) for path in paths), paths
