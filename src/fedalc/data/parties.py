"""A folder per party: `clinics/north/`, `clinics/south/`, each with a train file and perhaps a test file of its own.

The parties' labels are matched by name. Train has a row for each record of each party, so that a simulation does with
it what a deployment does with the parties. Test and validation data have each record once, with the labels that any
party gives it; a test file, or a folder `test`, beside the parties' folders adds records that belong to no party.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedalc.data.dataset import Dataset, Features, Split
from fedalc.data.formats import Format, ReadOptions, errors_named, folder_format, formats
from fedalc.data.formats.label_file import label_list, label_names
from fedalc.data.formats.table import TableFormat, read_table
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.formats.text_folder import TextFolder
from fedalc.data.images.images import Images
from fedalc.data.label_names import one_form, repeated_name
from fedalc.data.places import Places
from fedalc.data.tables.build import one_list_of_labels
from fedalc.data.tables.records import Records, separator_in_words
from fedalc.data.test_share import choose_test, row_contents, share_in_words, text_contents
from fedalc.data.text.agreed import agreed_text
from fedalc.data.text.features import TextFeatures
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError

SHARED = "test"  # the folder, beside those of the parties, with test records that belong to no party
FEWEST = 2  # parties; one folder in another is more likely a mistake


@dataclass(frozen=True)
class NamedSplit:
    """Records whose label u is `names[u]`. `path`: where they are from. `features`: their names, if they have any.
    `texts`: if the records are raw texts; their features are empty until all parties agree on them."""

    split: Split
    names: tuple[str, ...]
    path: Path
    features: tuple[str, ...] = ()
    texts: Sequence[str] | None = None
    columns: str = ""
    """What the columns of a table are, for the user."""

    def rows(self, index: np.ndarray) -> NamedSplit:
        texts = None if self.texts is None else [self.texts[row] for row in index.tolist()]
        return replace(self, split=replace(self.split, places=self.places).rows(index), texts=texts)

    @property
    def places(self) -> Places:
        return self.split.places or Places.counted(len(self.split))


def party_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each party by its name, if this is a folder with a folder per party; else {}.

    It is one if it has no train file and at least two of its folders have one.
    """
    if not folder.is_dir() or folder_format(folder) is not None:
        return {}
    within = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and _is_visible(path)}
    within.pop(SHARED, None)
    having = {name: path for name, path in within.items() if folder_format(path) is not None}
    if len(having) < FEWEST:
        return {}
    if without := sorted(set(within) - set(having)):
        raise DataError(
            f"has no train file, and {len(having)} folders beside it have one: each folder in {folder} is a party; "
            "add the file, or move this folder elsewhere",
            within[without[0]],
        )
    return having


def read_parties(folder: Path, folders: Mapping[str, Path], options: ReadOptions) -> Dataset:
    """Read the data of all parties, and the test records beside their folders."""
    train: dict[str, NamedSplit] = {}
    others: dict[str, list[NamedSplit]] = {"test": [], "validation": []}
    for party, path in folders.items():
        data_format = _format_of(path)
        files = data_format.split_files(path, needed=("train",))
        if not files:
            raise DataError(f"{data_format.title}: a party's folder needs a train file of its own", path)
        train[party] = read_named(data_format, files["train"], options)
        for split, found in others.items():
            if split in files:
                found.append(read_named(data_format, files[split], options))
    if (shared := shared_test_file(folder)) is not None:
        others["test"].append(read_named(*shared, options))
    name, table = folder.resolve().name, options.table
    notes = _columns_in_words(train)
    if not others["test"] and table.test_share and not isinstance(next(iter(train.values())).split.features, Images):
        train, others["test"] = _split_off_test(train, table, name)
        notes = [*notes, share_in_words(table.test_share, sum(len(part.split) for part in others["test"]))]
    return replace(joined_parties(name, train, others, options.text), notes=("; ".join(notes),) if notes else ())


def _columns_in_words(train: Mapping[str, NamedSplit]) -> list[str]:
    """Say what the columns of the parties' tables are: once, if they are the same for all."""
    parties: dict[str, list[str]] = {}
    for party, part in train.items():
        if part.columns:
            parties.setdefault(part.columns, []).append(party)
    if len(parties) == 1:
        return list(parties)
    return [f"{_few(names)}: {columns}" for columns, names in parties.items()]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def joined_parties(
    name: str,
    train: Mapping[str, NamedSplit],
    others: Mapping[str, Sequence[NamedSplit]] | None = None,
    text: TextSettings | TextFeatures | None = None,
) -> Dataset:
    """Return the dataset of these parties. `others`: records to test on and to validate with, by split. `text`: how raw
    texts become features; with settings, the parties agree on them by the numbers of their own documents."""
    others, fitted = {} if others is None else others, None
    everything = [*train.values(), *(part for parts in others.values() for part in parts)]
    _check_kinds(everything)
    if everything[0].texts is not None:
        if isinstance(text, TextFeatures):
            fitted = text
        else:
            fitted = agreed_text([part.texts or () for part in train.values()], text or TextSettings())
        train = {party: _with_features(part, fitted) for party, part in train.items()}
        others = {split: [_with_features(part, fitted) for part in parts] for split, parts in others.items()}
        everything = [*train.values(), *(part for parts in others.values() for part in parts)]
    _check_features(everything)
    names = all_names(part.names for part in everything)
    parties = tuple(party for party, part in train.items() for _ in range(len(part.split)))
    whole = Split(*_stacked(list(train.values()), names), parties=parties, places=_places(list(train.values())))
    rest = {
        split: Split(
            *_stacked(parts, names), parties=("",) * sum(len(part.split) for part in parts), places=_places(parts)
        ).in_one_place
        for split, parts in others.items()
        if parts
    }
    return Dataset(name, whole, rest.get("test"), names, rest.get("validation"), fitted)  # type: ignore[arg-type]


def _with_features(part: NamedSplit, fitted: TextFeatures) -> NamedSplit:
    return replace(part, split=replace(part.split, features=fitted.transform(part.texts or ())))


def _split_off_test(
    train: Mapping[str, NamedSplit], table: TableSettings, name: str
) -> tuple[dict[str, NamedSplit], list[NamedSplit]]:
    """Hold out a share of the records for testing: each is on the same side at all parties."""
    contents = (
        row_contents(part.split.features) if part.texts is None else text_contents(part.texts)
        for part in train.values()
    )
    out = choose_test(chain.from_iterable(contents), table.test_share, table.seed, name)
    masks = np.split(out, np.cumsum([len(part.split) for part in train.values()])[:-1])
    test = [part.rows(np.flatnonzero(mask)) for part, mask in zip(train.values(), masks, strict=True) if mask.any()]
    rest = {party: train[party].rows(np.flatnonzero(~mask)) for party, mask in zip(train, masks, strict=True)}
    if empty := [party for party, part in rest.items() if not len(part.split)]:
        raise DataError(f"{name}: all records of {empty[0]} would be held out for testing; give a test file, or use 0")
    return rest, test


def all_names(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the names of all parties' labels, sorted; numbers by their value.

    >>> all_names([("fever", "cough"), ("fever", "rash")]), all_names([("10", "2")])
    (('cough', 'fever', 'rash'), ('2', '10'))
    """
    names = {one_form(name) for listed in lists for name in listed}
    if all(name.isascii() and name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def describe_parties(dataset: Dataset) -> list[tuple[str, int, tuple[str, ...], int]]:
    """Return, for each party: its name, its number of records, its labels, and how many of these no other has."""
    train = dataset.train
    if train.parties is None:
        return []
    names, party = np.unique(train.parties, return_inverse=True)
    held = np.stack([np.asarray(train.labels[party == each].sum(axis=0)).ravel() > 0 for each in range(len(names))])
    alone = held.sum(axis=0) == 1
    return [
        (
            str(name),
            int((party == each).sum()),
            tuple(dataset.label_names[label] for label in np.flatnonzero(held[each])),
            int((held[each] & alone).sum()),
        )
        for each, name in enumerate(names)
    ]


def shared_test_file(folder: Path) -> tuple[Format, Path] | None:
    """Return the test file beside the parties' folders: in the folder itself, or in its folder `test`."""
    found: list[tuple[Format, Path]] = []
    for place, splits in ((folder, ("test",)), (folder / SHARED, ("test", "train"))):
        for data_format in formats() if place.is_dir() else ():
            files = data_format.split_files(place, needed=())
            path = next((files[split] for split in splits if split in files), None)
            if path is not None and path.is_file() and path not in [other for _, other in found]:
                found.append((data_format, path))
    if len(found) > 1:
        raise DataError(f"has two files of test records: {found[0][1]} and {found[1][1]}; leave one", folder)
    return found[0] if found else None


def read_named(data_format: Format, path: Path, options: ReadOptions) -> NamedSplit:
    """Read a party's file. Its labels are known by name, so names must differ."""
    features: tuple[str, ...] = ()
    with errors_named(data_format, path):
        if isinstance(data_format, TableFormat):
            return _read_table(data_format, path, options)
        if isinstance(data_format, TextFolder):
            return _of_records(data_format.records(path, options), path)
        if data_format.has_pictures:
            split, names = data_format.read_held(path, options)
        else:
            parsed = data_format.parse(path, options)
            split, features = parsed.split, parsed.feature_names
            names = parsed.label_names or label_names(path.parent, split.labels.shape[1])
    if (name := repeated_name(names)) is not None:
        raise DataError(f"two labels have the same name, {name!r}; other parties know labels only by name", path)
    return NamedSplit(split, names, path, features)


def _read_table(data_format: TableFormat, path: Path, options: ReadOptions) -> NamedSplit:
    read = read_table(data_format.source(path, options.table), options.table)
    records = read.splits
    if list(records) != ["train"]:
        raise DataError("has several splits: a party's folder has a file for each; or table.split_column=none", path)
    columns = "; ".join(read.columns.described(separator_in_words(read.separator)))
    return _of_records(records["train"], path, columns)


def _of_records(records: Records, path: Path, columns: str = "") -> NamedSplit:
    rows = np.flatnonzero(records.labels.getnnz(axis=1))  # as in a deployment, others are of no use
    kept = {"train": records.rows(rows)}
    names, labels = one_list_of_labels(kept, label_list(path.parent) if path.is_file() else (), str(path))
    features = kept["train"].features
    if features is None:
        features = csr_matrix((len(rows), 1), dtype=np.float32)
    split = Split(features, labels["train"], places=kept["train"].places)
    return NamedSplit(split, names, path, kept["train"].feature_names, kept["train"].texts, columns)


def _format_of(folder: Path) -> Format:
    data_format = folder_format(folder)
    assert data_format is not None
    return data_format


def _is_visible(path: Path) -> bool:
    return not path.name.startswith((".", "__"))


def _check_kinds(parts: Sequence[NamedSplit]) -> None:
    for other in parts[1:]:
        if (other.texts is None) != (parts[0].texts is None):
            raise DataError(f"one of {parts[0].path} and this file has texts, and the other has not", other.path)


def _check_features(parts: Sequence[NamedSplit]) -> None:
    """Refuse parties whose features differ in kind, number or name."""
    first = parts[0]
    for other in parts[1:]:
        count, ours = other.split.features.shape[1], first.split.features.shape[1]
        if isinstance(other.split.features, Images) != isinstance(first.split.features, Images):
            raise DataError(f"one of {first.path} and this file has pictures, and the other has not", other.path)
        if count != ours:
            raise DataError(f"has {count} features, and {first.path} has {ours}: parties need the same", other.path)
        if other.features != first.features:
            raise DataError(f"has other features than {first.path}, or in another order", other.path)


def _stacked(parts: Sequence[NamedSplit], names: tuple[str, ...]) -> tuple[Features, csr_matrix]:
    """Return features and labels of all parts, with the labels in the order of `names`."""
    number = {name: at for at, name in enumerate(names)}
    labels = []
    for part in parts:
        pairs = part.split.labels.tocoo()
        columns = np.array([number[one_form(name)] for name in part.names], dtype=np.int64)
        labels.append(csr_matrix((pairs.data, (pairs.row, columns[pairs.col])), shape=(len(part.split), len(names))))
    return _stacked_features([part.split.features for part in parts]), vstack(labels, format="csr")


def _places(parts: Sequence[NamedSplit]) -> Places:
    return Places.of_files([part.places for part in parts], [str(Path(*part.path.parts[-2:])) for part in parts])


def _stacked_features(parts: Sequence[Features]) -> Features:
    if not isinstance(parts[0], Images):
        return vstack(parts, format="csr")
    # In memory: the pictures of different folders are in different files.
    pixels = np.concatenate([part.pixels() for part in parts])
    return Images(pixels, [name for part in parts for name in part.names], np.concatenate([p.digests for p in parts]))
