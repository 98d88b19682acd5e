"""Connections to the server: how many, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedalc.deployment.gate_limits import KIB, Limits, host_of

_SMALL = 64 * KIB  # an answer up to here is the system's to deliver; strangers get no larger one
_LOOPBACK = ("127.0.0.1", "::/64")  # this machine's own programs come from there


class _Line:
    """A transport that does not read on after its end. TLS would: its close() waits for the other side's goodbye for
    30 seconds, and takes in whatever comes instead."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, linger: float) -> None:
        self.transport, self._loop, self._linger = transport, loop, linger
        self.answered = 0  # bytes of the last answer
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        self.answered += len(data)
        self.transport.write(data)

    def is_closing(self) -> bool:
        return self._ended or self.transport.is_closing()

    def resume_reading(self) -> None:
        if not self._ended:
            self.transport.resume_reading()

    def close(self) -> None:
        """Whoever is still sending may read the answer first."""
        self._end(self._linger)

    def close_now(self) -> None:
        self._end(0)

    def _end(self, after: float) -> None:
        if self.is_closing():
            return
        self._ended = True
        if self.answered > _SMALL:
            self.transport.close()  # which first sends what is left of the answer
        else:
            self.transport.pause_reading()
            self._loop.call_later(after, self.transport.abort)


def protocol(limits: Limits) -> type[H11Protocol]:
    """Uvicorn's, with limits: it has none for connections that send no request, or the half of one."""
    known: Counter[str] = Counter()

    class Guarded(H11Protocol):
        host = ""
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            self.line = _Line(transport, self.loop, limits.refused_seconds)
            super().connection_made(cast(asyncio.Transport, self.line))
            host = host_of(self.client[0] if self.client else "")
            too_many = known[host] >= limits.address_connections and host not in _LOOPBACK
            if too_many or known.total() >= limits.connections:
                transport.abort()
                return
            self.host = host
            known[host] += 1
            self._wait_for_request()

        def data_received(self, data: bytes) -> None:
            if self.line.is_closing():
                return
            self.line.answered = 0
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
            self.transport = self.line.transport
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Whoever waits for the rest of this request, or answers it, is told that there is nobody."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:  # in the middle of another answer
                self.line.close()
            if self.cycle is not None:
                self.cycle.disconnected = True
                self.cycle.message_event.set()

        def timeout_keep_alive_handler(self) -> None:
            """At once, or a party could send its next request to nobody."""
            self.line.close_now()

        def shutdown(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.line.close_now()
            else:
                super().shutdown()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.cycle.response_complete:  # the next request had come already
                self.line.answered = 0

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
