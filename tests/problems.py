"""Small problems shared by the tests."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.images import Images
from fedalc.testing.engines import random_split
from fedalc.training.base import Callback
from fedalc.training.federated import FederatedTraining, knowledge_for, simulated

__all__ = [
    "changed",
    "federated",
    "random_pictures",
    "random_split",
    "real_data",
    "small_dataset",
    "small_files",
    "small_pictures",
]


def small_dataset(seed: int = 0, instances: int = 60, features: int = 20, labels: int = 7) -> Dataset:
    names = tuple(f"label {i}" for i in range(labels))
    train = random_split(instances, features, labels, seed)
    return Dataset("small", train, random_split(instances // 2, features, labels, seed + 1), names)


def small_files(folder: Path) -> Path:
    """Write a dataset of 60 train and 20 test instances in the format of the XML repository."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for name, count in (("train.txt", 60), ("test.txt", 20)):
        lines = [f"{count} 12 5"]
        for _ in range(count):
            label = int(random.integers(5))
            features = sorted({label, label + 5, int(random.integers(12))})
            lines.append(f"{label} " + " ".join(f"{feature}:{random.uniform(0.5, 1.5):.3f}" for feature in features))
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def random_pictures(instances: int, size: int, labels: int, seed: int) -> Split:
    """Return noise with one to three labels each, every label at least twice; the last picture has none."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (instances, size, size, 3)).astype(np.uint8)
    Y = np.zeros((instances, labels))
    for row in range(instances - 1):
        Y[row, row % labels] = 1
        Y[row, random.choice(labels, 2)] = 1
    return Split(Images(pixels, [f"picture {row}" for row in range(instances)]), csr_matrix(Y.astype(np.float32)))


def small_pictures(seed: int = 0, instances: int = 24, size: int = 16, labels: int = 4) -> Dataset:
    names = tuple(f"label {i}" for i in range(labels))
    train = random_pictures(instances, size, labels, seed)
    return Dataset("small", train, random_pictures(instances // 2, size, labels, seed + 1), names)


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with these changes, merged within sections."""
    values = copy.deepcopy(dict(settings))
    for key, value in changes.items():
        if isinstance(value, dict):
            values.setdefault(key, {}).update(value)
        else:
            values[key] = value
    return values


def federated(settings: Experiment, train: Split) -> FederatedTraining:
    """Return a training whose server has collected the labels, as in a run."""
    return simulated(settings, train, knowledge_for(settings, train))


def real_data(name: str) -> Path:
    """Return the folder of a real dataset, or skip the test and say why."""
    root = os.environ.get("FEDALC_DATA")
    if not root:
        pytest.skip("FEDALC_DATA is not set, so the tests on real data are left out")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not in FEDALC_DATA")
    return folder


class StopAfter(Callback):
    """Presses Ctrl-C during the given round of the given phase."""

    def __init__(self, phase: str, number: int) -> None:
        self.wanted, self.number, self.now = phase, number, ""

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.now = name

    def round(self, number: int, loss: float) -> None:
        if (self.now, number) == (self.wanted, self.number):
            signal.raise_signal(signal.SIGINT)
