"""Results and histories like those of finished runs, small enough to check by hand."""

from __future__ import annotations

from typing import Any


def result(method: str = "fedavg", seed: int = 0, precision: float = 50.0, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": "demo",
        "method": method,
        "engine": "fused",
        "preset": "strong",
        "rounds": 18,
        "seed": seed,
        "metrics": {"P@1": precision, "P@3": 30.0, "P@5": 20.0, "nDCG@5": 40.0, "PSP@5": 35.0},
        "selection": {"round": 18, "value": 51.0, "metrics": {"validation P@1": 51.0}},
        "collapse": {"mean_cosine": 0.25, "max_cosine": 0.5, "effective_rank": 7.0},
        "clients": 10,
        "labels_without_client": 0,
        "rounds_run": 38,
        "seconds": 3.8,
        "seconds_per_round": 0.1,
        "peak_memory_mb": 100.0,
        "bytes_up": 20_000_000,
        "bytes_down": 30_000_000,
        "versions": {"python": "3.11.7", "fedalc": "0.1.0"},
    } | changes


def record(number: int, phase: str = "select", **changes: Any) -> dict[str, Any]:
    return {
        "phase": phase,
        "round": number,
        "loss": 1 / number,
        "metrics": {"validation P@1": 50.0 + number} if phase == "select" else {},
        "collapse": {"mean_cosine": 0.1, "max_cosine": 0.2, "effective_rank": 8.0},
        "seconds": 0.1 * number,
        "rounds": number,
        "bytes_down": 3_000_000 * number,
        "bytes_up": 1_000_000 * number,
    } | changes
