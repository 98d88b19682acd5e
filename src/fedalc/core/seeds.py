"""Random numbers as a function of (seed, purpose, numbers). No running state, so a resumed run draws the same."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed. Different purposes or numbers (round, client) give unrelated seeds."""
    text = ":".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return a generator on the CPU, so that the numbers are the same on every device."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *numbers))


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng(derived_seed(seed, purpose, *numbers))
