"""A trained model: everything needed to predict, saved as safetensors and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.schema import EncoderSettings
from fedalc.core.arguments import as_count, as_path, check_scores, model_folder
from fedalc.core.devices import check_device
from fedalc.core.registry import ENCODERS
from fedalc.core.saved_parts import DAMAGE, labels_of, numbers
from fedalc.core.tensor_folder import load_folder, save_folder
from fedalc.data.images.images import CHANNELS, Images, side_of
from fedalc.data.matrices import feature_matrix
from fedalc.data.text.features import TextFeatures
from fedalc.errors import DataError, FedalcError
from fedalc.models.encoders import make_encoder, scale_rows
from fedalc.models.model import Model
from fedalc.models.scoring import Scorer
from fedalc.models.text_parts import from_texts, text_of, text_parts

FORMAT = 1
KIND = "encoder"  # the default kind: models of older versions do not name theirs


@dataclass(frozen=True)
class TrainedModel:
    """An encoder, its class embeddings, the label names, which labels had a client, and what turns raw texts into
    features, if it was trained on texts."""

    model: Model
    encoder: EncoderSettings
    label_names: tuple[str, ...]
    held: np.ndarray
    text: TextFeatures | None = None

    @property
    def feature_count(self) -> int:
        return self.model.encoder.feature_count

    @property
    def picture_size(self) -> int | None:
        """Width and height of its input pictures in pixels, or None if it takes rows of features."""
        return math.isqrt(self.feature_count // CHANNELS) if self.encoder.is_image else None

    def predict(self, features: csr_matrix | Images | Sequence[str], k: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of each instance, best first, and their scores; fewer if fewer labels had a client.

        `features`: instances × features, as a sparse matrix, array, list of rows or data frame; pictures as `Images`;
        a list of texts, if the model was trained on raw texts. Values that are not finite are refused. A score is the
        product of the encoder's output with the label's embedding. It ranks labels and is not a probability: a cosine
        in [-1, 1] where encoder.output is "unit" (the sum of one per sub-model for fedmlh), and any number where it is
        "raw" (the square loss, as in fedalc-exact).
        """
        k = as_count(k, "k")
        labels, scores = self._scorer(features).top(k)
        check_scores(scores.numpy())
        return labels.numpy(), scores.numpy()

    def scores(self, features: csr_matrix | Images) -> np.ndarray:
        """Return the scores of all labels, instances × labels; -inf for a label without a client."""
        scores = self._scorer(features).of_labels(slice(0, len(self.label_names))).cpu().numpy()
        check_scores(scores)
        return scores

    def embed(self, features: csr_matrix | Images) -> np.ndarray:
        """Return the encoder's output, instances × D: what is multiplied with the class embeddings."""
        embedded = self._scorer(features).encoded.cpu().numpy()
        check_scores(embedded)
        return embedded

    def _scorer(self, features: csr_matrix | Images) -> Scorer:
        size = self.picture_size
        if size is not None and not isinstance(features, Images):
            raise DataError("the model was trained on pictures: load them with fedalc.read_pictures")
        if isinstance(features, Images) and size is not None and features.size != size:
            raise DataError(f"the model was trained on pictures of {size} × {size}, but these have {features.size}")
        if size is None and isinstance(features, Images):
            raise DataError("the model was trained on features, but these are pictures")
        features = features if isinstance(features, Images) else feature_matrix(from_texts(features, self.text))
        if features.shape[1] != self.feature_count:
            raise DataError(
                f"the model was trained on {self.feature_count} features, but these have {features.shape[1]}"
            )
        return Scorer(self.model, scale_rows(features, self.encoder.features), self.held)

    def save(self, folder: Path | str) -> None:
        """Save the model as a folder. Replaces an older model there."""
        tensors = {f"encoder.{name}": value for name, value in self.model.encoder.state_dict().items()}
        text_tensors, text_facts = text_parts(self.text)
        tensors |= {"W": self.model.W, "held": torch.from_numpy(self.held), **text_tensors}
        facts = {
            "format": FORMAT,
            "kind": KIND,
            "encoder": self.encoder.model_dump(mode="json"),
            "features": self.feature_count,
            "copies": self.model.W.shape[1] // self.encoder.dim,
            "dtype": str(self.model.W.dtype).removeprefix("torch."),
            "labels": list(self.label_names),
            **text_facts,
        }
        save_folder(model_folder(folder), tensors, facts)

    @classmethod
    def load(cls, folder: Path | str, device: str = "cpu") -> TrainedModel:
        folder = as_path(folder, "folder")
        check_device(device)
        tensors, facts = load_folder(folder)
        if facts.get("format") != FORMAT:
            raise FedalcError(f"{folder}: model format {facts.get('format')}, but this version reads {FORMAT}")
        name = facts["encoder"].get("name") if isinstance(facts.get("encoder"), dict) else None
        if isinstance(name, str) and (problem := ENCODERS.problem(name)):
            raise FedalcError(f"{folder}: {problem}")
        try:
            settings = EncoderSettings.model_validate(facts["encoder"])
            names, held = labels_of(tensors, facts)
            W, copies = numbers(tensors, "W", 2), facts.get("copies", 1)
            if type(copies) is not int or copies < 1:
                raise ValueError(f"{copies!r} sub-models")
            width = settings.dim * copies
            if W.shape != (len(names), width) or str(W.dtype) != f"torch.{facts['dtype']}":
                raise ValueError(f"W is {tuple(W.shape)} of {W.dtype}, for {len(names)} labels and width {width}")
            if settings.is_image:
                side_of(facts["features"])
            without_weights = settings.model_copy(update={"pretrained": None})
            prefix = "encoder."
            weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            with torch.device("meta"):  # takes no memory: wrong facts could ask for any amount
                shape = make_encoder(facts["features"], without_weights, torch.Generator(), copies)
            check_shapes(shape.state_dict(), weights)
            encoder = make_encoder(facts["features"], without_weights, torch.Generator(), copies)
            encoder = encoder.to(dtype=W.dtype)
            encoder.load_state_dict(weights)
            if not all(torch.isfinite(numbers).all() for numbers in encoder.state_dict().values()):
                raise ValueError("weights that are not finite")
            text = text_of(tensors, facts, encoder.feature_count)
            return cls(Model(encoder.to(device), W.to(device)), settings, names, held, text)
        except DAMAGE as error:
            raise FedalcError(f"{folder}: damaged, its parts do not fit together: {error}") from None


def check_shapes(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        if name not in found or found[name].shape != tensor.shape:
            has = tuple(found[name].shape) if name in found else "missing"
            raise ValueError(f"{name} should be {tuple(tensor.shape)}, but is {has}")
