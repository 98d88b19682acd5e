"""Who takes part, and which labels are whose. Nodes come and go; labels stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalc.errors import FedalcError


@dataclass(frozen=True, eq=False)
class Roster:
    """Label u is `pseudonyms[u]` (ascending) and belongs to `parties[owner[u]]`, which has `counts[u]` instances of it
    to train on and `held_out[u]` to measure on. `names[u]` is its name, where its party has told it. `is_noised`: these
    numbers are not the exact ones (`noised`)."""

    parties: tuple[str, ...]
    pseudonyms: np.ndarray
    owner: np.ndarray
    counts: np.ndarray
    held_out: np.ndarray
    feature_count: int
    names: tuple[str, ...]
    is_noised: bool = False

    def noised(self, counts: np.ndarray) -> Roster:
        """With noised counts in place of the exact ones, whole and at least 1: every label takes part, and weighs what
        the noise says. Of held-out instances there are no noised counts, so each label counts alike in evaluation."""
        whole = np.maximum(np.rint(counts), 1).astype(np.int64)
        return replace(self, counts=whole, held_out=np.ones_like(whole), is_noised=True)

    @cached_property
    def clients(self) -> np.ndarray:
        return np.flatnonzero(self.counts)

    @property
    def label_count(self) -> int:
        return len(self.counts)

    @cached_property
    def label_of(self) -> np.ndarray:
        """Each label is a client."""
        return np.arange(self.label_count)

    @property
    def user_of(self) -> np.ndarray:
        """It is drawn for a round by itself, whichever party has it."""
        return self.label_of

    def labels_of(self, party: int, among: np.ndarray) -> np.ndarray:
        """Those of these labels that are the party's."""
        return among[self.owner[among] == party]

    def party_with(self, pseudonyms: list[bytes]) -> int | None:
        """The party with exactly these labels, or with more that were set aside."""
        owners = {int(self.owner[self._place[p]]) for p in pseudonyms if p in self._place}
        if len(owners) != 1:
            return None
        (party,) = owners
        own = {self.pseudonyms[u].tobytes() for u in np.flatnonzero(self.owner == party)}
        return party if own <= set(pseudonyms) else None

    @cached_property
    def _place(self) -> dict[bytes, int]:
        return {pseudonym.tobytes(): label for label, pseudonym in enumerate(self.pseudonyms)}

    def tensors(self) -> dict[str, Tensor]:
        arrays = {
            "pseudonyms": self.pseudonyms,
            "owner": self.owner,
            "counts": self.counts,
            "held_out": self.held_out,
        }
        return {f"roster.{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def facts(self) -> dict[str, Any]:
        return {
            "parties": list(self.parties),
            "features": self.feature_count,
            "names": list(self.names),
            "noised": self.is_noised,
        }

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Roster:
        try:
            arrays = {name: tensors[f"roster.{name}"].numpy() for name in ("pseudonyms", "owner", "counts", "held_out")}
            return cls(
                parties=tuple(facts["parties"]),
                feature_count=facts["features"],
                names=tuple(facts["names"]),
                is_noised=bool(facts.get("noised", False)),
                **arrays,
            )
        except (KeyError, TypeError) as error:
            raise FedalcError(f"what was saved of the parties is damaged: {error}") from None
