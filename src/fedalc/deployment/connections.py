"""Limits on connections to the server: their number, and the time until a request's headers are complete."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedalc.deployment.gate_limits import KIB, Limits, host_of

_SMALL = 64 * KIB  # the system delivers answers up to this size after close; strangers get no larger ones
_LOOPBACK = ("127.0.0.1", "::/64")  # where this machine's own programs connect from


class _Line:
    """A transport that stops reading once it is closed. With TLS, close() waits up to 30 seconds for the other side's
    goodbye, and keeps reading whatever comes instead."""

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
        """Close after a while, so that a sender can read the answer first."""
        self._end(self._linger)

    def close_now(self) -> None:
        self._end(0)

    def _end(self, after: float) -> None:
        if self.is_closing():
            return
        self._ended = True
        if self.answered > _SMALL:
            self.transport.close()  # sends the rest of the answer first
        else:
            self.transport.pause_reading()
            self._loop.call_later(after, self.transport.abort)


def protocol(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's protocol with limits. Its own has none for connections without a complete request."""
    open_count: Counter[str] = Counter()

    class Guarded(H11Protocol):
        host = ""
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            self.line = _Line(transport, self.loop, limits.refused_seconds)
            super().connection_made(cast(asyncio.Transport, self.line))
            host = host_of(self.client[0] if self.client else "")
            too_many = open_count[host] >= limits.address_connections and host not in _LOOPBACK
            if too_many or open_count.total() >= limits.connections:
                transport.abort()
                return
            self.host = host
            open_count[host] += 1
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
                open_count[self.host] -= 1
                if not open_count[self.host]:
                    del open_count[self.host]
            self.transport = self.line.transport
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Also tell the app, which may wait for the rest of the request, that the sender is gone."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:  # while another answer is being sent
                self.line.close()
            if self.cycle is not None:
                self.cycle.disconnected = True
                self.cycle.message_event.set()

        def timeout_keep_alive_handler(self) -> None:
            """Close at once. Otherwise a party could send its next request into a connection that nobody reads."""
            self.line.close_now()

        def shutdown(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.line.close_now()
            else:
                super().shutdown()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.cycle.response_complete:  # the next request has already arrived
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
