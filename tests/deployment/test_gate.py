"""The gate's limits, in one process: what it refuses before Flower sees it, without keeping any of it."""

from __future__ import annotations

import asyncio
import datetime
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedalc.deployment import gate_limits
from fedalc.deployment.gate import Gate
from fedalc.deployment.gate_limits import Accounts, Limits, Refused
from fedalc.deployment.gate_log import SeldomFilter
from fedalc.deployment.node_signatures import signing_bodies

NODE = 4711
P384 = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
PAIR = PRIVATE, PUBLIC = generate_key_pairs()
OTHERS = [generate_key_pairs() for _ in range(2)]  # of two more registered parties
LIMITS = Limits(
    request=1000, reply=2500, party_body=100, party_requests=2, party_rate=20, parties_bodies=1500, stranger_body=50,
    stranger_requests=2, strangers_requests=3, stranger_rate=4096, stranger_seconds=0.01,
)  # fmt: skip
PUSH, PULL = "/v1/fleet/push-object", "/v1/fleet/pull-messages"


class Clock:
    """The clock of the gate and of Flower."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.seconds = now(), 0.0
        for place in ("supercore.date", "supernode.node_auth_http_interceptor"):
            monkeypatch.setattr(f"flwr.{place}.now", self.now)

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime.datetime:
        return self.began + datetime.timedelta(seconds=self.seconds)


class Service:
    """Replaces Flower: counts the requests that reach it, and can be slow on request."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answer = b""
        self.go_on: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        self.bodies.append(message["body"])
        if self.go_on is not None:
            await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer})


class House:
    def __init__(self, clock: Clock, limits: Limits = LIMITS) -> None:
        self.clock, self.service, self.said = clock, Service(), list[str]()
        nodes = {public_key_to_bytes(public): NODE + place for place, (_, public) in enumerate([PAIR, *OTHERS])}
        self.gate = Gate(self.service, limits, nodes.get, self.said.append, clock)
        clock.seconds += 10  # after the start

    def signed(self, private: Any = PRIVATE, public: Any = PUBLIC, age: float = 0.0) -> dict[str, str]:
        stamp = (self.clock.now() - datetime.timedelta(seconds=age)).isoformat()
        signature = sign_message(private, stamp.encode())
        return {
            "flwr-public-key": b64encode(public_key_to_bytes(public)).decode(),
            "flwr-timestamp": stamp,
            "flwr-signature": b64encode(signature).decode(),
        }

    async def ask(
        self, path: str, parts: Iterable[bytes] = (b"",), headers: dict[str, str] | None = None,
        host: str = "198.51.100.4", length: str | None = "right", stuck: bool = False,
    ) -> int:  # fmt: skip
        """Return the status. `length`: as announced, None for a chunked body. `stuck`: the body never ends."""
        parts = list(parts)
        given = dict(headers or {})
        if length is None:
            given["transfer-encoding"] = "chunked"
        else:
            given["content-length"] = str(sum(map(len, parts))) if length == "right" else length
        left, self.read, status = list(parts), 0, []

        async def receive() -> dict[str, Any]:
            if not left:
                await asyncio.Event().wait()
            self.read += 1
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left) or stuck}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        scope = {
            "type": "http", "path": path, "client": (host, 5000), "server": ("192.0.2.7", 9443),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        await self.gate(scope, receive, send)
        return int(status[0])


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(Clock(monkeypatch))


def test_a_stranger_may_say_little(house: House) -> None:
    async def go() -> None:
        assert await house.ask(PUSH, [b"a" * 50]) == 200
        assert await house.ask(PUSH, [b"a" * 51]) == 413 and house.read == 0, "not a byte is read"
        assert await house.ask(PUSH, [b"a" * 30] * 9, length=None) == 413 and house.read == 2, "nor after the limit"
        assert await house.ask(PUSH, [b"a" * 30] * 9, length="30") == 413, "whatever it announced"
        assert await house.ask(PUSH, [b"a"], {"content-encoding": "gzip"}) == 415
        assert await house.ask("/v1/control/start-run", [b"a"]) == 403 and house.read == 0
        assert await house.ask("/v1/control/start-run", [b"a" * 5000], host="127.0.0.1") == 200
        for wrong in ("-1", "x", "²", "1" * 30):
            assert await house.ask(PUSH, [b""], length=wrong) == 400

    asyncio.run(go())
    assert house.service.bodies[:2] == [b"a" * 50, b"a" * 5000]


def test_a_strangers_slow_body(house: House) -> None:
    assert asyncio.run(house.ask(PUSH, [b"a"], length="20", stuck=True)) == 408
    assert not house.service.bodies


def test_strangers_at_once_and_in_a_minute(house: House) -> None:
    async def go() -> None:
        house.service.go_on = asyncio.Event()
        first = [asyncio.create_task(house.ask(PUSH)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await house.ask(PUSH) == 503, "two of one address"
        first.append(asyncio.create_task(house.ask(PUSH, host="198.51.100.5")))
        while len(house.service.bodies) < 3:
            await asyncio.sleep(0)
        assert await house.ask(PUSH, host="198.51.100.6") == 503, "three of all"
        house.service.go_on.set()
        assert [await task for task in first] == [200] * 3
        house.service.go_on = None
        assert [await house.ask(PUSH) for _ in range(3)] == [200, 200, 429], "four KiB a minute"
        assert await house.ask(PUSH, host="198.51.100.7") == 200
        house.clock.seconds += 16  # a quarter of them are forgotten
        assert [await house.ask(PUSH) for _ in range(2)] == [200, 429]
        assert [await house.ask("/health", host="127.0.0.1") for _ in range(9)] == [200] * 9

    asyncio.run(go())


def test_a_party_may_say_more(house: House) -> None:
    async def go() -> None:
        assert await house.ask(PUSH, [b"a" * 500] * 2, house.signed()) == 200
        assert await house.ask(PUSH, [b"a" * 1001], house.signed()) == 413
        assert await house.ask(PUSH, [b"a" * 500] * 3, house.signed(), length=None) == 413
        assert await house.ask(PULL, [b"a" * 101], house.signed()) == 413

    asyncio.run(go())


def test_who_is_no_party(house: House) -> None:
    """An unregistered key, a signature by another key, an old one, none at all, and garbage."""
    private, public = generate_key_pairs()
    cases = [house.signed(private, public), house.signed(private), house.signed(age=320), {}]
    cases += [house.signed() | {name: "?"} for name in ("flwr-public-key", "flwr-timestamp", "flwr-signature")]
    cases += [house.signed() | {"flwr-timestamp": "2020-01-01T00:00:00"}, house.signed() | {"flwr-signature": "AAAA"}]
    for headers in cases:
        assert asyncio.run(house.ask(PUSH, [b"a" * 51], headers)) == 413, headers
    assert not house.service.bodies


def test_a_request_that_is_sent_again_is_refused(house: House) -> None:
    async def go() -> None:
        captured = house.signed()
        assert await house.ask(PUSH, [b"a" * 100], captured) == 200
        assert await house.ask(PUSH, [b"a" * 100], captured) == 401
        assert await house.ask(PUSH, [b"another body"], captured) == 401
        r, s = decode_dss_signature(b64decode(captured["flwr-signature"]))
        twin = b64encode(encode_dss_signature(r, P384 - s)).decode()
        assert await house.ask(PUSH, [b"a" * 100], captured | {"flwr-signature": twin}) == 401, "another spelling"
        house.clock.seconds += 200
        assert await house.ask(PUSH, [b"a" * 100], captured) == 401
        assert await house.ask(PUSH, [b"a" * 100], house.signed()) == 200
        house.clock.seconds += 200
        assert await house.ask(PUSH, [b"a" * 100], captured) == 413, "too old to be a party's"
        await house.ask(PULL, [b""], house.signed())
        assert len(house.gate.signatures._used) == 2, "those that are too old are forgotten"

    asyncio.run(go())


def test_a_body_that_was_not_signed_is_refused(house: House) -> None:
    """As fedalc's nodes sign it. Once a node has signed bodies it must go on: else others could strip signatures."""

    def sent(path: str, body: bytes) -> dict[str, str]:
        request = httpx.Request("POST", f"https://server{path}", content=body)
        interceptor = NodeAuthHttpInterceptor(PRIVATE, PUBLIC)
        context = ProtobufRequestContext("", PullMessagesResponse(), request)
        signing_bodies(NodeAuthHttpInterceptor.intercept)(interceptor, context, lambda context: None)
        return {name: value for name, value in request.headers.items() if name.startswith(("flwr-", "fedalc-"))}

    async def go() -> None:
        assert await house.ask(PULL, [b"plain"], house.signed()) == 200, "as a plain flower-supernode does"
        assert await house.ask(PUSH, [b"bo", b"dy"], sent(PUSH, b"body")) == 200
        assert await house.ask(PUSH, [b"Body"], sent(PUSH, b"body")) == 401
        assert await house.ask(PUSH, [b"body"], sent(PULL, b"body")) == 401
        assert await house.ask(PUSH, [b"body"], sent(PUSH, b"body") | {"fedalc-signature": "?"}) == 401
        assert await house.ask(PUSH, [b"body"], house.signed()) == 401, "its signature was taken off"

    asyncio.run(go())
    assert house.service.bodies == [b"plain", b"body"]


def test_a_request_to_an_earlier_server_is_refused(house: House) -> None:
    """The server does not know what an earlier process accepted. A node signs again when it gets 503."""
    captured = house.signed()
    later = House(house.clock)
    assert asyncio.run(later.ask(PUSH, [b"a"], captured)) == 503
    assert asyncio.run(later.ask(PUSH, [b"a"], later.signed())) == 200


def test_a_reply_is_bounded_until_the_next_question(house: House) -> None:
    async def go() -> None:
        push = [b"a" * 1000]
        assert [await house.ask(PUSH, push, house.signed()) for _ in range(3)] == [200, 200, 413]
        assert PullMessagesResponse().SerializeToString() == b"", "as an empty answer is"
        assert await house.ask(PULL, headers=house.signed()) == 200
        assert await house.ask(PUSH, push, house.signed()) == 413, "it was asked nothing"
        house.service.answer = b"a question"
        assert await house.ask(PULL, headers=house.signed()) == 200
        assert [await house.ask(PUSH, push, house.signed()) for _ in range(3)] == [200, 200, 413]

    asyncio.run(go())
    assert any("--max-reply-mb" in line and str(NODE) in line for line in house.said)


async def settled(done: Callable[[], bool]) -> None:
    """Wait until that is so, and a little longer: signatures are checked in threads."""
    while not done():
        await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_large_bodies_of_parties_wait_for_room(house: House) -> None:
    """There is room for 2000 bytes, at most 1000 for each party."""

    async def go() -> None:
        house.service.go_on = asyncio.Event()
        tasks = [asyncio.create_task(house.ask(PUSH, [b"a" * 700], house.signed(*pair))) for pair in [PAIR, *OTHERS]]
        await settled(lambda: len(house.service.bodies) >= 2)
        assert len(house.service.bodies) == 2 and house.gate.room.taken == 1400, "the third party's is not read yet"
        house.service.go_on.set()
        assert [await task for task in tasks] == [200] * 3
        assert house.gate.room.taken == 0

    asyncio.run(go())


def test_one_party_leaves_room_for_others_and_small_requests_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pushes stall, and its second one waits for its own first."""
    house = House(Clock(monkeypatch), replace(LIMITS, party_requests=6, reply=10_000, party_seconds=60.0))

    async def go() -> None:
        silent = [
            asyncio.create_task(house.ask(PUSH, [], house.signed(), length=length, stuck=True))
            for length in ("1000", None, "1000", "1000")
        ]
        await settled(lambda: house.gate.parties.requests == 4)
        assert house.gate.room.taken == 1000
        async with asyncio.timeout(5):
            assert await house.ask(PUSH, [b"a" * 1000], house.signed(*OTHERS[0])) == 200
            assert await house.ask(PULL, [b"a" * 100], house.signed()) == 200, "its own too"
            house.gate.room.taken += 1000  # as if another party pushed
            assert await house.ask(PULL, [b"a" * 100], house.signed(*OTHERS[1])) == 200
            assert await house.ask(PUSH, [b"a" * 100], house.signed(*OTHERS[1])) == 200
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)
        assert house.gate.room.taken == 1000

    asyncio.run(go())


def test_a_partys_body_has_to_come_at_some_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 0.1 s plus 1 s for every 1000 bytes received, so nobody reserves room without using it."""
    house = House(Clock(monkeypatch), replace(LIMITS, party_seconds=0.1, slowest=1000))

    async def go() -> None:
        loop = asyncio.get_running_loop()
        for sent, at_least, at_most in ((0, 0.05, 1.0), (200, 0.25, 1.0)):
            began = loop.time()
            parts = [b"a" * sent] if sent else []
            assert await house.ask(PUSH, parts, house.signed(), length="1000", stuck=True) == 408
            assert at_least < loop.time() - began < at_most
        assert house.gate.room.taken == 0

    asyncio.run(go())
    assert Limits().party_pace.allows(0) == 30 and Limits().party_pace.allows(64 << 20) == 1054


def test_the_log_stays_short(house: House) -> None:
    async def go() -> None:
        for _ in range(50):
            assert await house.ask(PUSH, [b"a" * 51]) == 413
        assert len(house.said) == 1
        house.clock.seconds += 61
        await house.ask(PUSH, [b"a" * 51])
        for number in range(1500):
            await house.ask(PUSH, [b"a" * 51], host=f"10.0.{number % 250}.{number // 250}")

    asyncio.run(go())
    assert "49 times" in house.said[1]
    assert len(house.said) < 1010 and "many addresses" in house.said[-1]


def test_the_logs_of_others_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are limited by their code location, whatever the text; refused requests by address."""
    clock = Clock(monkeypatch)
    limit = SeldomFilter(clock)

    def passes(name: str, level: int, message: str, *arguments: Any) -> str | None:
        record = logging.LogRecord(name, level, "place.py", 1, message, arguments, None)
        return record.getMessage() if limit.filter(record) else None

    def access(address: str, status: int) -> str | None:
        return passes("uvicorn.access", logging.INFO, '%s "%s %s %s" %d', address, "GET", "/health", "1.1", status)

    error = [passes("flwr", logging.ERROR, f"Unsupported Content-Type: {number}") for number in range(50)]
    assert error == ["Unsupported Content-Type: 0"] + [None] * 49
    assert [bool(access(f"198.51.100.4:{port}", 405)) for port in range(3)] == [True, False, False]
    assert access("198.51.100.99:1", 405) and access("198.51.100.4:1", 404)
    assert all(access("198.51.100.4:1", 200) and passes("flwr", logging.INFO, "said by the server") for _ in range(3))
    clock.seconds += 61
    assert passes("flwr", logging.ERROR, "again") == "again, and 49 times in the last minutes"


def test_accounts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_limits, "_REMEMBERED", 5)
    accounts = Accounts(at_once=1, rate=10, clock=lambda: 0.0)
    with accounts.admit("stays", 1), pytest.raises(Refused):
        for number in range(20):
            with accounts.admit(f"host {number}", 1):
                pass
        assert len(accounts._known) == 5 and accounts.requests == 1
        with accounts.admit("stays", 1):
            pass


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="largest reply"):
        Limits(request=2, reply=1)
