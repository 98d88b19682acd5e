"""The base classes of the oracles. A trained oracle scores all labels, and is saved and used like any model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_args

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import MethodFacts
from fedalc.config.schema import EncoderSettings
from fedalc.core.arguments import model_folder
from fedalc.core.saved_parts import DAMAGE, labels_of
from fedalc.core.tensor_folder import load_folder, save_folder
from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.images import Images
from fedalc.data.matrices import feature_matrix
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.text.features import TextFeatures
from fedalc.errors import DataError, FedalcError
from fedalc.evaluation.score_blocks import top_labels
from fedalc.models.calibration import Calibration
from fedalc.models.calibration_parts import calibration_tensors, read_calibration
from fedalc.models.encoders import scale_rows
from fedalc.models.predicting import Predictor
from fedalc.models.text_parts import PICTURES, from_texts, pictures_of, text_of, text_parts

FORMAT = 1

ROWS = get_args(EncoderSettings.model_fields["features"].annotation)  # the ways to scale rows
Scores = Callable[[slice, slice], np.ndarray]  # (block of instances, block of labels) → scores


class Follow(Protocol):
    """Receives the progress of a fit. Both calls raise `Interrupted` if the user asked to stop."""

    def done(self, what: str) -> None:
        """Report that one of the announced steps has ended."""

    def check(self) -> None:
        """Check for an interrupt within a step."""


class Oracle(MethodFacts, ABC):
    """Scores all labels. It learns from all instances with all their labels, in one place."""

    centralised = True
    kind: ClassVar[str]  # the method's name, also stored in the model's files
    choice: ClassVar[str] = "penalty"  # what candidates are values of
    unconverged: int = 0  # the number of regressions that stopped before they converged

    @classmethod
    def check_ready(cls) -> None:
        """Raise if a package that the oracle needs is not installed."""

    @staticmethod
    @abstractmethod
    def candidates(settings: Experiment) -> tuple[float | None, ...]:
        """Return the values to choose from on validation data. With a single value there is no choice to make."""

    @staticmethod
    @abstractmethod
    def steps(settings: Experiment, instances: int, labels: int, candidates: int) -> int:
        """Return how many steps a fit of this many candidates announces."""

    @staticmethod
    @abstractmethod
    def memory(settings: Experiment, data: Dataset) -> float:
        """Estimate the memory of a fit, in bytes."""

    @classmethod
    @abstractmethod
    def fits(
        cls, settings: Experiment, train: Split, candidates: tuple[float | None, ...], follow: Follow
    ) -> Iterator[tuple[float | None, Oracle]]:
        """Yield each candidate with the oracle fitted on `train`, whose rows are scaled. Candidates may share work."""

    @property
    @abstractmethod
    def feature_count(self) -> int: ...

    @abstractmethod
    def scores(self, features: csr_matrix) -> Scores: ...

    @abstractmethod
    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and facts to save."""

    @classmethod
    @abstractmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Oracle: ...


class OracleScorer:
    """Scores instances with an oracle. Labels without a training instance get -inf."""

    def __init__(self, oracle: Oracle, features: csr_matrix, held: np.ndarray) -> None:
        self._scores = oracle.scores(features)
        self._absent = torch.from_numpy(~held)
        self._instances = features.shape[0]

    def of_instances(self, rows: slice) -> Tensor:
        return self._masked(rows, slice(0, len(self._absent)))

    def of_labels(self, labels: slice) -> Tensor:
        return self._masked(slice(0, self._instances), labels)

    def _masked(self, rows: slice, labels: slice) -> Tensor:
        return torch.from_numpy(self._scores(rows, labels)).masked_fill_(self._absent[labels], -torch.inf)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best labels and their scores, or fewer if fewer labels have an instance."""
        present = int((~self._absent).sum())
        return top_labels(self.of_instances, self._instances, len(self._absent), min(k, present))


@dataclass(frozen=True, repr=False)
class TrainedOracle(Predictor):
    """An oracle with the scaling of its feature rows, the label names, a mask of labels with training instances, and
    what gives probabilities."""

    oracle: Oracle
    rows: str  # a value of encoder.features
    label_names: tuple[str, ...]
    held: np.ndarray  # which labels had a training instance
    text: TextFeatures | None = None  # what turns raw texts into features
    calibration: Calibration | None = None
    pictures: PictureFeatures | None = None  # what turns pictures into features

    def __repr__(self) -> str:
        labels = f"{len(self.label_names):,} labels"
        return f"<fedalc.oracles.TrainedOracle {self.oracle.kind}, {self.feature_count:,} features → {labels}>"

    @property
    def feature_count(self) -> int:
        return self.oracle.feature_count

    @property
    def picture_size(self) -> int | None:
        return None if self.pictures is None else self.pictures.views.size

    def scorer(self, features: csr_matrix | Sequence[str]) -> OracleScorer:
        if isinstance(features, Images) and self.pictures is not None:
            features = self.pictures.transform(features)
        if isinstance(features, Images):
            raise DataError("the model was trained on features, but these are pictures")
        features = feature_matrix(from_texts(features, self.text))
        if features.shape[1] != self.feature_count:
            raise DataError(
                f"the model was trained on {self.feature_count} features, but these have {features.shape[1]}"
            )
        return OracleScorer(self.oracle, scale_rows(features, self.rows), self.held)

    def save(self, folder: Path | str) -> None:
        """Save into a folder. Replaces an older model in it."""
        tensors, oracle_facts = self.oracle.parts()
        facts = {"format": FORMAT, "kind": self.oracle.kind, "rows": self.rows, "labels": list(self.label_names)}
        text_tensors, text_facts = text_parts(self.text)
        tensors |= {"held": torch.from_numpy(self.held), **text_tensors, **calibration_tensors(self.calibration)}
        pictures = {} if self.pictures is None else {PICTURES: self.pictures.facts()}
        save_folder(model_folder(folder), tensors, facts | oracle_facts | text_facts | pictures)

    @classmethod
    def load(cls, folder: Path | str, kinds: Mapping[str, type[Oracle]]) -> TrainedOracle:
        folder = Path(folder)
        tensors, facts = load_folder(folder)
        if facts.get("format") != FORMAT:
            raise FedalcError(f"{folder}: model format {facts.get('format')}, but this version reads {FORMAT}")
        try:
            names, held = labels_of(tensors, facts)
            rows = facts["rows"]
            if rows not in ROWS:
                raise ValueError(f"unknown scaling of rows: {rows!r}")
            oracle = kinds[facts["kind"]].from_parts(tensors, facts)
            text, calibration = text_of(tensors, facts, oracle.feature_count), read_calibration(tensors, len(names))
            pictures = pictures_of(facts, oracle.feature_count)
            return cls(oracle, rows, names, held, text, calibration, pictures)
        except DAMAGE as error:
            raise FedalcError(f"{folder}: damaged, its parts do not fit together: {error}") from None


def blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
