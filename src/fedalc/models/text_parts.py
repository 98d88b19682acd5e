"""What a saved model keeps of its texts, and texts given to `predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedalc.data.text.features import TextFeatures, text_from_parts
from fedalc.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "text."


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


def from_texts(given: Any, text: TextFeatures | None) -> Any:
    """Return features for a list of texts, and anything else as it is."""
    if isinstance(given, str):
        raise DataError("expected a list of texts, found a single one: give [text]")
    if not are_texts(given):
        return given
    if text is None:
        raise DataError("the model was trained on rows of features, not on raw texts: it cannot read a text")
    return text.transform(list(given))


def are_texts(given: Any) -> bool:
    """Whether it is a list, array or column of texts."""
    if isinstance(given, np.ndarray):
        return given.ndim == 1 and given.dtype.kind in "UO" and len(given) > 0 and isinstance(given[0], str)
    if isinstance(given, Sequence):
        return len(given) > 0 and isinstance(given[0], str)
    values = getattr(given, "array", None)  # a column of a data frame
    return values is not None and getattr(given, "ndim", 0) == 1 and len(values) > 0 and isinstance(values[0], str)
