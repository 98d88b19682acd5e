"""The limits of the gate, and the accounts of requests in progress."""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
_REMEMBERED = 10_000  # accounts without a request in progress
_PRIVATE_BITS = 64  # of an IPv6 address: a host can choose them freely, so they do not identify it


@dataclass(frozen=True)
class Limits:
    """Bytes, seconds and numbers. A stranger is a sender without the signature of a registered node."""

    request: int = 64 * MIB  # the body of a party's push; Flower sends arrays in pieces of 5 MiB
    reply: int = 1024 * MIB  # all pushes of a party for one question
    party_body: int = 64 * KIB  # any other request of a party; up to here none waits for room
    party_requests: int = 16  # of one party at a time
    party_rate: int = 3000  # requests of one party in a minute
    parties_bodies: int = 128 * MIB  # larger bodies of all parties in memory; more wait
    party_seconds: float = 30.0  # for a body, plus a second for every `slowest` bytes received
    slowest: int = 64 * KIB
    stranger_body: int = 16 * KIB
    stranger_requests: int = 8  # of one address at once
    strangers_requests: int = 64  # of all addresses at once
    stranger_rate: int = MIB  # bytes of one address in a minute; a request counts as at least 1 KiB
    stranger_seconds: float = 10.0  # for a body
    header_seconds: float = 10.0
    refused_seconds: float = 2.0  # for a refused sender to read why; what it still sends is not read
    connections: int = 1000
    address_connections: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.request <= self.reply:
            raise ValueError("the largest request must be above 0, and not above the largest reply")

    @property
    def room(self) -> int:
        """Memory for larger bodies of all parties. One party gets at most `request`, so half is left for others."""
        return max(self.parties_bodies, 2 * self.request)

    @property
    def party_pace(self) -> Pace:
        return Pace(self.party_seconds, self.slowest)


@dataclass(frozen=True)
class Pace:
    """How slowly a body may arrive: within `seconds`, plus a second for every `slowest` bytes received."""

    seconds: float
    slowest: float = math.inf

    def allows(self, received: int) -> float:
        """Return the seconds since the start within which the next bytes have to arrive."""
        return self.seconds + received / self.slowest


class Refused(Exception):
    """A request that the gate refuses."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def host_of(address: str) -> str:
    """Return what counts as one sender: an IPv4 address, or the /64 network of an IPv6 address.

    >>> host_of("198.51.100.4"), host_of("::ffff:198.51.100.4"), host_of("2001:db8:1:2:3::4")
    ('198.51.100.4', '198.51.100.4', '2001:db8:1:2::/64')
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip) >> _PRIVATE_BITS << _PRIVATE_BITS, 128 - _PRIVATE_BITS)))


class Room:
    """A limit on bytes in memory. Requests without room wait, in order of arrival."""

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

    requests: int = 0  # in progress
    spent: float = 0.0  # of the minute's allowance
    at: float = 0.0  # when `spent` was computed
    pushed: int = 0  # bytes since the party's last question
    room: Room | None = None  # a party's own share of the room for larger bodies


class Accounts:
    """Limits the requests of each sender: in parallel, and per minute. Keeps a bounded number of accounts."""

    def __init__(self, at_once: int, rate: float, clock: Callable[[], float]) -> None:
        self.at_once, self.rate, self.clock = at_once, rate, clock
        self.requests = 0  # in progress, of all senders
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
        """Charge the account. What was spent decays evenly over a minute."""
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
