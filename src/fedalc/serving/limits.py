"""What the service accepts, and how it puts requests together."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """`window`: how long the first waiting request waits for others, in seconds. `batch`: records that are predicted
    at once; a single larger request is predicted alone."""

    body: int = 8 * MIB  # bytes of one request
    records: int = 1000  # in one request
    queue: int = 100  # requests that wait; more are refused with 429
    timeout: float = 30.0  # seconds for a request to arrive, and again for its answer
    window: float = 0.002
    batch: int = 256
