"""The model behind generated problems: it draws the labels and the words of each instance.

- Labels belong to topics of about 40 labels (fewer in a small problem). Their frequency falls as a power of the rank: a
  few are very common, most are rare, and each has at least one training instance. An instance has one topic. Most of
  its labels are drawn from that topic by frequency, and some from all labels. This makes labels correlated.
- The words of an instance are drawn from those of its labels, those of its topic, and everyday words with a long tail.
  Values are damped counts times the rarity of the word, in rows of length 1, with four decimals.

Memory in addition to the result: about 60 bytes per (instance, label) pair of the current split (6 million pairs: 360
MB), then about 150 bytes per word of a block of a million words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from fedalc.core.progress_events import watched
from fedalc.data.catalog import datasets as catalog
from fedalc.data.dataset import Split
from fedalc.data.formats.sparse_builder import RowsBuilder
from fedalc.errors import DataError

Part = Literal["train", "test"]
Integers = NDArray[np.int64]

_TOPIC_LABELS = 40
_LABEL_WORDS = 16
_TOPIC_WORDS = 64
_OF_LABELS, _OF_TOPIC = 0.35, 0.15
"""The share of an instance's words that come from its labels and from its topic. The rest are everyday words."""
_FROM_ANYWHERE = 0.15
"""The probability that a further label is drawn from all labels instead of the topic."""
_HEAD_WORDS, _HEAD_LABELS = 20, 20
"""How many of the commonest words or labels are about equally common. The power law starts after them."""
_LENGTH_SPREAD = 0.4
_WORDS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Form:
    """Facts of a problem that the catalog does not state. They are our choice, except for the maximum of 57 labels."""

    most_labels: int
    spread: float
    """Standard deviation of the logarithm of the number of labels per instance."""
    fall: float
    """The share of a label falls as rank^-fall."""


FORMS = {
    "amazoncat-shaped": Form(57, 0.55, 1.5),
    "wikilshtc-shaped": Form(200, 0.7, 1.3),
    "amazon670k-shaped": Form(30, 0.4, 1.0),
}


@dataclass(frozen=True)
class Block:
    """Rows of features: the words of all rows in one array, ascending in each row, and the number of words per row."""

    words: Integers
    values: NDArray[np.float32]
    lengths: Integers


class World:
    """Labels, topics and words of one problem. Every draw depends only on the seed, the split and the block."""

    def __init__(self, entry: catalog.Entry, seed: int) -> None:
        statistics, form = entry.statistics, FORMS.get(entry.like or "")
        if statistics is None or statistics.features_per_instance is None or form is None:
            raise DataError(f"{entry.name} is not a generated problem; there are {', '.join(FORMS)}")
        self.name, self._form, self._seed = entry.name, form, seed
        assert statistics.features is not None
        self._instances = {"train": statistics.train, "test": statistics.test}
        self.features, self.labels = statistics.features, statistics.labels
        self._labels_per_instance = statistics.labels_per_instance
        self._words_per_instance = statistics.features_per_instance
        random = self._random(0)
        self._topics = -(-self.labels // min(_TOPIC_LABELS, max(2, self.labels // 8)))
        # Labels sorted by topic, otherwise in random order. The number of a label reveals neither topic nor rank.
        self._label_at = random.permutation(self.labels)
        self._topic_start = np.linspace(0, self.labels, self._topics + 1).astype(np.int64)
        self._topic_of = np.empty(self.labels, dtype=np.int64)
        self._topic_of[self._label_at] = np.repeat(np.arange(self._topics), np.diff(self._topic_start))
        share = (random.permutation(self.labels) + min(_HEAD_LABELS, self.labels // 10) + 1.0) ** -form.fall
        self._cumulative = np.append(0.0, np.cumsum(share))
        self._word_of_rank = random.permutation(self.features).astype(np.int32)

    def _random(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *purpose])

    def split(self, part: Part) -> Split:
        labels, features = self.label_sets(part), RowsBuilder()
        made = watched(
            f"{part} instances made", self.blocks(part, labels), labels.shape[0], lambda block: len(block.lengths)
        )
        for block in made:
            features.append(block.words, block.values, block.lengths)
        return Split(features.matrix(self.features), labels)

    def label_sets(self, part: Part) -> csr_matrix:
        """Draw the labels of each instance. The total number of labels matches the statistics exactly."""
        random, N, C = self._random(1, _number(part)), self._instances[part], self.labels
        topic = self._topic_of[self._label_near(np.zeros(N), np.full(N, self._cumulative[-1]), random)]
        pairs = self._one_of_each(topic, random) if part == "train" else np.zeros(0, dtype=np.int64)
        most = max(1, min(self._form.most_labels, C // 2))
        sizes = _sizes(
            np.bincount(pairs // C, minlength=N), most, self._form.spread, round(self._labels_per_instance * N), random
        )
        draws = 0
        while len(slots := np.repeat(np.arange(N), sizes - np.bincount(pairs // C, minlength=N))):
            # Redraw repeated labels: from the topic, then from all labels, then uniformly.
            label = self._further(topic[slots], 1.0 if draws >= 4 else _FROM_ANYWHERE, random)
            if draws >= 20:
                label = random.integers(0, C, len(slots))
            pairs = _merged(pairs, slots * C + label)
            pairs = pairs[_first(pairs)]
            draws += 1
        pointers = np.append(0, np.cumsum(sizes)).astype(np.int32)
        return csr_matrix((np.ones(len(pairs), np.float32), (pairs % C).astype(np.int32), pointers), shape=(N, C))

    def _one_of_each(self, topic: Integers, random: np.random.Generator) -> Integers:
        """Return pairs that give each label an instance, which takes the label's topic.

        If there are more labels than instances, the rest are added to instances of their topic as further labels.
        """
        N, C = len(topic), self.labels
        label, alone = random.permutation(C), random.permutation(N)[:C]
        topic[alone] = self._topic_of[label[:N]]
        wanted = self._topic_of[label[N:]]
        by_topic = np.argsort(topic, kind="stable")
        start = np.searchsorted(topic[by_topic], np.arange(self._topics + 1))
        pick = random.random(len(wanted))
        beside = start[wanted] + (pick * np.diff(start)[wanted]).astype(np.int64)
        anywhere = (pick * N).astype(np.int64)
        beside = by_topic[np.where(np.diff(start)[wanted] > 0, beside, anywhere)]
        return np.sort(np.concatenate((alone, beside)) * C + label)

    def _further(self, topic: Integers, elsewhere: float, random: np.random.Generator) -> Integers:
        """Draw a label for each slot by share: from its topic, or with probability `elsewhere` from all labels."""
        anywhere = random.random(len(topic)) < elsewhere
        low = np.where(anywhere, 0.0, self._cumulative[self._topic_start[topic]])
        high = np.where(anywhere, self._cumulative[-1], self._cumulative[self._topic_start[topic + 1]])
        return self._label_near(low, high, random)

    def _label_near(self, low: NDArray[np.float64], high: NDArray[np.float64], random: np.random.Generator) -> Integers:
        """Draw one label each by share, between two positions in the cumulative shares."""
        drawn = low + (high - low) * random.random(len(low))
        return self._label_at[np.searchsorted(self._cumulative[1:-1], drawn, side="right")]

    def blocks(self, part: Part, labels: csr_matrix) -> Iterator[Block]:
        """Yield the features of the instances that have these labels."""
        rows = max(1, int(_WORDS_AT_ONCE / self._words_per_instance))
        for number, start in enumerate(range(0, labels.shape[0], rows)):
            yield self._block(labels[start : start + rows], self._random(2, _number(part), number))

    def _block(self, labels: csr_matrix, random: np.random.Generator) -> Block:
        count, F = labels.shape[0], self.features
        drift = np.exp(_LENGTH_SPREAD * random.standard_normal(count) - _LENGTH_SPREAD**2 / 2)
        lengths = np.clip(np.rint(self._words_per_instance * drift), 1, F // 2).astype(np.int64)
        label_counts = np.diff(labels.indptr)
        of_labels, of_topic = (np.rint(share * lengths).astype(np.int64) for share in (_OF_LABELS, _OF_TOPIC))
        rows = np.arange(count)
        label_rows = np.repeat(rows, of_labels)
        label = labels.indices[labels.indptr[label_rows] + _below(label_counts[label_rows], random)]
        topic_rows = np.repeat(rows, of_topic)
        topic = self._topic_of[labels.indices[labels.indptr[topic_rows] + _below(label_counts[topic_rows], random)]]
        keys = np.concatenate(
            (
                label_rows * F + self._label_words[label, _falling(_LABEL_WORDS, len(label_rows), random)],
                topic_rows * F + self._topic_words[topic, _falling(_TOPIC_WORDS, len(topic_rows), random)],
                self._everyday(np.repeat(rows, lengths - of_labels - of_topic), random),
            )
        )
        keys.sort()
        # Repeated words make an instance too short: add everyday words, then any words for the few still missing.
        for more in (self._everyday, self._any_word, self._any_word):
            missing = lengths - np.bincount(keys[_first(keys)] // F, minlength=count)
            keys = _merged(keys, more(np.repeat(rows, missing), random))
        first = np.flatnonzero(_first(keys))
        times = np.diff(np.append(first, len(keys)))
        row, word = keys[first] // F, keys[first] % F
        values = (1 + np.log(times)) * self._rarity[word]
        values /= np.sqrt(np.bincount(row, values**2, minlength=count))[row]
        rounded = np.maximum(np.rint(values * 10_000), 1) / 10_000
        return Block(word, rounded.astype(np.float32), np.bincount(row, minlength=count))

    def _everyday(self, rows: Integers, random: np.random.Generator) -> Integers:
        return rows * self.features + self._word_of_rank[_ranks(random.random(len(rows)), self.features, _HEAD_WORDS)]

    def _any_word(self, rows: Integers, random: np.random.Generator) -> Integers:
        return rows * self.features + random.integers(0, self.features, len(rows))

    @cached_property
    def _label_words(self) -> NDArray[np.int32]:
        return self._draw_words(self.labels, _LABEL_WORDS, 3)

    @cached_property
    def _topic_words(self) -> NDArray[np.int32]:
        return self._draw_words(self._topics, _TOPIC_WORDS, 4)

    def _draw_words(self, count: int, words: int, purpose: int) -> NDArray[np.int32]:
        """Draw the words of each of `count` labels or topics. They are rarer than the everyday words."""
        random = self._random(purpose)
        drawn = np.empty((count, words), dtype=np.int32)
        for start in range(0, count, 1 << 16):
            part = drawn[start : start + (1 << 16)]
            part[:] = self._word_of_rank[_ranks(random.random(part.shape), self.features, self.features / 10)]
        return drawn

    @cached_property
    def _rarity(self) -> NDArray[np.float64]:
        """For each word: 1 + the logarithm of how much rarer it is than the commonest word."""
        rarity = np.empty(self.features)
        rarity[self._word_of_rank] = 1 + np.log1p(np.arange(self.features) / _HEAD_WORDS)
        return rarity


def _number(part: Part) -> int:
    return ("train", "test").index(part)


def _sizes(least: Integers, most: int, spread: float, total: int, random: np.random.Generator) -> Integers:
    """Draw the number of labels of each instance: a long tail between 1 (or `least`) and `most`, with sum `total`."""
    form = np.exp(spread * random.standard_normal(len(least)))
    least = np.maximum(least, 1)
    most_each = np.maximum(least, most)
    low, high = 0.0, float(2 * most)
    for _ in range(30):
        middle = (low + high) / 2
        fits = np.clip(np.rint(middle * form), least, most_each).sum() <= total
        low, high = (middle, high) if fits else (low, middle)
    sizes = np.clip(np.rint(low * form), least, most_each).astype(np.int64)
    room = np.flatnonzero(sizes < most_each)
    sizes[random.permutation(room)[: max(0, total - int(sizes.sum()))]] += 1
    return sizes


def _merged(keys: Integers, more: Integers) -> Integers:
    """Merge both in ascending order. `keys` is already sorted, so the stable sort only has to merge."""
    more.sort()
    both = np.concatenate((keys, more))
    both.sort(kind="stable")
    return both


def _first(keys: Integers) -> NDArray[np.bool_]:
    """Return a mask of the sorted numbers that differ from the previous one."""
    return np.append(True, keys[1:] != keys[:-1]) if len(keys) else np.zeros(0, dtype=bool)


def _ranks(uniform: NDArray[np.float64], count: int, head: float) -> Integers:
    """Convert uniform numbers to ranks below `count`, where rank r has a probability proportional to 1 / (r + head)."""
    ranks = (head * np.expm1(uniform * np.log1p(count / head))).astype(np.int64)
    return np.minimum(ranks, count - 1)


def _below(limit: Integers, random: np.random.Generator) -> Integers:
    return (random.random(len(limit)) * limit).astype(np.int64)


def _falling(count: int, draws: int, random: np.random.Generator) -> Integers:
    """Draw numbers below `count`, small ones more often."""
    return (count * random.random(draws) ** 2).astype(np.int64)
