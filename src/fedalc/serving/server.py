"""Run the service: bind, announce, serve until SIGINT or SIGTERM, finish what is under way."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedalc.core.interrupt import Interrupt
from fedalc.errors import FedalcError
from fedalc.serving.limits import Limits
from fedalc.workflows.load_model import finished_model

if TYPE_CHECKING:
    import uvicorn

    from fedalc.serving.app import Service

BACKLOG = 128


def serve(
    run: Path,
    host: str,
    port: int,
    *,
    limits: Limits,
    token_file: Path | None,
    device: str,
    access_log: bool,
    tell: Callable[[str], None],
) -> None:
    """Serve the model of a finished run until a signal stops it."""
    try:
        import uvicorn  # noqa: F401

        from fedalc.serving.app import Service
    except ImportError as error:
        raise FedalcError(f"serve needs {error.name}: pip install 'fedalc[serve]'") from None
    from fedalc.serving.predictor import RecordPredictor
    from fedalc.serving.token import Token

    token = None if token_file is None else Token.read(token_file)
    with bound(host, port) as listening:  # first: loading a model takes seconds
        predictor = RecordPredictor(finished_model(run, device))
        predictor.warm_up()
        service = Service(predictor, run.resolve().name, limits, token)
        address, chosen = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        tell(f"{run}: {len(predictor.model.label_names):,} labels; takes {predictor.takes}")
        if not is_loopback(host):
            tell(_warning(address, token is not None))
        tell(f"serving at http://{shown}:{chosen} (POST /predict); stop with Ctrl-C")
        with Interrupt():  # uvicorn raises the signal again once it has stopped
            server_of(service, host, limits, access_log).run(sockets=[listening])
    tell("stopped")


def server_of(service: Service, host: str, limits: Limits, access_log: bool = False) -> uvicorn.Server:
    """Return the server, to run with a bound socket."""
    import uvicorn

    from fedalc.serving.protocol import JsonRefusals

    config = uvicorn.Config(
        service.app(_allowed_hosts(host)),
        log_level="info" if access_log else "warning",
        access_log=access_log,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=BACKLOG + 10 * limits.queue,
        timeout_graceful_shutdown=int(limits.timeout) + 1,
        http=JsonRefusals,
        ws="none",
        lifespan="on",
    )
    return uvicorn.Server(config)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise FedalcError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; give another --port (0: any free one) "
            "or --host"
        ) from None


def _allowed_hosts(host: str) -> list[str]:
    """Return the names that a request may call the service by. On this machine only: a web page elsewhere that makes
    a browser resolve its own name to 127.0.0.1 is refused. (The middleware reads [::1]:8000 as "[".)"""
    return ["127.0.0.1", "localhost", "[", host] if is_loopback(host) else ["*"]


def _warning(address: str, token: bool) -> str:
    who = "whoever has the token" if token else "everyone who can reach it: give --token-file to ask for a token"
    return (
        f"note: {address} can be reached from other machines, by {who}. Requests travel unencrypted: put a proxy with "
        "TLS in front"
    )
