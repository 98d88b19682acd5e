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
from fedalc.core.arguments import as_path, check_scores, model_folder
from fedalc.core.devices import check_device
from fedalc.core.registry import ENCODERS
from fedalc.core.saved_parts import DAMAGE, labels_of, numbers
from fedalc.core.tensor_folder import load_folder, save_folder
from fedalc.data.images.images import CHANNELS, Images, side_of
from fedalc.data.matrices import feature_matrix
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.text.features import TextFeatures
from fedalc.errors import DataError, FedalcError
from fedalc.models.calibration import Calibration
from fedalc.models.calibration_parts import calibration_tensors, read_calibration
from fedalc.models.column_scoring import make_scorer
from fedalc.models.encoders import make_encoder, scale_rows
from fedalc.models.label_columns import LabelColumns
from fedalc.models.model import Model
from fedalc.models.predicting import Predictor
from fedalc.models.scoring import Scorer
from fedalc.models.text_parts import PICTURES, from_texts, pictures_of, text_of, text_parts

FORMAT = 1
KIND = "encoder"  # the default kind: models of older versions do not name theirs


@dataclass(frozen=True, repr=False)
class TrainedModel(Predictor):
    """An encoder, its class embeddings, the label names, which labels had a client, what turns raw texts into
    features, if it was trained on texts, and what gives probabilities."""

    model: Model
    encoder: EncoderSettings
    label_names: tuple[str, ...]
    held: np.ndarray
    text: TextFeatures | None = None
    calibration: Calibration | None = None
    secret_rows: bool = False  # W is not the one of training, which only holders of the clients' key can compute
    pictures: PictureFeatures | None = None  # what turns pictures into features, if it was trained on such features

    def __repr__(self) -> str:
        size = self.picture_size
        takes = f"{self.feature_count:,} features" if size is None else f"pictures of {size} × {size}"
        takes = takes if self.pictures is None else f"{takes} as {self.feature_count:,} features"
        takes = takes if self.text is None else f"texts as {takes}"
        shape = f"{self.encoder.name} encoder, D = {self.model.W.shape[1]}, {len(self.label_names):,} labels"
        return f"<fedalc.TrainedModel {takes} → {shape}>"

    @property
    def feature_count(self) -> int:
        return self.model.encoder.feature_count

    @property
    def picture_size(self) -> int | None:
        """Width and height of its input pictures in pixels, or None if it takes rows of features."""
        if self.pictures is not None:
            return self.pictures.views.size
        return math.isqrt(self.feature_count // CHANNELS) if self.encoder.is_image else None

    def embed(self, features: csr_matrix | Images | Sequence[str]) -> np.ndarray:
        """Return the encoder's output, instances × D: what is multiplied with the class embeddings."""
        embedded = self.scorer(features).encoded.cpu().numpy()
        check_scores(embedded)
        return embedded

    def scorer(self, features: csr_matrix | Images | Sequence[str]) -> Scorer:
        self.check_rows()
        if isinstance(features, Images) and self.pictures is not None:
            features = self.pictures.transform(features)
        size = self.picture_size if self.encoder.is_image else None
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
        return make_scorer(self.model, scale_rows(features, self.encoder.features), self.held)

    def check_rows(self) -> None:
        """Refuse a model that cannot score: one with secret rows, as the server has it."""
        if self.secret_rows:
            raise FedalcError(
                "the class embeddings of this model are secret (embeddings.secret), so it predicts only with the "
                "parties' key: fedalc key name-model RUN KEY NAMES"
            )

    def save(self, folder: Path | str, keep_previous: bool = False) -> None:
        """Save the model as a folder. Replaces an older model there; with `keep_previous` it is kept as folder.old."""
        tensors = {f"encoder.{name}": value for name, value in self.model.encoder.state_dict().items()}
        text_tensors, text_facts = text_parts(self.text)
        tensors |= {"W": self.model.W, "held": torch.from_numpy(self.held), **text_tensors}
        tensors |= calibration_tensors(self.calibration)
        columns = self.model.columns
        tensors |= {} if columns is None else columns.tensors()
        facts = {
            "format": FORMAT,
            "kind": KIND,
            "encoder": self.encoder.model_dump(mode="json"),
            "features": self.feature_count,
            "copies": self.model.W.shape[1] // self.encoder.dim,
            "dtype": str(self.model.W.dtype).removeprefix("torch."),
            "labels": list(self.label_names),
            **text_facts,
            **({} if self.pictures is None else {PICTURES: self.pictures.facts()}),
            **({"secret_rows": True} if self.secret_rows else {}),
            **({} if columns is None else {"columns": columns.facts()}),
        }
        save_folder(model_folder(folder), tensors, facts, keep_previous)

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
            text = text_of(tensors, facts, encoder.feature_count, device)
            pictures = pictures_of(facts, encoder.feature_count, device)
            calibration, secret = read_calibration(tensors, len(names)), facts.get("secret_rows", False)
            if type(secret) is not bool:
                raise ValueError(f"secret_rows is {secret!r:.20}")
            columns = None
            if "columns" in facts:
                columns = LabelColumns.restored(tensors, facts["columns"], (facts["features"], len(names)))
            model = Model(encoder.to(device), W.to(device), columns=columns)
            return cls(model, settings, names, held, text, calibration, secret, pictures)
        except DAMAGE as error:
            raise FedalcError(f"{folder}: damaged, its parts do not fit together: {error}") from None


def check_shapes(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        if name not in found or found[name].shape != tensor.shape:
            has = tuple(found[name].shape) if name in found else "missing"
            raise ValueError(f"{name} should be {tuple(tensor.shape)}, but is {has}")
