from __future__ import annotations

import time

import numpy as np
import pytest

from fedalc.data import load_dataset
from fedalc.data.dataset import Dataset
from fedalc.data.synthetic.demo import DemoSize, make_demo


@pytest.fixture(scope="module")
def demo() -> Dataset:
    return make_demo()


def test_its_shape(demo: Dataset) -> None:
    assert (len(demo.train), len(demo.test), demo.label_count, demo.feature_count) == (3000, 1000, 79, 1600)
    assert "animals/otter" in demo.label_names
    assert len(set(demo.label_names)) == demo.label_count
    for split in (demo.train, demo.test):
        counts = np.diff(split.labels.indptr)
        assert counts.min() >= 1 and counts.max() == 6
        assert split.features.dtype == split.labels.dtype == np.float32
        assert set(split.labels.data) == {1.0}
        assert (split.features.data > 0).all()
        np.testing.assert_allclose(np.sqrt(split.features.multiply(split.features).sum(axis=1)), 1, rtol=1e-5)


def test_it_is_always_the_same(demo: Dataset) -> None:
    again = load_dataset("demo")
    for ours, theirs in ((demo.train, again.train), (demo.test, again.test)):
        assert (ours.features != theirs.features).nnz == 0
        assert (ours.labels != theirs.labels).nnz == 0
    other = make_demo(seed=21)
    assert (demo.train.features != other.train.features).nnz > 0


def test_labels_have_a_long_tail_and_all_have_examples(demo: Dataset) -> None:
    counts = np.sort(np.asarray(demo.train.labels.sum(axis=0)).ravel())[::-1]
    assert counts[-1] >= 5
    assert counts[:8].sum() > 0.35 * counts.sum()
    assert counts[0] > 30 * counts[-1]


def test_labels_of_a_group_come_together(demo: Dataset) -> None:
    together = (demo.train.labels.T @ demo.train.labels).toarray()
    np.fill_diagonal(together, 0)
    groups = np.array([name.split("/")[0] for name in demo.label_names])
    same = groups[:, None] == groups
    assert together[same].sum() > 0.6 * together.sum()


def test_a_linear_model_does_well_but_not_perfectly(demo: Dataset) -> None:
    """One-vs-rest ridge regression learns something useful and leaves room for improvement."""
    X, Y = demo.train.features.toarray(), demo.train.labels.toarray()
    W = np.linalg.solve(X.T @ X + np.eye(X.shape[1]), X.T @ Y)
    best = (demo.test.features @ W).argmax(axis=1)
    precision = demo.test.labels.toarray()[np.arange(len(demo.test)), best].mean()
    assert 0.75 < precision < 0.92


def test_its_size_can_be_changed_and_it_is_quick() -> None:
    begin = time.perf_counter()
    small = make_demo(DemoSize(train=200, test=50, words=400))
    assert (len(small.train), len(small.test), small.feature_count, small.label_count) == (200, 50, 400, 79)
    make_demo()
    assert time.perf_counter() - begin < 2
