"""Messages of secure sums, as bytes."""

from __future__ import annotations

from tests.fuzz.harness import Reader
from tests.fuzz.registry import reader
from tests.secure_sums.test_messages import MESSAGES


@reader
def sum_messages() -> Reader:
    """The first byte of an input says which message it is."""
    seeds = [bytes([kind]) + message.to_bytes() for kind, (message, _) in enumerate(MESSAGES)]

    def read(data: bytes) -> object:
        kind = data[0] % len(MESSAGES) if data else 0
        return MESSAGES[kind][1](data[1:])

    return Reader("sum-messages", "messages of secure sums", seeds, read)
