"""Encoders g_θ: an instance in, a unit vector out."""

from fedalc.encoders.sparse import SparseRows, scale_rows
from fedalc.encoders.text import Dropout, TextEncoder, text_encoder

__all__ = ["Dropout", "SparseRows", "TextEncoder", "scale_rows", "text_encoder"]
