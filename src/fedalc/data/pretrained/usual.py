"""What weights are for, without reading them: texts or pictures, and pictures of which size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedalc.core.picture_sides import LARGEST_SIDE, SMALLEST_SIDE
from fedalc.core.safe_parsing import read_json_object
from fedalc.data.pretrained.weights import find_weights

PREPROCESSOR = "preprocessor_config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "sentencepiece.bpe.model")
SMALL_NETWORKS = 160
"""Pixels per side for networks whose weights are one file. They were trained at 224; 160 takes half the time."""
USUAL = 224
"""The same for others that do not say."""


def is_for_texts(source: str | Path) -> bool:
    """Return whether these are the weights of a sentence encoder: it has a tokenizer, and no part for pictures."""
    path = find_weights(source)
    if not path.is_dir() or not any((path / file).is_file() for file in TOKENIZERS):
        return False
    config = described(path)
    return not {"vision_config", "image_size", "num_channels"} & set(config)


def usual_size(sources: Sequence[str | Path]) -> int:
    """Return the side of the pictures that the first of these networks usually gets."""
    path = find_weights(sources[0])
    if path.is_dir():
        return side_of_folder(path)
    if path.suffix == ".onnx":
        from fedalc.data.pretrained.onnx_model import open_onnx

        return open_onnx(path).size
    return SMALL_NETWORKS


def side_of_folder(folder: Path) -> int:
    """Return the size that a folder of transformers' layout states."""
    prepared, config = preparation(folder), described(folder)
    vision = config.get("vision_config")
    stated = [prepared.get("crop_size"), prepared.get("size"), config.get("image_size")]
    stated += [vision.get("image_size")] if isinstance(vision, dict) else []
    return next((side for size in stated if (side := _side(size))), USUAL)


def described(folder: Path) -> Mapping[str, Any]:
    """Return config.json."""
    file = folder / "config.json"
    return read_json_object(file, "get the folder again") if file.is_file() else {}


def preparation(folder: Path) -> Mapping[str, Any]:
    """Return how pictures are prepared, if the folder says so."""
    file = folder / PREPROCESSOR
    return read_json_object(file, "get the folder again") if file.is_file() else {}


def _side(size: Any) -> int:
    """Return the side of pictures: of a number, or of {"height": …, "width": …} or {"shortest_edge": …}."""
    if isinstance(size, dict):
        size = size.get("height", size.get("shortest_edge"))
    return size if type(size) is int and SMALLEST_SIDE <= size <= LARGEST_SIDE else 0
