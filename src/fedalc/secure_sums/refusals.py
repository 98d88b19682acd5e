"""What ends a secure sum."""

from __future__ import annotations

from fedalc.errors import FedalcError


class Refused(FedalcError):
    """A message that a party or the server refuses. `accused`: the party that the message was wrong about, if any."""

    def __init__(self, problem: str, accused: str = "") -> None:
        super().__init__(problem)
        self.accused = accused


class NotEnough(FedalcError):
    """Too few parties are left to finish the sum. It ends without a result, and nothing was unmasked by it."""


class Overflow(FedalcError):
    """Numbers that do not fit into the fixed point of a secure sum."""


class NotFinite(FedalcError):
    """Numbers of a party that are infinite or no numbers at all."""
