"""Who signed a request. Flower's nodes sign the time, in headers: so it can be checked before a body is read.

Flower takes a signature for five minutes, as often as it comes and with any body. Here each is taken once.
"""

from __future__ import annotations

import binascii
import datetime
from base64 import b64decode
from collections.abc import Callable, Mapping

from fedalc.deployment.gate_limits import Refused

Registered = Callable[[bytes], int | None]
"""From a public key, as it is sent, the id of its node."""


class Signatures:
    """`registered` may take its time: `check` is for a thread. `first_use` is not."""

    def __init__(self, registered: Registered) -> None:
        from flwr.common.constant import SYSTEM_TIME_TOLERANCE
        from flwr.supercore.date import now

        self.registered, self._now = registered, now
        # What an earlier process took is not known. A party's clock may be ahead by as much as Flower tolerates.
        self._began = now() + datetime.timedelta(seconds=SYSTEM_TIME_TOLERANCE)
        self._used: dict[tuple[int, int], datetime.datetime] = {}  # (node, signature) → when it was made
        self._cleaned = self._began

    def check(self, headers: Mapping[str, str]) -> tuple[int, int, datetime.datetime] | None:
        """The node, what is never the same in two of its signatures, and the time it says; or none of these."""
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
            node = self.registered(key)  # first: nobody else's key is even parsed
            if node is None or not verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature):
                return None
            # Of the two numbers of a signature anyone can turn the second into another that is as good.
            return node, decode_dss_signature(signature)[0], made
        except (KeyError, ValueError, TypeError, OverflowError, binascii.Error):
            return None

    def first_use(self, node: int, signature: int, made: datetime.datetime) -> None:
        """Refuses one that was used before, or may have been. On 503 a node tries again, with a new signature."""
        if made < self._began:
            raise Refused(503, "signed before the server was started, or just then; sign again")
        if (node, signature) in self._used:
            raise Refused(401, "this signature was used before: a request that is sent again")
        self._used[node, signature] = made
        self._forget()

    def _forget(self) -> None:
        """Those that are too old to be taken."""
        from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

        now, keep = self._now(), datetime.timedelta(seconds=TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE)
        if now - self._cleaned > keep / 10:
            self._used = {use: made for use, made in self._used.items() if now - made < keep}
            self._cleaned = now
