"""A real server under a flood from senders without a key: memory stays bounded, and parties are served."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedalc.deployment.certificates import Certificates, make_certificates
from fedalc.deployment.node_keys import make_node_key
from fedalc.deployment.node_signatures import signing_bodies
from fedalc.deployment.processes import Process, free_port, is_healthy
from fedalc.deployment.server import Server
from fedalc.deployment.state import ServerState
from tests.deployment.flood import Flood

pytestmark = pytest.mark.deployment

GB, MB = 10**9, 10**6
SIZE = 2 * GB  # at most
SECONDS = 20.0
PER_CONNECTION = 20 * MB  # what the sockets of both sides hold; the server reads next to nothing
SLOW_SECONDS = 14.0  # longer than the server waits for a body
BOUND = 200 * MB  # by which the server may grow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Process]]:
    tmp_path = tmp_path_factory.mktemp("flood")
    make_certificates(tmp_path / "certificates", ["127.0.0.1"], days=2)
    found = Server(ServerState(tmp_path / "state"), Certificates(tmp_path / "certificates"), "127.0.0.1", free_port())
    with found.running() as process:
        yield found, process


def memory(process: Process, what: str = "VmRSS") -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1000


class Party:
    """A registered node that only asks for work, as Flower's own does."""

    def __init__(self, server: Server, key: Path) -> None:
        from flwr.supernode.fleet_http_connection import http_request_response

        assert server.certificates is not None
        private: Any = load_ssh_private_key(key.read_bytes(), None)
        self.connection = http_request_response(
            server.own_address, False, str(server.certificates.authority), (private, private.public_key())
        )

    def __enter__(self) -> Any:
        return self.connection.__enter__()[1]

    def __exit__(self, *error: Any) -> None:
        self.connection.__exit__(*error)


def test_a_captured_request_is_refused_when_it_is_sent_again(server: tuple[Server, Process], tmp_path: Path) -> None:
    """With its own or another body; a new request of the same party is served."""
    known, _ = server
    assert known.certificates is not None
    node = int(known.state.flower.register(make_node_key(tmp_path / "party.key")))
    private: Any = load_ssh_private_key((tmp_path / "party.key").read_bytes(), None)
    interceptor = NodeAuthHttpInterceptor(private, private.public_key())
    trust = ssl.create_default_context(cafile=str(known.certificates.authority))

    with httpx.Client(verify=trust, base_url=f"https://{known.own_address}", trust_env=False) as client:

        def request() -> httpx.Request:
            body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
            headers = {"content-type": "application/protobuf"}
            made = client.build_request("POST", "/v1/fleet/pull-messages", content=body, headers=headers)
            context = ProtobufRequestContext("", PullMessagesRequest(), made)
            signing_bodies(NodeAuthHttpInterceptor.intercept)(interceptor, context, lambda context: None)
            return made

        for _ in range(60):  # just after its start the server asks nodes to sign again
            captured = request()
            first = client.send(captured)
            if first.status_code != 503:
                break
            time.sleep(0.5)
        assert first.status_code == 200
        altered = client.build_request(
            "POST", captured.url, content=b"", headers=dict(captured.headers) | {"content-length": "0"}
        )
        again = client.send(captured)
        assert again.status_code == 401 and "used before" in again.text
        assert client.send(altered).status_code == 401
        assert client.send(request()).status_code == 200
        fresh = dict(request().headers)
        assert (
            client.post("/v1/fleet/pull-messages", content=b"x", headers=fresh | {"content-length": "1"}).status_code
            == 401
        )


def test_memory_stays_bounded_and_parties_are_served(server: tuple[Server, Process], tmp_path: Path) -> None:
    known, process = server
    key = tmp_path / "party.key"
    known.state.flower.register(make_node_key(key))
    assert known.certificates is not None
    authority = known.certificates.authority
    with Party(known, key) as ask_for_work:
        assert ask_for_work() is None
        before = memory(process)
        flood = Flood(known.port, authority, SIZE, SECONDS)
        answers: list[float] = []

        def sample() -> None:
            began = time.monotonic()
            assert ask_for_work() is None
            answers.append(time.monotonic() - began)

        flood.run(fast=4, slow=20, sample=sample)
        Flood(known.port, authority, SIZE, SLOW_SECONDS).run(fast=0, slow=50, sample=sample)
        after, most = memory(process), memory(process, "VmHWM")
        assert ask_for_work() is None
    print(
        f"\n{flood.sent / GB:.2f} GB in {flood.connections} connections; server: {before / MB:.0f} MB before, "
        f"{after / MB:.0f} MB after, {most / MB:.0f} MB at most; the party was answered {len(answers)} times, "
        f"after at most {max(answers):.1f} s; log: {known.state.log.stat().st_size} bytes"
    )
    assert flood.connections > 24 and flood.sent < flood.connections * PER_CONNECTION
    assert known.state.log.stat().st_size < 20_000
    assert most - before < BOUND
    assert is_healthy(known.own_address, authority)
    said = known.state.log.read_text()
    assert "fedalc refused (413) 127.0.0.1" in said
    assert "fedalc refused (503) 127.0.0.1" in said and "fedalc refused (408) 127.0.0.1" in said
