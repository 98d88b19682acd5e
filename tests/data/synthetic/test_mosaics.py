from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from fedalc.data import Dataset, ImageOptions, Images, load_dataset
from fedalc.data.catalog.datasets import entry
from fedalc.data.synthetic.mosaics import MosaicsSize, _handwritings, make_mosaics


@pytest.fixture(scope="module")
def mosaics() -> Dataset:
    return make_mosaics()


def test_its_shape(mosaics: Dataset) -> None:
    assert (len(mosaics.train), len(mosaics.test), mosaics.label_count) == (3000, 1000, 10)
    assert mosaics.feature_count == 32 * 32 * 3 and isinstance(mosaics.train.features, Images)
    per_picture = np.asarray(mosaics.train.labels.sum(axis=1)).ravel()
    assert per_picture.min() == 1 and per_picture.max() == 4
    assert mosaics.train.features.names[7] == "train-00007"


@pytest.mark.long
def test_it_is_the_same_always(mosaics: Dataset) -> None:
    assert load_dataset("mosaics").fingerprint == mosaics.fingerprint == make_mosaics().fingerprint
    assert make_mosaics(seed=11).fingerprint != mosaics.fingerprint


def test_pictures_and_labels_are_those_from_before_there_were_users(mosaics: Dataset) -> None:
    without = Dataset("mosaics", replace(mosaics.train, users=None), mosaics.test, mosaics.label_names)
    assert without.fingerprint.startswith("9f73daca7c7e971c")


def test_users_are_of_uneven_size_and_each_has_a_taste(mosaics: Dataset) -> None:
    assert mosaics.users is not None
    names, user, sizes = np.unique(mosaics.users, return_inverse=True, return_counts=True)
    assert len(names) == entry("mosaics").users == 40 and (sizes.min(), sizes.max()) == (11, 361)
    labels = mosaics.train.labels.toarray()
    usual = labels.mean(axis=0)
    own = np.array([labels[user == each].mean(axis=0) for each in range(40)])
    assert ((own > 1.5 * usual).any(axis=1)).sum() > 30, "most have a digit far more often than others have"
    assert make_mosaics(seed=11).users != mosaics.users


def test_no_handwriting_is_in_both_splits() -> None:
    train, test = (np.concatenate(part).reshape(-1, 144) for part in _handwritings())
    assert len(train) + len(test) == 1797 and 0.24 < len(test) / 1797 < 0.26
    assert not {each.tobytes() for each in train} & {each.tobytes() for each in test}


def test_digits_of_a_group_come_together(mosaics: Dataset) -> None:
    counts = np.asarray(mosaics.train.labels.sum(axis=0)).ravel()
    assert counts[0] > 2 * counts[9] and counts[9] > 150
    together = (mosaics.train.labels.T @ mosaics.train.labels).toarray()
    np.fill_diagonal(together, 0)
    group = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    same = group[:, None] == group
    assert together[same].sum() > 0.5 * together.sum()
    assert (together[~same] > 0).all(), "and yet everything occurs with everything"


@pytest.mark.long
def test_a_linear_model_does_not_do(mosaics: Dataset) -> None:
    """It beats the most frequent digit but is far from right: a digit can be anywhere, in any colour."""
    X, S = (split.features.pixels().reshape(len(split), -1) / 255 - 0.4 for split in (mosaics.train, mosaics.test))
    W = np.linalg.solve(X.T @ X + 100 * np.eye(X.shape[1]), X.T @ mosaics.train.labels.toarray())
    truth = mosaics.test.labels.toarray()
    precision = truth[np.arange(len(truth)), (S @ W).argmax(axis=1)].mean()
    assert truth.mean(axis=0).max() < precision < 0.6


@pytest.mark.long
def test_its_size_can_be_changed_and_it_needs_neither_pillow_nor_torch() -> None:
    code = (
        "import sys; sys.modules['PIL'] = None; from fedalc.data.synthetic.mosaics import *\n"
        "data = make_mosaics(MosaicsSize(50, 20)); print(len(data.train), len(data.test), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["50", "20", "False"]
    begin = time.perf_counter()
    make_mosaics(MosaicsSize(200, 50))
    assert time.perf_counter() - begin < 2


@pytest.mark.long
def test_they_are_brought_to_the_size_asked_for() -> None:
    own, large = load_dataset("mosaics"), load_dataset("mosaics", images=ImageOptions(size=64))
    assert (own.train.features.size, large.train.features.size, large.test.features.size) == (32, 64, 64)
    assert (large.train.labels != own.train.labels).nnz == 0
    smaller = large.train.features[:20].pixels().reshape(20, 32, 2, 32, 2, 3).astype(float).mean((2, 4))
    assert np.abs(smaller - own.train.features[:20].pixels()).mean() < 10  # bilinear and back: a little smoother
    same = load_dataset("mosaics", images=ImageOptions(size=32))
    assert same.train.features.fingerprint == own.train.features.fingerprint
