"""The service as an ASGI application: routes, limits and refusals. Every refusal is JSON: {"error": "…"}."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from html import escape
from importlib.resources import files
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fedalc.errors import FedalcError
from fedalc.serving.batching import Batcher, Busy
from fedalc.serving.limits import Limits
from fedalc.serving.predictor import RecordPredictor, len_of
from fedalc.serving.schema import PredictRequest, openapi, problem_in
from fedalc.serving.token import Token
from fedalc.workflows.prediction_files import as_objects

LOG = logging.getLogger("fedalc.serving")
NOTHING_FROM_ELSEWHERE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
FAR = 4  # a body of more than this times the limit is not read to its end
Handler = Callable[[Request], Awaitable[Response]]


class Service:
    """The routes, and what they share."""

    def __init__(self, predictor: RecordPredictor, name: str, limits: Limits, token: Token | None) -> None:
        self._predictor, self._limits, self._token = predictor, limits, token
        self.batcher = Batcher(predictor, limits)
        model = predictor.model
        self._names = model.label_names
        self._description = openapi(f"fedalc: {name}", predictor.takes, limits, token is not None)
        labels = [
            {"label": number, "name": each, "predicted": bool(model.held[number])}
            for number, each in enumerate(model.label_names)
        ]
        self._labels = json.dumps({"labels": labels}, ensure_ascii=False).encode()
        page = files("fedalc.serving").joinpath("page.html").read_text(encoding="utf-8")
        self._page = page.replace("{{name}}", escape(name)).replace("{{takes}}", escape(predictor.takes))
        self._page = self._page.replace("{{example}}", escape(_example(predictor)))

    def app(self, hosts: list[str]) -> Starlette:
        """Return the application. `hosts`: what a request's Host header may say; ["*"] for anything."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            await self.batcher.start()
            yield
            await self.batcher.stop()

        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/docs", self.page),
                Route("/openapi.json", self.description),
                Route("/health", self.health),
                Route("/labels", self._guarded(self.labels)),
                Route("/predict", self._guarded(self.predict), methods=["POST"]),
            ],
            middleware=[Middleware(KnownHosts, allowed_hosts=hosts)],
            exception_handlers={HTTPException: _refuse, Exception: _fail},
            lifespan=lifespan,
        )

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self._page, headers={"Content-Security-Policy": NOTHING_FROM_ELSEWHERE})

    async def description(self, _: Request) -> Response:
        return JSONResponse(self._description)

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "waiting": len(self.batcher), "answered": self.batcher.answered})

    async def labels(self, _: Request) -> Response:
        return Response(self._labels, media_type="application/json")

    async def predict(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
        try:
            async with asyncio.timeout(self._limits.timeout):
                body = await self._body(request)
        except ClientDisconnect:
            raise HTTPException(400, "the request ended before all of it arrived") from None
        except TimeoutError:
            raise HTTPException(408, f"the request did not arrive within {self._limits.timeout:g} seconds") from None
        asked = _parsed(body)
        try:
            records, wanted = self._predictor.records(asked), self._predictor.answer(asked)
            if (count := len_of(records)) > self._limits.records:
                most = self._limits.records
                raise HTTPException(413, f"{count} records, but at most {most} are taken in one request")
            if not count:
                return JSONResponse({"predictions": []})
            async with asyncio.timeout(self._limits.timeout):
                found = await self.batcher.predict(records, wanted)
        except FedalcError as error:
            raise HTTPException(422, str(error)) from None
        except Busy:
            text = f"{self._limits.queue} requests are waiting already; try again later"
            raise HTTPException(429, text, {"Retry-After": "1"}) from None
        except TimeoutError:
            text = f"no answer within {self._limits.timeout:g} seconds; try again later"
            raise HTTPException(503, text, {"Retry-After": "1"}) from None
        return JSONResponse({"predictions": list(as_objects(found, self._names))})

    async def _body(self, request: Request) -> bytes:
        """Read the body. Discard one that is too large, so that its sender hears why; stop if it is far too large."""
        most, parts, size = self._limits.body, list[bytes](), 0
        said = request.headers.get("content-length", "0")
        far_too_large = not said.isdecimal() or int(said) > FAR * most
        if not far_too_large:
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                elif size > FAR * most:
                    break
        if far_too_large or size > most:
            raise HTTPException(413, f"the request has more than {most} bytes", {"Connection": "close"})
        return b"".join(parts)

    def _guarded(self, answer: Handler) -> Handler:
        """Return a handler that asks for the token first, if there is one."""
        token = self._token
        if token is None:
            return answer

        async def guarded(request: Request) -> Response:
            if not token.allows(request.headers.get("authorization", "")):
                text = "a token is needed: send the header Authorization: Bearer TOKEN"
                raise HTTPException(401, text, {"WWW-Authenticate": "Bearer"})
            return await answer(request)

        return guarded


def _parsed(body: bytes) -> PredictRequest:
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        bad = error.errors(include_url=False)[0]["type"] == "json_invalid"
        raise HTTPException(400 if bad else 422, problem_in(error, body)) from None


class KnownHosts(TrustedHostMiddleware):
    """Refuses requests for other hosts, as the class that it extends, but in JSON."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "").split(":")[0] if scope["type"] == "http" else ""
        if scope["type"] != "http" or self.allow_any or host in self.allowed_hosts:
            await self.app(scope, receive, send)
            return
        text = f"the header Host: {host[:60]!r} is not a name of this service, which answers to this machine only"
        await JSONResponse({"error": text}, 400)(scope, receive, send)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said, path = error.detail, request.url.path[:60]
    if error.status_code == 404:
        said = f"there is nothing at {path}: POST to /predict; GET /labels, /health, /openapi.json or /docs"
    elif error.status_code == 405:
        said = f"{path} does not take {request.method}: use {(error.headers or {}).get('Allow', 'GET')}"
    return JSONResponse({"error": said}, error.status_code, error.headers)


async def _fail(_: Request, error: Exception) -> Response:
    LOG.error("a request failed: %s: %s", type(error).__name__, error)
    return JSONResponse({"error": "the service failed on this request; its log says more"}, 500)


def _example(predictor: RecordPredictor) -> str:
    """Return a request that this model takes."""
    examples: dict[str, Any] = {
        "texts": ["a text"],
        "features": [],
        "sparse": [{"indices": [0], "values": [1.0]}],
        "pictures": ["… a picture file in base64 …"],
    }
    kind = "sparse" if predictor.kinds[0] == "features" else predictor.kinds[0]
    return json.dumps({kind: examples[kind], "top": 3}, ensure_ascii=False)
