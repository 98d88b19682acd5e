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
    """Label u is `pseudonyms[u]` (ascending); `names[u]` is its name if a party shares it, else its pseudonym.

    Client c is label `label_of[c]` at `parties[owner[c]]`, which has `counts[c]` instances of it to train on and
    `held_out[c]` to evaluate on. Clients are in the order of labels, then of parties. Unless parties share labels,
    client u is label u. `is_noised`: counts are not the exact ones (`noised`)."""

    parties: tuple[str, ...]
    pseudonyms: np.ndarray
    label_of: np.ndarray
    owner: np.ndarray
    counts: np.ndarray
    held_out: np.ndarray
    feature_count: int
    names: tuple[str, ...]
    is_noised: bool = False

    @classmethod
    def of_names(cls, parties: tuple[str, ...]) -> Roster:
        """Return parties of which nothing else is known yet."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(parties, np.zeros((0, 16), np.uint8), nothing, nothing, nothing, nothing, 0, ())

    def noised(self, counts: np.ndarray) -> Roster:
        """Return a roster with noised counts of labels, rounded and at least 1, so that every label takes part.

        Parties that share a label count with equal parts of its number. There are no noised counts of held-out
        instances, so all labels weigh the same in evaluation.
        """
        sharing = np.bincount(self.label_of, minlength=self.label_count)
        whole = np.maximum(np.rint((counts / sharing)[self.label_of]), 1).astype(np.int64)
        return replace(self, counts=whole, held_out=np.ones_like(whole), is_noised=True)

    @cached_property
    def clients(self) -> np.ndarray:
        return np.flatnonzero(self.counts)

    @property
    def label_count(self) -> int:
        return len(self.pseudonyms)

    @property
    def user_of(self) -> np.ndarray:
        """Each client is drawn for a round independently of the others of its party."""
        return np.arange(len(self.owner))

    def labels_of(self, party: int, among: np.ndarray) -> np.ndarray:
        """Return the labels of the party's clients that are in `among`."""
        return self.label_of[among[self.owner[among] == party]]

    def clients_of(self, party: int, labels: np.ndarray) -> np.ndarray:
        """Return the party's clients with these labels of its own."""
        clients = np.flatnonzero(self.owner == party)
        return clients[np.searchsorted(self.label_of[clients], labels)]

    def are_alike(self, first: int, second: int) -> bool:
        """Return whether two parties have the same labels with the same counts, and so perhaps the same data."""
        ours, theirs = (np.flatnonzero(self.owner == party) for party in (first, second))
        columns = (self.label_of, self.counts, self.held_out)
        return len(ours) == len(theirs) and all(np.array_equal(column[ours], column[theirs]) for column in columns)

    @property
    def absent(self) -> np.ndarray:
        """The labels that no party has an instance of to train on."""
        return np.flatnonzero(np.bincount(self.label_of, self.counts, minlength=self.label_count) == 0)

    def pseudonyms_of(self, labels: np.ndarray) -> list[bytes]:
        return [self.pseudonyms[label].tobytes() for label in labels]

    @property
    def pseudonyms_in_hex(self) -> list[str]:
        return [pseudonym.tobytes().hex() for pseudonym in self.pseudonyms]

    def party_with(self, pseudonyms: list[bytes], name: str = "") -> int | None:
        """Return the one party that has these labels, if they include all of its own. Ignores unknown labels. Of
        several parties with the same labels it is the one with this name."""
        known = {self._label_of[pseudonym] for pseudonym in pseudonyms if pseudonym in self._label_of}
        having = [p for p in range(len(self.parties)) if set(self.label_of[self.owner == p].tolist()) == known]
        if len(having) > 1:
            having = [party for party in having if self.parties[party] == name]
        return having[0] if len(having) == 1 else None

    @cached_property
    def _label_of(self) -> dict[bytes, int]:
        return {pseudonym.tobytes(): label for label, pseudonym in enumerate(self.pseudonyms)}

    def tensors(self) -> dict[str, Tensor]:
        arrays = {
            "pseudonyms": self.pseudonyms,
            "label_of": self.label_of,
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
            one_each = torch.arange(len(arrays["owner"]))  # in runs of earlier versions
            return cls(
                label_of=tensors.get("roster.label_of", one_each).numpy(),
                parties=tuple(facts["parties"]),
                feature_count=facts["features"],
                names=tuple(facts["names"]),
                is_noised=bool(facts.get("noised", False)),
                **arrays,
            )
        except (KeyError, TypeError) as error:
            raise FedalcError(f"the saved roster of parties is damaged: {error}") from None
