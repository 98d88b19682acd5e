"""Flower's SuperLink behind a gate: `python -m fedalc.deployment.superlink …` takes flower-superlink's arguments, and
the gate's own (`--max-request-mb`, `--max-reply-mb`, `--max-connections`), and `--messages-in-memory`.

It listens on one port only. Flower's older gRPC APIs would listen on other ports, beside the gate, so they stay off.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from fedalc.deployment.gate import Gate
from fedalc.deployment.gate_limits import MIB, Limits
from fedalc.deployment.gate_log import limit_logs
from fedalc.deployment.processes import end_with_parent

_UNKNOWN_FLOWER = "fedalc's gate does not work with this version of Flower; install flwr 1.41"
_BESIDE_THE_GATE = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")


def main() -> None:
    end_with_parent()
    import flwr.superlink.config_loader as states
    import flwr.superlink.main as service
    import uvicorn
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    from fedalc.deployment.connections import protocol

    limits, in_memory, sys.argv[1:] = read_arguments(sys.argv[1:])
    for name in _BESIDE_THE_GATE:
        os.environ.pop(name, None)
    _allow_open_files(limits.connections)
    make, serve = service.create_app, uvicorn.run
    gated = []

    def make_gated(*arguments: Any, **named: Any) -> Any:
        app = make(*arguments, **named)

        def registered(key: bytes) -> int | None:
            node: int | None = app.state.linkstate_factory.state().get_node_id_by_public_key(key)
            return node

        app.add_middleware(Gate, limits=limits, registered=registered, say=_say)
        gated.append(app)
        return app

    def serve_gated(*arguments: Any, **named: Any) -> None:
        """Stop if a later Flower creates its service in another way, without the gate."""
        if not gated:
            sys.exit(_UNKNOWN_FLOWER)
        logging.getLogger("uvicorn.access").addFilter(_not_refused)
        limit_logs()
        serve(*arguments, **{**named, "http": protocol(limits), "ws": "none"})

    if not (hasattr(fleet_handlers, "push_messages") and hasattr(states, "ObjectStoreFactory")):
        sys.exit(_UNKNOWN_FLOWER)
    if in_memory:  # Flower has no option for it: runs and nodes in a database, what messages contain in memory
        vars(states)["ObjectStoreFactory"] = lambda database: ObjectStoreFactory()
    vars(fleet_handlers)["push_messages"] = own_replies_only(fleet_handlers.push_messages)
    service.create_app = make_gated
    uvicorn.run = serve_gated
    flower_superlink()


def read_arguments(words: list[str]) -> tuple[Limits, bool, list[str]]:
    """Return the gate's limits, whether messages are kept in memory, and the arguments that are Flower's."""
    defaults = Limits()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--max-request-mb", type=int, default=defaults.request // MIB)
    parser.add_argument("--max-reply-mb", type=int, default=defaults.reply // MIB)
    parser.add_argument("--max-connections", type=int, default=defaults.connections)
    parser.add_argument("--messages-in-memory", action="store_true")
    given, others = parser.parse_known_args(words)
    limits = Limits(given.max_request_mb * MIB, given.max_reply_mb * MIB, connections=given.max_connections)
    return limits, given.messages_in_memory, others


def own_replies_only(push: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse messages in the name of another node. Flower checks the sender of a request, not of its messages."""

    def push_own(request: Any, **named: Any) -> Any:
        sender = request.node.node_id
        if any(message.metadata.src_node_id != sender for message in request.messages_list):
            from flwr.supercore.error import ApiErrorCode, FlowerError

            _say(f"fedalc refused: node {sender} sent a reply in the name of another node")
            raise FlowerError(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, f"SuperNode {sender}: not its own message")
        return push(request=request, **named)

    return push_own


def _allow_open_files(connections: int) -> None:
    """Raise the limit of open files: each connection is one."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = connections + 1024
        if now != resource.RLIM_INFINITY and now < wanted:
            most_here = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most_here, most))


def _not_refused(record: logging.LogRecord) -> bool:
    """Filter out refused requests: the gate logs these, with a limit, so that a flood cannot fill the disk."""
    arguments = record.args
    return not (isinstance(arguments, tuple) and arguments and arguments[-1] in (401, 403, 408, 413, 415, 429, 503))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
