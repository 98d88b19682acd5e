"""The gate in front of Flower's SuperLink: which requests it accepts, and how large they may be.

A SuperLink serves parties and operators on one port, and reads every body before it checks the sender. The gate checks
first: it accepts requests of parties from anywhere, within limits, and all other requests from this machine only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fedalc.deployment.gate_limits import KIB, Account, Accounts, Limits, Pace, Refused, Room, host_of
from fedalc.deployment.gate_log import Seldom
from fedalc.deployment.node_signatures import Registered, Signatures

_FLEET = "/v1/fleet/"
_FOR_PARTIES = re.compile(r"/health|/v1/fleet/[a-z-]+")
_PUSHES = (_FLEET + "push-object", _FLEET + "push-messages")
_PULL = _FLEET + "pull-messages"
_CHECKS_AT_ONCE = 4  # signature checks in parallel; more wait

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI middleware. `registered` returns the node id of a public key."""

    def __init__(
        self,
        app: App,
        limits: Limits | None = None,
        registered: Registered = lambda key: None,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.limits = limits = limits or Limits()
        self.strangers = Accounts(limits.stranger_requests, limits.stranger_rate, clock)
        self.parties = Accounts(limits.party_requests, limits.party_rate, clock)
        self.room = Room(limits.room)
        self.signatures = Signatures(registered)
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._log = _Log(say, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # Flower uses none
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
        else:
            try:
                await self._http(scope, receive, send)
            except Refused as refusal:
                self._log.note(_host(scope), scope["path"], refusal)
                await _answer(send, refusal)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_allowed(scope):
            raise Refused(403, "only allowed from the server's own machine")
        if not _FOR_PARTIES.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise Refused(415, "a compressed body")
        size = _content_length(headers)
        node = await self._signer(headers) if scope["path"].startswith(_FLEET) else None
        visit = self._stranger(scope, size) if node is None else self._party(scope["path"], str(node), size)
        async with visit as (account, limit, pace):
            body = await _read_body(receive, limit, pace)
            if body is None:
                return  # the sender disconnected
            if node is not None:
                await asyncio.to_thread(self.signatures.check_body, node, headers, scope["path"], body)
            if node is not None and scope["path"] == _PULL:
                send = _noting_questions(send, account)
            await self.app(scope, _replayed(body, receive), send)

    async def _signer(self, headers: Mapping[str, str]) -> int | None:
        async with self._checks:
            signature = await asyncio.to_thread(self.signatures.check, headers)
        if signature is None:
            return None
        self.signatures.first_use(*signature)
        return signature[0]

    @asynccontextmanager
    async def _stranger(self, scope: Scope, size: int | None) -> AsyncIterator[tuple[Account, int, Pace]]:
        limits = self.limits
        limit = _checked_size(size, limits.stranger_body, "without the signature of a registered node")
        if self.strangers.requests >= limits.strangers_requests:
            raise Refused(503, "too many requests at once without the signature of a registered node")
        own_health = scope["path"] == "/health" and _from_this_machine(scope)
        with self.strangers.admit(_host(scope), 0 if own_health else max(limit, KIB)) as account:
            yield account, limit, Pace(limits.stranger_seconds)

    @asynccontextmanager
    async def _party(self, path: str, node: str, size: int | None) -> AsyncIterator[tuple[Account, int, Pace]]:
        pushes = path in _PUSHES
        limit = _checked_size(size, self.limits.request if pushes else self.limits.party_body, "for this request")
        with self.parties.admit(node, 1) as account:
            if pushes:
                if account.pushed + limit > self.limits.reply:
                    raise Refused(413, f"node {node}: a reply of more than {self.limits.reply} bytes (--max-reply-mb)")
                account.pushed += limit
            async with self._place(account, limit):
                yield account, limit, self.limits.party_pace

    @asynccontextmanager
    async def _place(self, account: Account, size: int) -> AsyncIterator[None]:
        """Reserve memory for a body. A party waits for its own bodies first, so that it takes no more than its share.
        Small requests, such as heartbeats and asking for work, do not wait."""
        if size <= self.limits.party_body:
            yield
            return
        account.room = account.room or Room(self.limits.request)
        async with account.room.reserve(size), self.room.reserve(size):
            yield


def is_allowed(scope: Scope) -> bool:
    """Return whether this is a request that parties need, or comes from this machine."""
    return _FOR_PARTIES.fullmatch(scope["path"]) is not None or _from_this_machine(scope)


def _from_this_machine(scope: Scope) -> bool:
    """Return whether a request comes from the loopback, or from the address it was sent to."""
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or (server is not None and client[0] == server[0])


def _host(scope: Scope) -> str:
    client = scope.get("client")
    return host_of(client[0]) if client else "unknown"


def _content_length(headers: Mapping[str, str]) -> int | None:
    """Return the announced size, or None without one. The HTTP parser guarantees that there is only one."""
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise Refused(400, "a Content-Length that is not a number")
    return int(length)


def _checked_size(size: int | None, limit: int, whose: str) -> int:
    """Return how many bytes to read at most: the announced size, or the limit without one."""
    if size is not None and size > limit:
        raise Refused(413, f"a body of more than {limit} bytes {whose}")
    return limit if size is None else size


async def _read_body(receive: Receive, limit: int, pace: Pace) -> bytes | None:
    parts, size = [], 0
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(began + pace.allows(0)) as waiting:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise Refused(413, f"a body of more than {limit} bytes")
                if part:
                    parts.append(part)
                    waiting.reschedule(began + pace.allows(size))
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Refused(408, "a body that came too slowly") from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body to the app, and then passes on the connection's events."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    del body

    async def again() -> Any:
        return messages.pop() if messages else await receive()

    return again


def _noting_questions(send: Send, account: Account) -> Send:
    """Reset the party's pushed bytes after a pull with a non-empty answer: it has a new question now."""

    good = False

    async def noted(message: MutableMapping[str, Any]) -> None:
        nonlocal good
        if message["type"] == "http.response.start":
            good = message["status"] == 200
        elif good and message.get("body"):
            account.pushed = 0
        await send(message)

    return noted


async def _answer(send: Send, refusal: Refused) -> None:
    """Send the refusal and close the connection, without reading what is still on its way."""
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    if refusal.status in (429, 503):
        headers.append((b"retry-after", b"5"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{refusal.why}\n".encode()})


class _Log:
    """Logs refusals: one line a minute for each sender and reason, with a count."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.say, self._seldom = say, Seldom(clock)

    def note(self, host: str, path: str, refusal: Refused) -> None:
        due = self._seldom.due((host, refusal.why))
        if due is not None:
            (who, why), more = due
            self.say(f"fedalc refused ({refusal.status}) {who} {path[:80]!r}: {why}{more}")
