"""What a server may ask of a party's machine: no more than it has sent itself, or than there is memory for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

from flwr.app import ArrayRecord, RecordDict

from fedalc.config import Experiment
from fedalc.engines.flower.records import BadMessage
from fedalc.methods import METHODS


def theta_sizes(settings: Experiment, features: int) -> Iterator[tuple[int, int]]:
    """(arrays, numbers in them) of an encoder, part by part, without building it."""
    e = settings.encoder
    widths = [e.dim] if e.name == "linear" else [e.embedding, *e.hidden, e.dim]
    yield 1, features * widths[0]
    yield from ((2, a * b + b) for a, b in pairwise(widths))
    if e.shortcut:
        yield 1, features * e.dim


def check_theta(content: RecordDict, settings: Experiment, features: int) -> None:
    """Before anything is built that the settings ask for: θ has come along, and is just as large."""
    theta, copies = content.get("theta"), METHODS[settings.method].sub_models(settings)
    if not isinstance(theta, ArrayRecord):
        raise BadMessage("there are no theta")
    arrays, numbers = (copies * sum(sizes) for sizes in zip(*theta_sizes(settings, features), strict=True))
    size = numbers * (8 if settings.dtype == "float64" else 4)
    if len(theta) != arrays or sum(len(array.data) for array in theta.values()) != size:
        raise BadMessage(f"theta is not of the size that the settings say: {arrays} arrays of {size} bytes together")


def check_memory(needed: int) -> None:
    """At most half of it: there are others on this machine."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 2 * needed > has:
        raise BadMessage(f"asks for work that takes {needed / 1e9:.3g} GB, too much for this machine")
