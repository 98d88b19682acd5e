"""What the oracles of other packages share: their model is files that the package wrote, and they rank a few labels.

The bytes of the files are stored as tensors of `model/`, so there is no pickle. To score, the package reads them from a
temporary folder; a trained model and a loaded one therefore go the same way. A package that crashes on damaged files
does not get any from a folder, which may come from others: `reads_safely`.
"""

from __future__ import annotations

import os
import re
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import FedalcError
from fedalc.oracles.base import Follow, Oracle, Scores

TOP = 100  # labels asked for; the metrics need five
FILE = "file."  # prefix of the tensors that hold files

Ranked = list[list[tuple[int, float]]]
"""The best labels of each instance, with their scores."""


@dataclass(frozen=True)
class PackagedOracle(Oracle):
    """An oracle of another package. Labels that the package does not return score 0, below all that it returns.

    P@k and nDCG@k are the package's own. mAP ranks instances by label and sees only the labels returned, so it is a
    lower bound.
    """

    files: Mapping[str, bytes]  # as the package saved them
    features: int
    labels: int

    package: ClassVar[str]
    reads_safely: ClassVar[bool] = True  # whether damaged files are errors; if not, `model/` has no files

    @classmethod
    def check_ready(cls) -> None:
        if find_spec(cls.package) is None:
            raise FedalcError(f'{cls.kind} needs the package {cls.package}: pip install "fedalc[peers]"')

    @staticmethod
    @abstractmethod
    def train_package(settings: Experiment, train: Split, folder: Path) -> None:
        """Train with the package, and leave its files in `folder`."""

    @staticmethod
    @abstractmethod
    def rank(folder: Path, features: csr_matrix, k: int) -> Ranked:
        """Read the package's files and return the k best labels of each instance."""

    @staticmethod
    def candidates(settings: Experiment) -> tuple[float | None, ...]:
        return (None,)

    @staticmethod
    def steps(settings: Experiment, instances: int, labels: int, candidates: int) -> int:
        return candidates

    @staticmethod
    def memory(settings: Experiment, data: Dataset) -> float:
        """Return a lower bound: the data in two forms, and dense weights of one classifier per thread."""
        return 32 * data.train.features.nnz + 16 * data.feature_count * torch.get_num_threads()

    @classmethod
    def fits(
        cls, settings: Experiment, train: Split, candidates: tuple[float | None, ...], follow: Follow
    ) -> Iterator[tuple[float | None, Oracle]]:
        cls.check_ready()
        with TemporaryDirectory(prefix="fedalc-") as folder, quiet():
            cls.train_package(settings, train, Path(folder))
            files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        follow.done("model")
        for candidate in candidates:
            yield candidate, cls(files, train.features.shape[1], train.labels.shape[1])

    @property
    def feature_count(self) -> int:
        return self.features

    def scores(self, features: csr_matrix) -> Scores:
        self.check_ready()
        if not self.files:
            raise FedalcError(
                f"{self.kind} does not predict from a saved model: the package crashes on damaged files, so fedalc "
                "keeps none. Train it again, or use another method"
            )
        try:
            table = self._table(features)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise FedalcError(f"{self.kind} cannot use its model, which is damaged: {error}") from error

        def of(rows: slice, labels: slice) -> np.ndarray:
            return np.asarray(table[rows, labels].toarray())

        return of

    def _table(self, features: csr_matrix) -> csr_matrix:
        """Return the scores of the labels that the package returns: instances × labels."""
        with TemporaryDirectory(prefix="fedalc-") as folder, quiet():
            for name, content in self.files.items():
                (Path(folder) / name).write_bytes(content)
            ranked = self.rank(Path(folder), features, min(TOP, self.labels))
        starts = np.cumsum([0, *map(len, ranked)])
        label = np.array([label for row in ranked for label, _ in row], dtype=np.int64)
        score = np.array([score for row in ranked for _, score in row], dtype=np.float32)
        if len(label) and label.max() >= self.labels:
            raise ValueError(f"it returns label {label.max()} of {self.labels}")
        return csr_matrix((score, label, starts), shape=(features.shape[0], self.labels))

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        files = self.files if self.reads_safely else {}
        tensors = {FILE + name: torch.from_numpy(np.frombuffer(files[name], np.uint8).copy()) for name in files}
        return tensors, {"features": self.features}

    @classmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        files = {}
        for key, tensor in tensors.items():
            if key.startswith(FILE):
                if tensor.dtype != torch.uint8 or tensor.ndim != 1:
                    raise ValueError(f"{key}: {tensor.ndim} dimensions of {tensor.dtype}")
                files[key.removeprefix(FILE)] = tensor.numpy().tobytes()
        if wrong := [name for name in files if not re.fullmatch(r"\w[\w.-]*", name)]:
            raise ValueError(f"{wrong[0]!r:.60} is not the name of a file")
        features = facts["features"]
        if type(features) is not int or features < 1 or bool(files) != cls.reads_safely:
            raise ValueError(f"{features!r:.60} features in {len(files)} files")
        return cls(files, features, len(facts["labels"]))


@contextmanager
def quiet() -> Iterator[None]:
    """Discard what a compiled package prints: it writes to the process's own output, past Python's."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(stream) for stream in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)
