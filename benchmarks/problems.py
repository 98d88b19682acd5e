"""Datasets for benchmarks/tuned.py: real ones as they are, and variants of them with other features, labels or sizes.

All are built in memory with fixed seeds. What is fitted (terms, idf, SVD) is fitted on train. In variants, labels that
train lacks are dropped, and then the records without a label, as P@k says nothing about them.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.preprocessing import MultiLabelBinarizer

import fedalc
from fedalc.data.synthetic.demo import make_demo

Texts = tuple[list[str], list[list[str]]]
SEED = 0


def demo() -> fedalc.Dataset:
    return fedalc.load_dataset("demo")


def demo_again() -> fedalc.Dataset:
    """The demo's generator with another seed."""
    return _named("demo-seed-21", make_demo(seed=21))


def bibtex() -> fedalc.Dataset:
    return fedalc.load_dataset("bibtex")


def bibtex_dense() -> fedalc.Dataset:
    """Bibtex, its features reduced to 300 dense ones by SVD."""
    data = fedalc.load_dataset("bibtex")
    svd = TruncatedSVD(300, random_state=SEED).fit(data.train.features)
    return _with_features("bibtex-svd300", data, lambda features: svd.transform(features).astype(np.float32))


def reuters() -> fedalc.Dataset:
    """Reuters-21578 with tf-idf of uni- and bigrams, 20,000 terms."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), max_features=20_000, sublinear_tf=True, dtype=np.float32)
    return _reuters("reuters21578", vectorizer)


def reuters_counts() -> fedalc.Dataset:
    """Reuters-21578 with raw counts of 2,000 terms."""
    return _reuters("reuters-counts", CountVectorizer(max_features=2000, dtype=np.float32))


def eurlex15k() -> fedalc.Dataset:
    return fedalc.load_dataset("eurlex15k")


def eurlex_binary() -> fedalc.Dataset:
    """eurlex15k with binary features and its 500 most frequent labels."""
    data = _most_frequent("eurlex15k-binary", fedalc.load_dataset("eurlex15k"), 500)
    return _with_features("eurlex15k-binary", data, lambda features: (features != 0).astype(np.float32))


def eurlex_few() -> fedalc.Dataset:
    """4,000 training records of EURLEX57K with their 1,000 most frequent labels, and 3,000 of its test records."""
    data = fedalc.load_dataset("eurlex57k")
    random = np.random.default_rng(SEED)
    train = data.train.rows(np.sort(random.permutation(len(data.train))[:4000]))
    test = data.test.rows(np.sort(random.permutation(len(data.test))[:3000]))
    return _most_frequent("eurlex57k-4000", fedalc.Dataset("eurlex57k-4000", train, test, data.label_names), 1000)


def yso() -> fedalc.Dataset:
    """60,000 training documents of YSO with tf-idf of 10,000 terms, and the labels that at least 20 of them have."""
    random = np.random.default_rng(SEED)
    train, test = (_sample(_yso_texts(part), count, random) for part, count in (("train", 60_000), ("test", 20_000)))
    vectorizer = TfidfVectorizer(max_features=10_000, sublinear_tf=True, dtype=np.float32)
    data = _from_texts("yso-60000", train, test, vectorizer)
    return _of_labels("yso-60000", data, np.asarray(data.train.labels.getnnz(axis=0)) >= 20)


def eurlex57k() -> fedalc.Dataset:
    return fedalc.load_dataset("eurlex57k")


#: The small ones first.
PROBLEMS: dict[str, Callable[[], fedalc.Dataset]] = {
    "demo": demo,
    "demo-seed-21": demo_again,
    "bibtex": bibtex,
    "bibtex-svd300": bibtex_dense,
    "reuters-counts": reuters_counts,
    "eurlex57k-4000": eurlex_few,
    "eurlex15k-binary": eurlex_binary,
    "reuters21578": reuters,
    "yso-60000": yso,
    "eurlex15k": eurlex15k,
    "eurlex57k": eurlex57k,
}


# --- texts ---


def _folder(name: str) -> Path:
    return Path(os.environ["FEDALC_DATA"]) / name


def _reuters(name: str, vectorizer: CountVectorizer) -> fedalc.Dataset:
    parts = []
    for part in ("train", "test"):
        with gzip.open(_folder("reuters21578") / f"{part}.jsonl.gz", "rt", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        parts.append(([record["text"] for record in records], [record["labels"] for record in records]))
    return _from_texts(name, parts[0], parts[1], vectorizer)


def _yso_texts(part: str) -> Texts:
    with gzip.open(_folder("yso") / f"{part}.tsv.gz", "rt", encoding="utf-8") as file:
        next(file)  # the header
        rows = [line.rstrip("\n").split("\t", 1) for line in file]
    return [text for _, text in rows], [labels.split(",") for labels, _ in rows]


def _sample(texts: Texts, count: int, random: np.random.Generator) -> Texts:
    chosen = np.sort(random.permutation(len(texts[0]))[:count])
    return [texts[0][at] for at in chosen], [texts[1][at] for at in chosen]


def _from_texts(name: str, train: Texts, test: Texts, vectorizer: CountVectorizer) -> fedalc.Dataset:
    """Return the records that have a label. Only train decides about terms and labels."""
    kept = [at for at, labels in enumerate(train[1]) if labels]
    train = [train[0][at] for at in kept], [train[1][at] for at in kept]
    binarizer = MultiLabelBinarizer(sparse_output=True).fit(train[1])
    known = set(binarizer.classes_)
    test = test[0], [[label for label in labels if label in known] for labels in test[1]]
    splits = []
    for part, fit in ((train, True), (test, False)):
        features = vectorizer.fit_transform(part[0]) if fit else vectorizer.transform(part[0])
        splits.append(_labelled(fedalc.Split(features, binarizer.transform(part[1]).astype(np.float32))))
    return fedalc.Dataset(name, splits[0], splits[1], tuple(map(str, binarizer.classes_)))


# --- variants of a dataset ---


def _labelled(split: fedalc.Split) -> fedalc.Split:
    return split.rows(np.flatnonzero(split.labels.getnnz(axis=1)))


def _named(name: str, data: fedalc.Dataset) -> fedalc.Dataset:
    return fedalc.Dataset(name, data.train, data.test, data.label_names, data.validation)


def _with_features(
    name: str, data: fedalc.Dataset, change: Callable[[csr_matrix], csr_matrix | np.ndarray]
) -> fedalc.Dataset:
    train, test = (fedalc.Split(change(split.features), split.labels) for split in (data.train, data.test))
    return fedalc.Dataset(name, train, test, data.label_names)


def _most_frequent(name: str, data: fedalc.Dataset, count: int) -> fedalc.Dataset:
    frequency = np.asarray(data.train.labels.getnnz(axis=0))
    mask = np.zeros(len(frequency), dtype=bool)
    mask[np.argsort(-frequency, kind="stable")[:count]] = True
    return _of_labels(name, data, mask)


def _of_labels(name: str, data: fedalc.Dataset, mask: np.ndarray) -> fedalc.Dataset:
    """Return the dataset with these labels only, and without the records that then have none."""
    kept = np.flatnonzero(mask)
    splits: Sequence[fedalc.Split] = [
        _labelled(fedalc.Split(split.features, split.labels[:, kept])) for split in (data.train, data.test)
    ]
    return fedalc.Dataset(name, splits[0], splits[1], tuple(data.label_names[at] for at in kept))
