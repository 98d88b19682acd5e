"""What the server has itself to measure on, its labels matched to the parties'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.data.catalog.datasets import is_known
from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.images import ImageOptions
from fedalc.data.load import held_out_file, load_dataset, load_held
from fedalc.deployment.flower.roster import Roster
from fedalc.errors import DataError
from fedalc.workflows.preflight import check_kind
from fedalc.workflows.train import image_options


@dataclass(frozen=True)
class ServerData(Dataset):
    """What the server has itself: instances to measure on, or none. It never has one to train on."""

    def __post_init__(self) -> None:
        """Empty splits are in order here."""


def read_held_out(place: str, settings: Experiment) -> tuple[Split, tuple[str, ...]]:
    """Instances with their labels' names: a file, the test file of a folder (or else its train file), or the test data
    of a known dataset. Pictures where the settings are for pictures."""
    split, names = _read(place, image_options(settings))
    check_kind(settings, Dataset("held-out", split))
    return split, names


def _read(place: str, images: ImageOptions) -> tuple[Split, tuple[str, ...]]:
    if is_known(place):
        dataset = load_dataset(place, images=images)
        return dataset.test, dataset.label_names
    folder = Path(place)
    found = held_out_file(folder) if folder.is_dir() else None
    return load_held(found or place, images=images)


def server_data(
    roster: Roster, held_out: tuple[Split, tuple[str, ...]] | None, say: Callable[[str], None]
) -> ServerData:
    """Labels of held-out data are known by their pseudonyms (as hexadecimal), or by name where parties share names.

    Of instances with no label that a party has, nothing can be measured: they are left out.
    """
    features, labels = roster.feature_count, len(roster.counts)
    nothing = Split(csr_matrix((0, features), dtype=np.float32), csr_matrix((0, labels), dtype=np.float32))
    test = nothing if held_out is None else _matched(roster, *held_out, say)
    return ServerData("parties", nothing, test, roster.names)


def _matched(roster: Roster, split: Split, names: tuple[str, ...], say: Callable[[str], None]) -> Split:
    if split.features.shape[1] != roster.feature_count:
        raise DataError(f"held-out: {split.features.shape[1]} features, the parties' data has {roster.feature_count}")
    often = Counter(roster.names)  # two labels of one name: at least one of these parties has made it up
    place = {name: label for label, name in enumerate(roster.names) if often[name] == 1}
    place |= {pseudonym.tobytes().hex(): label for label, pseudonym in enumerate(roster.pseudonyms)}
    known = [(column, place[name]) for column, name in enumerate(names) if name in place]
    if not known:
        raise DataError(
            "held-out: none of its labels is a party's; they are known by pseudonym (fedalc key labels), or by name "
            "where parties start with --share-names"
        )
    columns, labels = (list(part) for part in zip(*known, strict=True))
    chosen = split.labels.tocsc()[:, columns].tocoo()
    shape = (len(split), len(roster.counts))
    matched = csr_matrix((chosen.data, (chosen.row, np.array(labels)[chosen.col])), shape=shape)
    kept = np.flatnonzero(matched.getnnz(axis=1))
    say(
        f"held-out: {len(known)} of its {len(names)} labels are known here, of {len(roster.counts)} that parties have; "
        f"measuring on {len(kept)} of its {len(split)} instances"
    )
    return Split(split.features, matched).rows(kept)
