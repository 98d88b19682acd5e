"""What a server may ask of a party's machine."""

from __future__ import annotations

import os

from fedalc.engines.flower.records import BadMessage


def check_memory(needed: int) -> None:
    """At most half of it: there are others on this machine."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 2 * needed > has:
        raise BadMessage(f"asks for work that takes {needed / 1e9:.3g} GB, too much for this machine")
