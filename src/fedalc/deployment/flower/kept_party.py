"""A party's data, kept in its worker from one message of a run to the next. Every other process reads it each time.

What a message asks is checked before and after, as if the data had been read for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedalc.data.images.images import ImageOptions
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.text.base import TextFeatures
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower.party import Party, TextOf, party_collection
from fedalc.labels.collection.identity import make_hasher


class _Slot:
    """Holds the last party that was read. `open`: whether it keeps any."""

    def __init__(self) -> None:
        self.open = False
        self.key: tuple[Any, ...] | None = None
        self.party: Party | None = None


_slot = _Slot()


def keep_party() -> None:
    """Keep the party that is read next. For a process that answers for one run only."""
    _slot.open = True


def read_party(
    config: Mapping[str, Any], images: ImageOptions, run: str, text: TextOf, network: PictureFeatures | None
) -> Party:
    """Return the party, read from its files or kept from the last message, if the same would be read."""
    if not _slot.open:
        return Party.from_node_config(config, images, run, text, network)
    how = text(make_hasher(party_collection(config), run))
    sight = None if network is None else (network.digest, network.views)
    key = (tuple(sorted(config.items())), run, images, _name(how), sight)
    if _slot.party is None or _name(how) is None or key != _slot.key:
        _slot.party = None  # frees it before the next is read
        _slot.party = Party.from_node_config(config, images, run, lambda hasher: how, network)
        _slot.key = key
    return _slot.party


def _name(how: TextSettings | TextFeatures) -> str | None:
    """Return what tells two ways to make features of texts apart, or None: one that is used once, such as counting."""
    return how.model_dump_json() if isinstance(how, TextSettings) else getattr(how, "digest", None)
