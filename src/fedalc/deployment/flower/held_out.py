"""The server's own evaluation data, its labels matched to those of the parties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedalc.config.experiment import Experiment
from fedalc.data.catalog.datasets import is_known
from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.images import ImageOptions, Images
from fedalc.data.load import held_out_file, load_dataset, load_held
from fedalc.data.pretrained.apply import features_of
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.text.agreed import NotAgreed, needs_counts
from fedalc.data.text.base import TextFeatures
from fedalc.data.text.features import fit_text
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower.roster import Roster
from fedalc.errors import ConfigError, DataError
from fedalc.workflows.preflight import check_kind
from fedalc.workflows.train import image_options


@dataclass(frozen=True)
class ServerData(Dataset):
    """The server's own data: instances for evaluation, or none. It never has training data."""

    def __post_init__(self) -> None:
        """Allow empty splits."""


def read_held_out(
    source: str,
    settings: Experiment,
    text: TextFeatures | TextSettings | None = None,
    network: PictureFeatures | None = None,
) -> tuple[Split, tuple[str, ...]]:
    """Return instances and label names. `source`: a file, a folder (its test file, else its train file), or the name
    of a known dataset (its test data). They are pictures if the settings are for pictures. `text`: what parties agreed
    on, if they have texts. `network`: what turns pictures into features, if anything does."""
    try:
        split, names = _read(source, image_options(settings), settings.text if text is None else text)
    except NotAgreed:
        raise ConfigError(
            "the server cannot turn texts into features: terms are hashed with the parties' key. Leave it out, and "
            "parties evaluate on records of their own (--held-out-share), or use text.kind=hashing",
            "held-out",
        ) from None
    if network is not None and isinstance(split.features, Images):
        split = features_of(split, network)
    check_kind(settings, Dataset("held-out", split))
    return split, names


def _read(source: str, images: ImageOptions, text: TextFeatures | TextSettings) -> tuple[Split, tuple[str, ...]]:
    if is_known(source):
        dataset = load_dataset(source, images=images)
        return _with_strangers(dataset), dataset.label_names
    folder = Path(source)
    file = held_out_file(folder) if folder.is_dir() else None
    return load_held(file or source, images=images, text=text)


def _with_strangers(dataset: Dataset) -> Split:
    """Return the test data, and after it the strangers' records, which have no label."""
    test, strangers = dataset.test, dataset.strangers
    if strangers is None:
        return test
    return Split(vstack([test.features, strangers.features]), vstack([test.labels, strangers.labels]))


def server_data(
    roster: Roster,
    held_out: tuple[Split, tuple[str, ...]] | None,
    say: Callable[[str], None],
    text: TextFeatures | TextSettings | None = None,
    network: PictureFeatures | None = None,
) -> ServerData:
    """Match the labels of held-out data by pseudonym (hexadecimal), or by name if parties share names.

    Instances without any label that a party has are strangers', for verification alone. `text`: how parties make
    features of texts; the model keeps it if they may have had texts. `network`: what turns pictures into features; the
    model keeps it.
    """
    features, labels = roster.feature_count, roster.label_count
    nothing = Split(csr_matrix((0, features), dtype=np.float32), csr_matrix((0, labels), dtype=np.float32))
    test, strangers = (nothing, None) if held_out is None else _matched(roster, *held_out, say)
    if isinstance(text, TextSettings):  # nobody had to agree
        text = fit_text((), text) if text.kind == "hashing" and not needs_counts(text) else None
    fitted = None if text is None or text.feature_count != features else text
    return ServerData("parties", nothing, test, roster.names, text=fitted, pictures=network, strangers=strangers)


def _matched(
    roster: Roster, split: Split, names: tuple[str, ...], say: Callable[[str], None]
) -> tuple[Split, Split | None]:
    """Return the instances with a label that a party has, and the others: strangers, for verification."""
    if split.features.shape[1] != roster.feature_count:
        raise DataError(f"held-out: {split.features.shape[1]} features, the parties' data has {roster.feature_count}")
    uses = Counter(roster.names)  # if two labels have one name, at least one of the parties made it up
    label_of = {name: label for label, name in enumerate(roster.names) if uses[name] == 1}
    label_of |= {pseudonym.tobytes().hex(): label for label, pseudonym in enumerate(roster.pseudonyms)}
    known = [(column, label_of[name]) for column, name in enumerate(names) if name in label_of]
    if not known:
        raise DataError(
            "held-out: none of its labels is a party's; name them by pseudonym (fedalc key labels), or by name if the "
            "parties start with --share-names"
        )
    columns, labels = (list(part) for part in zip(*known, strict=True))
    chosen = split.labels.tocsc()[:, columns].tocoo()
    shape = (len(split), roster.label_count)
    matched = csr_matrix((chosen.data, (chosen.row, np.array(labels)[chosen.col])), shape=shape)
    rows = np.flatnonzero(matched.getnnz(axis=1))
    say(
        f"held-out: {len(known)} of its {len(names)} labels are among the parties' {roster.label_count}; "
        f"evaluating on {len(rows)} of its {len(split)} instances"
    )
    others = np.setdiff1d(np.arange(len(split)), rows)
    whole = Split(split.features, matched)
    return whole.rows(rows), whole.rows(others) if len(others) else None
