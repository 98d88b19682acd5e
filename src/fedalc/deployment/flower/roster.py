"""The parties of a run, and the labels that each of them owns. Nodes come and go; labels stay."""

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
    to train on and `held_out[u]` to evaluate on. `names[u]` is its name if its party shares names, else its pseudonym.
    `is_noised`: counts are not the exact ones (`noised`)."""

    parties: tuple[str, ...]
    pseudonyms: np.ndarray
    owner: np.ndarray
    counts: np.ndarray
    held_out: np.ndarray
    feature_count: int
    names: tuple[str, ...]
    is_noised: bool = False

    def noised(self, counts: np.ndarray) -> Roster:
        """Return a roster with noised counts, rounded and at least 1, so that every label takes part.

        There are no noised counts of held-out instances, so all labels weigh the same in evaluation.
        """
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
        """Each label is drawn for a round independently of the others of its party."""
        return self.label_of

    def labels_of(self, party: int, among: np.ndarray) -> np.ndarray:
        """Return the labels in `among` that belong to the party."""
        return among[self.owner[among] == party]

    def pseudonyms_of(self, labels: np.ndarray) -> list[bytes]:
        return [self.pseudonyms[label].tobytes() for label in labels]

    @property
    def pseudonyms_in_hex(self) -> list[str]:
        return [pseudonym.tobytes().hex() for pseudonym in self.pseudonyms]

    def party_with(self, pseudonyms: list[bytes]) -> int | None:
        """Return the one party that owns these labels, if they include all of its own. Ignores unknown labels."""
        owners = {int(self.owner[self._label_of[p]]) for p in pseudonyms if p in self._label_of}
        if len(owners) != 1:
            return None
        (party,) = owners
        return party if set(self.pseudonyms_of(np.flatnonzero(self.owner == party))) <= set(pseudonyms) else None

    @cached_property
    def _label_of(self) -> dict[bytes, int]:
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
            raise FedalcError(f"the saved roster of parties is damaged: {error}") from None
