"""Encoders g_θ map an instance to `dim` numbers. Their names are in `fedalc.core.registry`."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Generator

from fedalc.config.schema import EncoderSettings
from fedalc.core.registry import ENCODERS, registering
from fedalc.data.images.images import PICTURES_AT_ONCE, Images
from fedalc.models.encoders.base import Batch, Encoder, register_module
from fedalc.models.encoders.chance import Chance, Dropout
from fedalc.models.encoders.image import ImageEncoder, picture_bytes
from fedalc.models.encoders.image_rows import PictureRows
from fedalc.models.encoders.side_by_side import SideBySide
from fedalc.models.encoders.sparse_rows import Design, SparseRows
from fedalc.models.encoders.text import TextEncoder
from fedalc.models.row_scaling import scale_rows

register_encoder = registering(ENCODERS)


def make_batch(
    features: csr_matrix | Images, keys: np.ndarray, dtype: torch.dtype, device: torch.device | str
) -> Batch:
    """Return these instances as the input of an encoder."""
    rows = PictureRows if isinstance(features, Images) else SparseRows
    return rows(features, keys, dtype, device)


def make_encoder(feature_count: int, settings: EncoderSettings, generator: Generator, copies: int = 1) -> Encoder:
    """Build one encoder, or several side by side with different random starts."""
    encoders = [ENCODERS[settings.name](feature_count, settings, generator) for _ in range(copies)]
    return encoders[0] if copies == 1 else SideBySide(encoders)


def encoder_shape(feature_count: int, settings: EncoderSettings) -> Encoder:
    """Build an encoder on the meta device, without memory, to count its parameters."""
    with torch.device("meta"):
        return make_encoder(feature_count, settings.model_copy(update={"pretrained": None}), Generator("cpu"))


def encoder_size(feature_count: int, settings: EncoderSettings) -> int:
    """Return the number of parameters (θ) of one encoder."""
    return sum(parameter.numel() for parameter in encoder_shape(feature_count, settings).parameters())


__all__ = [
    "PICTURES_AT_ONCE",
    "Batch",
    "Chance",
    "Design",
    "Dropout",
    "Encoder",
    "ImageEncoder",
    "PictureRows",
    "SideBySide",
    "SparseRows",
    "TextEncoder",
    "encoder_shape",
    "encoder_size",
    "make_batch",
    "make_encoder",
    "picture_bytes",
    "register_encoder",
    "register_module",
    "scale_rows",
]
