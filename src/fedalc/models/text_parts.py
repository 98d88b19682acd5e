"""What a saved model keeps of its texts or pictures, and texts given to `predict`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.text.base import listed_texts
from fedalc.data.text.features import TextFeatures, text_from_parts
from fedalc.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX, PICTURES = "text.", "pictures"


def text_parts(text: TextFeatures | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts to save beside those of a model. A model without texts has none."""
    if text is None:
        return {}, {}
    import torch

    arrays, facts = text.parts()
    return {f"{PREFIX}{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}, {"text": facts}


def text_of(
    tensors: Mapping[str, Any], facts: Mapping[str, Any], feature_count: int, device: str = "cpu"
) -> TextFeatures | None:
    """Return what `text_parts` saved (as tensors or arrays), or None. Raises one of `DAMAGE` if it does not fit."""
    if (saved := facts.get("text")) is None:
        return None
    arrays = {name.removeprefix(PREFIX): np.asarray(part) for name, part in tensors.items() if name.startswith(PREFIX)}
    text = text_from_parts(arrays, saved, device)
    if text.feature_count != feature_count:
        raise ValueError(f"its text gives {text.feature_count} features, but the model takes {feature_count}")
    return text


def pictures_of(facts: Mapping[str, Any], feature_count: int, device: str = "cpu") -> PictureFeatures | None:
    """Return what turns pictures into features, if the model was trained on such features. Raises one of `DAMAGE`."""
    if (saved := facts.get(PICTURES)) is None:
        return None
    pictures = PictureFeatures.from_facts(saved, device)
    if pictures.feature_count != feature_count:
        raise ValueError(f"its pictures give {pictures.feature_count} features, but the model takes {feature_count}")
    return pictures


def from_texts(given: Any, text: TextFeatures | None) -> Any:
    """Return features for a list of texts, and rows of features as they are."""
    if text is None:
        if isinstance(given, str) or are_texts(given):
            raise DataError("the model was trained on rows of features, not on raw texts: it cannot read a text")
        return given
    return given if are_rows(given) else text.transform(as_texts(given))


def as_texts(given: Any) -> list[str]:
    """Return a list, array or column of texts as a list, or say what is wrong with it."""
    if given is None or not isinstance(given, Iterable):
        raise DataError(f"expected a list of texts, found {given!r:.60}")
    return listed_texts(given)


def are_texts(given: Any) -> bool:
    """Whether it is a list, array or column with texts in it. (Others of its items may be missing, or a mistake.)"""
    if isinstance(given, str | bytes) or are_rows(given):
        return False
    if isinstance(given, np.ndarray):
        return given.dtype.kind in "US" or (given.dtype.kind == "O" and _has_texts(given))
    is_column = hasattr(given, "array") and getattr(given, "ndim", 0) == 1
    return (isinstance(given, Sequence) or is_column) and _has_texts(given)


def _has_texts(items: Iterable[Any]) -> bool:
    return any(isinstance(item, str | bytes) for item in items)


def are_rows(given: Any) -> bool:
    """Whether it is a matrix, a data frame or a list of rows, rather than a list of texts."""
    if hasattr(given, "shape"):
        return len(given.shape) != 1
    first = given[0] if isinstance(given, Sequence) and len(given) else None
    return hasattr(first, "__len__") and not isinstance(first, str | bytes)
