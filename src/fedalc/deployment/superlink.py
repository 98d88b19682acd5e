"""Flower's SuperLink behind a gate: `python -m fedalc.deployment.superlink …` takes flower-superlink's arguments.

A SuperLink has one port for the parties and for those who run it, and knows the parties only: anybody who reaches it
may register a key or submit an app. The gate leaves the parties' part open to all and the rest to this machine.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedalc.deployment.processes import end_with_parent

_FOR_PARTIES = re.compile(r"/health|/v1/fleet/[a-z-]+")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """Answers 403 to whoever is elsewhere and wants more than a party needs."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not is_allowed(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"only from the server's own machine\n"})
            return
        await self.app(scope, receive, send)


def is_allowed(scope: Scope) -> bool:
    """What a party needs, or a request from this machine: from its loopback, or from the address it came to."""
    if _FOR_PARTIES.fullmatch(scope["path"]):
        return True
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or (server is not None and client[0] == server[0])


def main() -> None:
    end_with_parent()
    import flwr.superlink.main as service
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    make, serve = service.create_app, uvicorn.run
    gated = []

    def make_gated(*arguments: Any, **named: Any) -> Any:
        app = make(*arguments, **named)
        app.add_middleware(Gate)
        gated.append(app)
        return app

    def serve_gated(*arguments: Any, **named: Any) -> None:
        """A later Flower that makes its service in another way must not run without the gate."""
        if not gated:
            sys.exit("this version of Flower cannot be run behind fedalc's gate; install flwr 1.41")
        serve(*arguments, **named)

    service.create_app = make_gated
    uvicorn.run = serve_gated
    flower_superlink()


if __name__ == "__main__":
    main()
