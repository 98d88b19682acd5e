"""What the server has itself to measure on, its labels matched to the parties'."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Dataset, Split
from fedalc.data.load import load_held
from fedalc.engines.flower.roster import Roster
from fedalc.errors import DataError


@dataclass(frozen=True)
class ServerData(Dataset):
    """What the server has itself: instances to measure on, or none. It never has one to train on."""

    def __post_init__(self) -> None:
        """Empty splits are in order here."""


def server_data(roster: Roster, held_out: str | None) -> ServerData:
    """Labels of held-out data are known by their pseudonyms (as hexadecimal), or by name where parties share names.

    Of instances with no label that a party has, nothing can be measured: they are left out.
    """
    features, labels = roster.feature_count, len(roster.counts)
    nothing = Split(csr_matrix((0, features), dtype=np.float32), csr_matrix((0, labels), dtype=np.float32))
    test = nothing if held_out is None else _matched(roster, held_out)
    return ServerData("parties", nothing, test, roster.names)


def _matched(roster: Roster, held_out: str) -> Split:
    split, names = load_held(held_out)
    if split.features.shape[1] != roster.feature_count:
        raise DataError(f"has {split.features.shape[1]} features, the parties' data {roster.feature_count}", held_out)
    often = Counter(roster.names)  # two labels of one name: at least one of these parties has made it up
    place = {name: label for label, name in enumerate(roster.names) if often[name] == 1}
    place |= {pseudonym.tobytes().hex(): label for label, pseudonym in enumerate(roster.pseudonyms)}
    known = [(column, place[name]) for column, name in enumerate(names) if name in place]
    if not known:
        raise DataError(
            "none of its labels is a party's; they are known by pseudonym, or by name where parties start with "
            "--share-names",
            held_out,
        )
    columns, labels = (list(part) for part in zip(*known, strict=True))
    chosen = split.labels.tocsc()[:, columns].tocoo()
    shape = (len(split), len(roster.counts))
    matched = csr_matrix((chosen.data, (chosen.row, np.array(labels)[chosen.col])), shape=shape)
    return Split(split.features, matched).rows(np.flatnonzero(matched.getnnz(axis=1)))
