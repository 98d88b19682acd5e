"""What the gate allows: the limits, and the accounts of who has how much under way."""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
_REMEMBERED = 10_000  # accounts without a request under way
_PRIVATE_BITS = 64  # of an IPv6 address: a host has all of them, so they do not tell two hosts apart


@dataclass(frozen=True)
class Limits:
    """Bytes, seconds and numbers. A stranger is whoever did not sign as a registered node."""

    request: int = 64 * MIB  # the body of a party's push; Flower sends arrays in pieces of 5 MiB
    reply: int = 1024 * MIB  # all that a party may push for one question
    party_body: int = 64 * KIB  # any other request of a party; up to here none waits for room
    party_requests: int = 16  # of one party at once
    party_rate: int = 3000  # requests of one party in a minute
    parties_bodies: int = 128 * MIB  # larger bodies of all parties at once; more wait
    party_seconds: float = 30.0  # for a body, and a second more for every `slowest` bytes that have come
    slowest: int = 64 * KIB
    stranger_body: int = 16 * KIB
    stranger_requests: int = 8  # of one address at once
    strangers_requests: int = 64  # of all addresses at once
    stranger_rate: int = MIB  # bytes of one address in a minute; a request counts as at least 1 KiB
    stranger_seconds: float = 10.0  # for a body
    header_seconds: float = 10.0
    refused_seconds: float = 2.0  # in which a refused sender may read why; what it still sends is not read
    connections: int = 1000
    address_connections: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.request <= self.reply:
            raise ValueError("the largest request should be above 0, and not above the largest reply")

    @property
    def room(self) -> int:
        """For larger bodies of all parties. One party has `request` of it at most, so half is left for the others."""
        return max(self.parties_bodies, 2 * self.request)

    @property
    def party_pace(self) -> Pace:
        return Pace(self.party_seconds, self.slowest)


@dataclass(frozen=True)
class Pace:
    """How slowly a body may come: within `seconds`, and a second more for every `slowest` bytes that are there."""

    seconds: float
    slowest: float = math.inf

    def allows(self, received: int) -> float:
        """Seconds since its beginning in which the next bytes have to come."""
        return self.seconds + received / self.slowest


class Refused(Exception):
    """A request that is answered by the gate itself."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def host_of(address: str) -> str:
    """What is counted as one: an IPv4 address, or the network of an IPv6 one.

    >>> host_of("198.51.100.4"), host_of("::ffff:198.51.100.4"), host_of("2001:db8:1:2:3::4")
    ('198.51.100.4', '198.51.100.4', '2001:db8:1:2::/64')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> _PRIVATE_BITS << _PRIVATE_BITS, 128 - _PRIVATE_BITS)))


class Room:
    """Bytes that may be in memory at once. Who finds no room waits, in the order of arrival."""

    def __init__(self, size: int) -> None:
        self.size, self.taken = size, 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        async with self._turn:
            while self.taken and self.taken + size > self.size:
                self._freed.clear()
                await self._freed.wait()
            self.taken += size
        try:
            yield
        finally:
            self.taken -= size
            self._freed.set()


@dataclass
class Account:
    """Of one address or one party."""

    requests: int = 0  # under way
    spent: float = 0.0  # of the minute's allowance
    at: float = 0.0  # when `spent` was worked out
    pushed: int = 0  # bytes since the party's last question
    room: Room | None = None  # a party's own share of the room for larger bodies


class Accounts:
    """Requests at once and in a minute, for everyone who comes. Bounded, however many come."""

    def __init__(self, at_once: int, rate: float, clock: Callable[[], float]) -> None:
        self.at_once, self.rate, self.clock = at_once, rate, clock
        self.requests = 0  # under way, of all
        self._known: OrderedDict[str, Account] = OrderedDict()

    def of(self, who: str) -> Account:
        account = self._known.setdefault(who, Account(at=self.clock()))
        self._known.move_to_end(who)
        return account

    @contextmanager
    def admit(self, who: str, cost: float) -> Iterator[Account]:
        account = self.of(who)
        if account.requests >= self.at_once:
            raise Refused(503, f"more than {self.at_once} requests at once")
        self._spend(account, cost)
        account.requests, self.requests = account.requests + 1, self.requests + 1
        try:
            yield account
        finally:
            account.requests, self.requests = account.requests - 1, self.requests - 1
            self._forget()

    def _spend(self, account: Account, cost: float) -> None:
        """What was spent is forgotten evenly over a minute."""
        now = self.clock()
        spent = max(0.0, account.spent - (now - account.at) * self.rate / 60)
        account.spent, account.at = spent, now
        if spent + cost > self.rate:
            raise Refused(429, "too much in a minute")
        account.spent = spent + cost

    def _forget(self) -> None:
        while len(self._known) > _REMEMBERED:
            oldest = next((who for who, account in self._known.items() if not account.requests), None)
            if oldest is None:
                return
            del self._known[oldest]
