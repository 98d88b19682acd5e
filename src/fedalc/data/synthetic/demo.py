"""A small synthetic dataset that needs no download: short texts about food, animals, weather, …, with several labels.

It has the difficulties of real datasets: a long tail of rare labels, correlated labels (those of one group), and words
that separate labels only partly. Every draw looks up a uniform number in a table, so a seed gives the same data on all
machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags

from fedalc.data.dataset import Dataset, Split

_GROUPS = {
    "animals": "cat dog horse owl otter salmon beetle tortoise",
    "food": "bread cheese soup noodles pastry spices honey",
    "sports": "rowing tennis climbing cycling chess fencing skiing judo",
    "music": "piano choir jazz opera violin drums",
    "travel": "railway island desert harbour hostel passport",
    "health": "sleep allergy dentist vaccine nutrition surgery pharmacy",
    "garden": "roses compost orchard greenhouse tulips hedge",
    "machines": "tractor printer lathe turbine clock robot bicycle",
    "weather": "storm frost fog drought rainbow monsoon",
    "history": "castle empire archive treaty viking pharaoh",
    "home": "kitchen carpet lamp staircase window fireplace",
    "money": "tax loan auction pension insurance salary",
}
_HOW_MANY_LABELS = np.array([0.30, 0.27, 0.20, 0.12, 0.07, 0.04])  # one to six
_WITHIN_GROUP = 0.8
"""The probability that a further label comes from the group of the first one."""
_LABEL_WORDS = 24
_GROUP_WORDS = 40
_TEXT_LENGTH = 26
_WORD_SOURCES = np.array([0.62, 0.18, 0.20])
"""The shares of everyday words, words of the labels' groups, and words of the labels in a text."""


@dataclass(frozen=True)
class DemoSize:
    train: int = 3000
    test: int = 1000
    words: int = 1600


@dataclass(frozen=True)
class _Labels:
    """The frequency and group of each label, and the words of each label and group."""

    names: tuple[str, ...]
    share: NDArray[np.float64]
    group: NDArray[np.int64]
    words: NDArray[np.int64]
    group_words: NDArray[np.int64]


def make_demo(size: DemoSize | None = None, seed: int = 20) -> Dataset:
    """Generate the demo dataset. The label names do not depend on size and seed."""
    size = size or DemoSize()
    random = np.random.default_rng(seed)
    instances = size.train + size.test
    labels = _make_labels(size.words, random)
    instance, label = _draw_label_sets(instances, labels, random)
    label_matrix = csr_matrix(
        (np.ones(len(label), dtype=np.float32), (instance, label)), shape=(instances, len(labels.names))
    )
    counts = _draw_words(label_matrix, labels, size.words, random)
    everything = Split(_tf_idf(counts, size.train), label_matrix)
    train, test = np.arange(size.train), np.arange(size.train, instances)
    return Dataset("demo", everything.rows(train), everything.rows(test), labels.names)


def _make_labels(word_count: int, random: np.random.Generator) -> _Labels:
    names = tuple(f"{group}/{member}" for group, members in _GROUPS.items() for member in members.split())
    group = np.repeat(np.arange(len(_GROUPS)), [len(members.split()) for members in _GROUPS.values()])
    return _Labels(
        names,
        _zipf(len(names), 1.0)[_shuffled(len(names), random)],
        group,
        np.stack([_shuffled(word_count, random)[:_LABEL_WORDS] for _ in names]),
        np.stack([_shuffled(word_count, random)[:_GROUP_WORDS] for _ in _GROUPS]),
    )


def _draw_label_sets(
    instances: int, labels: _Labels, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw pairs of instance and label without repetition. A label drawn twice counts once: the text has one fewer."""
    how_many = 1 + _draw(_HOW_MANY_LABELS, instances, random)
    first = _draw(labels.share, instances, random)
    slots = np.repeat(np.arange(instances), how_many - 1)
    anywhere = _draw(labels.share, len(slots), random)
    beside = _draw_each(_beside(labels)[first[slots]], random)
    further = np.where(random.random(len(slots)) < _WITHIN_GROUP, beside, anywhere)
    pairs = np.unique(
        np.concatenate((np.arange(instances), slots)) * len(labels.names) + np.concatenate((first, further))
    )
    return pairs // len(labels.names), pairs % len(labels.names)


def _beside(labels: _Labels) -> NDArray[np.float64]:
    """Return in row k the probability of each label beside label k: only its group, mostly common and near ones."""
    position = np.arange(len(labels.names))
    same_group = labels.group[:, None] == labels.group
    distance = np.abs(position[:, None] - position)
    weight = np.where(same_group & (distance > 0), labels.share / np.maximum(distance, 1), 0.0)
    return weight / weight.sum(axis=1, keepdims=True)


def _draw_words(label_matrix: csr_matrix, labels: _Labels, word_count: int, random: np.random.Generator) -> csr_matrix:
    """Draw how often each word occurs in each text."""
    instances = label_matrix.shape[0]
    # Lengths are 0.5 to 1.5 times the average.
    lengths = (_TEXT_LENGTH * (0.5 + random.random(instances))).astype(np.int64)
    text = np.repeat(np.arange(instances), lengths)
    # Every word belongs to one of the text's labels, except for everyday words.
    label_counts = np.diff(label_matrix.indptr)
    pick = (random.random(len(text)) * label_counts[text]).astype(np.int64)
    label = label_matrix.indices[label_matrix.indptr[text] + pick]
    everyday = _draw(_zipf(word_count, 1.0), len(text), random)
    of_group = labels.group_words[labels.group[label], _draw(_zipf(_GROUP_WORDS, 0.5), len(text), random)]
    of_label = labels.words[label, _draw(_zipf(_LABEL_WORDS, 0.5), len(text), random)]
    source = _draw(_WORD_SOURCES, len(text), random)
    word = np.choose(source, (everyday, of_group, of_label))
    counts = csr_matrix((np.ones(len(text)), (text, word)), shape=(instances, word_count))
    counts.sum_duplicates()
    return counts


def _tf_idf(counts: csr_matrix, train: int) -> csr_matrix:
    """Return damped counts, weighted by rarity in the training texts, in rows of length 1."""
    in_texts = np.bincount(counts[:train].indices, minlength=counts.shape[1])
    rarity = np.log((1 + train) / (1 + in_texts)) + 1
    weighted = counts.copy()
    weighted.data = (1 + np.log(counts.data)) * rarity[counts.indices]
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return csr_matrix(diags(1 / np.maximum(norms, 1e-12)) @ weighted, dtype=np.float32)


def _zipf(count: int, exponent: float) -> NDArray[np.float64]:
    weights = np.arange(1, count + 1) ** -exponent
    return np.asarray(weights / weights.sum())


def _draw(shares: NDArray[np.float64], count: int, random: np.random.Generator) -> NDArray[np.int64]:
    cumulative = np.cumsum(shares)
    return np.searchsorted(cumulative[:-1], random.random(count) * cumulative[-1], side="right")


def _draw_each(shares: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw once per row, from the shares in that row."""
    cumulative = np.cumsum(shares, axis=1)[:, :-1]
    return np.asarray((cumulative <= random.random((len(shares), 1))).sum(axis=1))


def _shuffled(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    return np.argsort(random.random(count), kind="stable")
