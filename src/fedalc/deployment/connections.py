"""Connections to the server: how many, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedalc.deployment.gate_limits import Limits, host_of

_LINGER = 2.0  # seconds in which a refused sender may read why, while what it still sends is thrown away
_LOOPBACK = ("127.0.0.1", "::/64")  # this machine's own programs come from there


def protocol(limits: Limits) -> type[H11Protocol]:
    """Uvicorn's, with limits: it has none for connections that send no request, or the half of one."""
    known: Counter[str] = Counter()

    class Guarded(H11Protocol):
        host = ""
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            host = host_of(self.client[0] if self.client else "")
            too_many = known[host] >= limits.address_connections and host not in _LOOPBACK
            if too_many or known.total() >= limits.connections:
                transport.abort()
                return
            self.host = host
            known[host] += 1
            self._wait_for_request()

        def data_received(self, data: bytes) -> None:
            if self.conn.their_state is h11.IDLE and self._waiting is None:
                self._wait_for_request()
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            if self.host:
                known[self.host] -= 1
                if not known[self.host]:
                    del known[self.host]
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self.loop.call_later(_LINGER, self.transport.abort)

        def _wait_for_request(self) -> None:
            self._waiting = self.loop.call_later(limits.header_seconds, self._too_late)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _too_late(self) -> None:
            self._waiting = None
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self.transport.abort()

    return Guarded
