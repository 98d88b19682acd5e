"""What a server may ask of a party: of its machine, and of how few instances."""

from __future__ import annotations

import math
import os

import numpy as np

from fedalc.engines.flower.records import BadMessage

FEWEST = 8
"""Instances of a label that a sample draws, and leaves out, on average."""


def sample_problem(counts: np.ndarray, sample: float) -> str:
    """Why no party answers with such a sample of labels with so many instances each, or nothing.

    A few instances' gradient tells too much of each; and what a sample leaves out is what two answers differ by.

    >>> sample_problem(np.array([320, 0, 500]), 0.025)
    ''
    """
    few = int(counts[counts > 0].min(initial=np.iinfo(np.int64).max))
    if sample == 1 or min(sample, 1 - sample) * few >= FEWEST:
        return ""
    least = math.ceil(1000 * FEWEST / few) / 1000
    instead = f"{least:g} to {1 - least:g}, or 1" if least <= 0.5 else "1"
    return (
        f"client.sample = {sample:g} draws, or leaves out, fewer than {FEWEST} of a label's {few} instances on "
        f"average, and no party answers for so few; use {instead}"
    )


def check_memory(needed: int) -> None:
    """At most half of it: there are others on this machine."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 2 * needed > has:
        raise BadMessage(f"asks for work that takes {needed / 1e9:.3g} GB, too much for this machine")
