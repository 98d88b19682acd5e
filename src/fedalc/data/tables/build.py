"""Make a `Dataset` of records: one list of labels, held-out records, features of texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.label_names import distinct_names
from fedalc.data.tables.records import Records
from fedalc.data.test_share import choose_test, row_contents, share_in_words, text_contents, text_digests
from fedalc.data.text.features import TextFeatures, fit_text
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError

_WHOLE = re.compile(r"0|[1-9][0-9]{0,8}")
_ORDER = ("train", "test", "validation")


def make_dataset(
    name: str,
    splits: Mapping[str, Records],
    table: TableSettings,
    text: TextSettings | TextFeatures,
    *,
    notes: Sequence[str] = (),
    label_list: Sequence[str] = (),
) -> Dataset:
    """Make a dataset of the records of each split. `notes` say how they were read, `label_list` is labels.txt.

    Without test records a share of train is held out. Terms and their weights are fitted on train, unless `text` is
    fitted already.
    """
    said = list(notes)
    if "train" not in splits:
        raise DataError(f"{name}: no records for training; the splits are {', '.join(splits) or 'empty'}")
    strangers = splits.get("strangers")
    splits = {split: splits[split].placed for split in _ORDER if split in splits}
    if table.unlabelled == "drop":
        splits, dropped = _labelled(splits, name)
        if dropped:
            said.append(f"{dropped:,} records without a label left out")
    if "test" not in splits and table.test_share > 0:
        splits = _with_test(splits, table, name)
        said.append(share_in_words(table.test_share, len(splits["test"])))
    names, labels = one_list_of_labels(splits, label_list, name)
    if strangers is not None:
        said.append(f"{len(strangers):,} records of strangers, for verification only")
        splits["strangers"], labels["strangers"] = strangers, csr_matrix((len(strangers), len(names)), dtype=np.float32)
    features, fitted = _features(splits, text, name)
    made = {
        split: Split(
            features[split],
            labels[split],
            places=records.places,
            contents=None if records.texts is None else text_digests(records.texts),
        )
        for split, records in splits.items()
    }
    return Dataset(
        name,
        made["train"],
        made.get("test"),  # type: ignore[arg-type]
        names,
        made.get("validation"),
        fitted,
        notes=("; ".join(said),),
        table=table,
        strangers=made.get("strangers"),
    )


def _labelled(splits: Mapping[str, Records], name: str) -> tuple[dict[str, Records], int]:
    kept, dropped = {}, 0
    for split, records in splits.items():
        rows = np.flatnonzero(records.labels.getnnz(axis=1))
        if not len(rows):
            raise DataError(f"{name}: no {split} record has a label; see that the label column is the right one")
        dropped += len(records) - len(rows)
        kept[split] = records if len(rows) == len(records) else records.rows(rows)
    return kept, dropped


def _with_test(splits: Mapping[str, Records], table: TableSettings, name: str) -> dict[str, Records]:
    train = splits["train"]
    contents = text_contents(train.texts) if train.texts is not None else row_contents(train.features)
    test = choose_test(contents, table.test_share, table.seed, name)
    return {**splits, "train": train.rows(np.flatnonzero(~test)), "test": train.rows(np.flatnonzero(test))}


def one_list_of_labels(
    splits: Mapping[str, Records], label_list: Sequence[str], name: str
) -> tuple[tuple[str, ...], dict[str, csr_matrix]]:
    """Return the labels of all splits in one order, and each split's labels × records in that order."""
    union = list(dict.fromkeys(label for records in splits.values() for label in _occurring(records)))
    if label_list:
        order = {label: at for at, label in enumerate(label_list)}
        if all(_WHOLE.fullmatch(label) and int(label) < len(label_list) for label in union):
            number = {label: int(label) for label in union}  # numbers of lines
        elif unknown := [label for label in union if label not in order]:
            raise DataError(f"{name}: the label {unknown[0]!r:.60} is not in labels.txt")
        else:
            number = {label: order[label] for label in union}
        names = distinct_names(tuple(label_list))[0]
    else:
        if not any(records.in_order for records in splits.values()):
            union.sort(key=_natural if all(map(_WHOLE.fullmatch, union)) else None)
        names, number = tuple(union), {label: at for at, label in enumerate(union)}
    return names, {split: _renumbered(records, number, len(names)) for split, records in splits.items()}


def _occurring(records: Records) -> Sequence[str]:
    """The labels that records have. If the order was given, also labels that none has."""
    if records.in_order:
        return records.label_names
    there = np.unique(records.labels.indices)
    return [records.label_names[label] for label in there.tolist()]


def _natural(label: str) -> int:
    return int(label)


def _renumbered(records: Records, number: Mapping[str, int], count: int) -> csr_matrix:
    new = np.array([number.get(label, -1) for label in records.label_names], dtype=np.int32)
    labels = records.labels
    matrix = csr_matrix((labels.data, new[labels.indices], labels.indptr), shape=(len(records), count))
    matrix.sort_indices()
    return matrix


def _features(
    splits: Mapping[str, Records], text: TextSettings | TextFeatures, name: str
) -> tuple[dict[str, csr_matrix], TextFeatures | None]:
    train = splits["train"]
    if train.texts is None:
        for split, records in splits.items():
            if records.feature_names != train.feature_names:
                raise DataError(f"{name}: {split} has other feature columns than train, or in another order")
        return {split: records.features for split, records in splits.items()}, None
    if not any(text.strip() for text in train.texts):
        raise DataError(f"{name}: all texts are empty; see that the text column is the right one")
    fitted = text if isinstance(text, TextFeatures) else fit_text(train.texts, text)
    return {split: fitted.transform(records.texts or ()) for split, records in splits.items()}, fitted
