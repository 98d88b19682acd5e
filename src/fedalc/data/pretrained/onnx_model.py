"""ONNX models of pictures: one input, N × 3 × size × size, and an output of which each picture's row is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedalc.data.pretrained.networks import PictureNetwork
from fedalc.data.pretrained.weights import FIELD
from fedalc.errors import ConfigError

FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")
USUAL_SIZE = 224  # if the model takes any
ERRORS_ONLY = 3  # of onnxruntime's messages


def open_onnx(path: Path) -> PictureNetwork:
    """Open a model. Colours are scaled by ImageNet's mean and deviation, unless the settings say otherwise."""
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("needs the extra: pip install 'fedalc[onnx]'", FIELD) from None
    try:
        onnxruntime.set_default_logger_severity(ERRORS_ONLY)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # of many kinds; all mean a file that cannot be used
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path}: not an ONNX model that can be read: {first:.200}", FIELD) from None
    inputs = session.get_inputs()
    shape: list[Any] = list(inputs[0].shape) if inputs else []
    if len(inputs) != 1 or len(shape) != 4 or shape[1] != 3 or inputs[0].type != "tensor(float)":
        found = f"{shape} of {inputs[0].type}" if len(inputs) == 1 else f"{len(inputs)} inputs"
        raise ConfigError(f"{path}: expected one input of floats, N × 3 × height × width, found {found}", FIELD)
    output = session.get_outputs()[0]
    if output.type not in FLOATS or output.shape == []:
        raise ConfigError(
            f"{path}: expected an output of floats with a row for each picture, found {output.shape} of {output.type}",
            FIELD,
        )
    if isinstance(shape[0], int) and shape[0] != 1:
        raise ConfigError(f"{path}: takes {shape[0]} pictures at a time; export it with one, or any number", FIELD)
    if shape[2] != shape[3] and isinstance(shape[2], int) and isinstance(shape[3], int):
        raise ConfigError(f"{path}: its pictures are {shape[2]} × {shape[3]}, not a square", FIELD)
    fixed = isinstance(shape[2], int)
    size = shape[2] if fixed else USUAL_SIZE
    one_by_one = isinstance(shape[0], int)

    def run(scaled: np.ndarray) -> np.ndarray:
        parts = np.split(scaled, len(scaled)) if one_by_one else [scaled]
        return np.concatenate([_row(session.run(None, {inputs[0].name: np.ascontiguousarray(p)})[0]) for p in parts])

    try:
        width = run(np.zeros((1, 3, size, size), dtype=np.float32)).shape[1]
    except Exception as error:
        raise ConfigError(f"{path}: fails on a picture of {size} × {size}: {error!s:.200}", FIELD) from None
    return PictureNetwork(path.stem, width, size, run, only_size=fixed)


def _row(output: Any) -> np.ndarray:
    """Return a row for each picture: the mean over places, the first token's output, or the output itself."""
    found = np.asarray(output)
    if found.ndim == 4:
        return found.mean(axis=(2, 3))
    return found[:, 0] if found.ndim == 3 else found.reshape(len(found), -1)
