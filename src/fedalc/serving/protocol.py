"""HTTP as uvicorn reads it, with our words where it refuses a request before the service sees it."""

from __future__ import annotations

import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

NOT_HTTP = "this is not a request in HTTP/1.1 with a Host header and a correct length; send one as curl does"
TOO_MANY = "too many open connections; close some, or try again later"


class JsonRefusals(H11Protocol):
    """Answers {"error": "…"} to what is not HTTP, and to requests above the limit of connections."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._service, self.app = self.app, self._limited

    def send_400_response(self, msg: str) -> None:
        content = _refusal(NOT_HTTP)
        headers = [*_headers(content), (b"connection", b"close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    async def _limited(self, scope: Any, receive: Any, send: Any) -> None:
        if self._most is None or max(len(self.connections), len(self.tasks)) <= self._most:
            await self._service(scope, receive, send)
            return
        content = _refusal(TOO_MANY)
        headers = [*_headers(content), (b"connection", b"close"), (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _refusal(text: str) -> bytes:
    return json.dumps({"error": text}).encode()


def _headers(content: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
