"""Encoders g_θ: an instance in, a unit vector out."""

import torch
from torch import Generator

from fedalc.config import EncoderSettings
from fedalc.encoders.side_by_side import SideBySide
from fedalc.encoders.sparse import SparseRows, scale_rows
from fedalc.encoders.text import Dropout, TextEncoder, text_encoder

Encoder = TextEncoder | SideBySide


def make_encoder(feature_count: int, settings: EncoderSettings, generator: Generator, copies: int = 1) -> Encoder:
    """One encoder, or several side by side, each with a start of its own."""
    encoders = [text_encoder(feature_count, settings, generator) for _ in range(copies)]
    return encoders[0] if copies == 1 else SideBySide(encoders)


def encoder_size(feature_count: int, settings: EncoderSettings) -> int:
    """How many numbers θ has, of one encoder. It is built without memory, to be counted."""
    with torch.device("meta"):
        encoder = make_encoder(feature_count, settings, Generator("cpu"))
    return sum(parameter.numel() for parameter in encoder.parameters())


__all__ = [
    "Dropout",
    "Encoder",
    "SideBySide",
    "SparseRows",
    "TextEncoder",
    "encoder_size",
    "make_encoder",
    "scale_rows",
    "text_encoder",
]
