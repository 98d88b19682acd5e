"""Check who signed a request. Flower's nodes sign the time, in headers, so the check needs no body.

Flower accepts a signature for five minutes, any number of times and with any body. Here each is accepted once, and
fedalc's own nodes sign the body too (`BODY_HEADER`). A plain flower-supernode does not; a node that has signed a body
once has to sign all.
"""

from __future__ import annotations

import binascii
import datetime
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from fedalc.deployment.gate_limits import Refused

BODY_HEADER = "fedalc-signature"
Registered = Callable[[bytes], int | None]
"""From a public key, as sent, the id of its node."""


class Signatures:
    """Call `check` in a thread, because `registered` may be slow; `first_use` not."""

    def __init__(self, registered: Registered) -> None:
        from flwr.common.constant import SYSTEM_TIME_TOLERANCE
        from flwr.supercore.date import now

        self.registered, self._now = registered, now
        # We do not know what an earlier process accepted. A party's clock may be ahead by Flower's tolerance.
        self._began = now() + datetime.timedelta(seconds=SYSTEM_TIME_TOLERANCE)
        self._used: dict[tuple[int, int], datetime.datetime] = {}  # (node, signature) → when it was made
        self._cleaned = self._began
        self._signs_bodies: set[int] = set()

    def check(self, headers: Mapping[str, str]) -> tuple[int, int, datetime.datetime] | None:
        """Return the node, a number that is unique to the signature, and its time; None if it is not valid."""
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            stamp = headers[TIMESTAMP_HEADER]
            made = datetime.datetime.fromisoformat(stamp)
            age = (self._now() - made).total_seconds()
            if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
                return None
            node = self.registered(key)  # first, so that unknown keys are not even parsed
            if node is None or not verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature):
                return None
            # Only the first of its two numbers: anyone can change the second into another valid one.
            return node, decode_dss_signature(signature)[0], made
        except (KeyError, ValueError, TypeError, OverflowError, binascii.Error):
            return None

    def first_use(self, node: int, signature: int, made: datetime.datetime) -> None:
        """Refuse a signature that was, or may have been, used before. On 503 a node retries with a new signature."""
        if made < self._began:
            raise Refused(503, "signed before the server started, or just then; sign again")
        if (node, signature) in self._used:
            raise Refused(401, "this signature was used before: a replayed request")
        self._used[node, signature] = made
        self._forget()

    def check_body(self, node: int, headers: Mapping[str, str], path: str, body: bytes) -> None:
        """Check, after `check`, that the node sent this body to this path at the signed time."""
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        if BODY_HEADER not in headers:
            if node in self._signs_bodies:
                raise Refused(401, f"node {node}: a body without its signature")
            return
        key = bytes_to_public_key(b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True))
        try:
            signature = b64decode(headers[BODY_HEADER], validate=True)
        except (ValueError, binascii.Error):
            signature = b""
        if not verify_signature(key, signed_text(path, headers[TIMESTAMP_HEADER], body), signature):
            raise Refused(401, f"node {node}: a body that is not the one it signed")
        self._signs_bodies.add(node)

    def _forget(self) -> None:
        """Drop signatures that are too old to be accepted anyway."""
        from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

        now, keep = self._now(), datetime.timedelta(seconds=TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE)
        if now - self._cleaned > keep / 10:
            self._used = {use: made for use, made in self._used.items() if now - made < keep}
            self._cleaned = now


def signed_text(path: str, stamp: str, body: bytes) -> bytes:
    return f"fedalc request\n{path}\n{stamp}\n{hashlib.sha256(body).hexdigest()}".encode("ascii")


def signing_bodies(intercept: Callable[..., Any]) -> Callable[..., Any]:
    """At the node: wrap Flower's signing of a request, and add the signature of the body."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.primitives.asymmetric import sign_message

    def intercept_and_sign(self: Any, context: Any, call_next: Callable[[Any], Any]) -> Any:
        def signed(again: Any) -> Any:
            request = again.request
            text = signed_text(request.url.path, request.headers[TIMESTAMP_HEADER], request.content)
            request.headers[BODY_HEADER] = b64encode(sign_message(self._private_key, text)).decode("ascii")
            return call_next(again)

        return intercept(self, context, signed)

    return intercept_and_sign
