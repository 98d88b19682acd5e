"""Write a trained model as an ONNX file, after checking that it gives the same scores as the model."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedalc.core.atomic_files import write_bytes
from fedalc.data.images.images import Images
from fedalc.errors import FedalcError
from fedalc.models.dense_scores import DenseScores, in_float32
from fedalc.models.encoders import scale_rows
from fedalc.models.scoring import Scorer
from fedalc.models.trained import TrainedModel
from fedalc.workflows.load_model import finished_model

LARGEST = 2**31 - 2**24
"""The most bytes of weights: an ONNX file is one protobuf message of at most 2 GiB."""
TOLERANCE = 1e-4
"""The most that a score may differ from the model's own, in units of the largest score of its row."""
CHECKED = 16  # instances that the check scores


class Exported(NamedTuple):
    """What was written: the input's name and shape, the number of labels, the largest difference found, and whether
    there are probabilities too."""

    file: Path
    bytes: int
    input: str
    shape: str
    labels: int
    difference: float
    probabilities: bool


def export_onnx(run: Path, file: Path) -> Exported:
    """Write the model of a finished run to `file`. Writes nothing if onnxruntime does not agree with the model."""
    onnx = _packages()
    model = finished_model(run)
    if not isinstance(model, TrainedModel):
        raise FedalcError(f"{run}: holds a centralised oracle; only models of federated methods can be exported")
    model.check_rows()
    if model.model.columns is not None:
        raise FedalcError(
            f"{run}: a model with weights for each label (fedalc-tree, fedalc-columns) is not exported yet"
        )
    if file.is_dir():
        raise FedalcError(f"{file}: is a folder; name a file, such as {file / 'model.onnx'}")
    given = _sample(model)
    content = _traced(onnx, model, given)
    difference = _checked(model, given, content)
    write_bytes(file, content)
    name, shape = _input(model)
    probabilities = model.calibration is not None
    return Exported(file, len(content), name, shape, len(model.label_names), difference, probabilities)


def _packages() -> Any:
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise FedalcError(f"export needs {error.name}: pip install 'fedalc[onnx]'") from None
    return onnx


def _side(model: TrainedModel) -> int | None:
    """Return the side of pictures, if they go in. The head of a frozen network takes its features."""
    return model.picture_size if model.encoder.is_image else None


def _input(model: TrainedModel) -> tuple[str, str]:
    size = _side(model)
    if size is None:
        return "features", f"float32 instances × {model.feature_count}"
    return "pictures", f"uint8 instances × {size} × {size} × 3 (RGB)"


def _sample(model: TrainedModel) -> np.ndarray:
    """Draw instances to check with: sparse and dense rows, a row of zeros, and values whose squares overflow."""
    draw = np.random.default_rng(0)
    if (side := _side(model)) is not None:
        return draw.integers(0, 256, (CHECKED, side, side, 3), dtype=np.uint8)
    shape = (CHECKED, model.feature_count)
    rows = draw.random(shape, dtype=np.float32) * (draw.random(shape, dtype=np.float32) < 0.1)
    rows[1::4] = draw.standard_normal(rows[1::4].shape, dtype=np.float32)
    rows[2] = 0
    if model.encoder.features == "unit":
        rows[3] *= np.float32(1e30)
    return rows


def _traced(onnx: Any, model: TrainedModel, given: np.ndarray) -> bytes:
    module = DenseScores(model)
    size = sum(value.numel() * value.element_size() for value in module.state_dict().values() if value is not None)
    if size > LARGEST:
        raise FedalcError(f"the model has {size / 2**30:.1f} GiB of weights, and an ONNX file holds at most 2")
    name, _ = _input(model)
    with warnings.catch_warnings(), _quiet("torch.onnx", "torch.export", "onnxscript", "onnx_ir"), torch.no_grad():
        warnings.simplefilter("ignore")
        module(torch.from_numpy(given))  # draws random features, if any: numbers drawn while traced are not kept
        try:
            program = torch.onnx.export(
                module,
                (torch.from_numpy(given),),
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=[name],
                output_names=["scores", *(["probabilities"] if model.calibration is not None else [])],
                dynamic_shapes=({0: torch.export.Dim("instances", min=1)},),
            )
        except Exception as error:  # the exporter raises errors of many kinds
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise FedalcError(f"torch cannot export the encoder {model.encoder.name}: {first.strip()}") from error
    assert program is not None
    proto = program.model_proto
    proto.graph.name = "fedalc"
    proto.producer_name, proto.producer_version = "fedalc", version("fedalc")
    onnx.helper.set_model_props(proto, _facts(model))
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def _facts(model: TrainedModel) -> dict[str, str]:
    """Return the metadata of the file: what goes in and what comes out."""
    name, shape = _input(model)
    scores = "cosines" if model.encoder.output == "unit" else "any number"
    return {
        "labels": json.dumps(list(model.label_names), ensure_ascii=False),
        "input": f"{name}: {shape}; rows are scaled inside" if name == "features" else f"{name}: {shape}",
        "output": f"scores: float32 instances × labels; {scores}; they rank labels and are not probabilities; "
        "-inf: a label without training data"
        + ("" if model.calibration is None else "; probabilities: the same shape, calibrated on held-out records"),
        "encoder": json.dumps(model.encoder.model_dump(mode="json")),
    }


def _checked(model: TrainedModel, given: np.ndarray, content: bytes) -> float:
    """Return how far the file's scores are from the model's. Raise if they differ by more than rounding."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name, _ = _input(model)
    if isinstance(session.get_inputs()[0].shape[0], int):
        raise FedalcError(
            f"the encoder {model.encoder.name} cannot be exported: its code takes len() of its rows, which fixes their "
            "number in the file; use rows.keys.shape[0]"
        )
    found, *rest = session.run(None, {name: given})
    if _side(model) is not None:
        instances: Any = Images(given, tuple(map(str, range(len(given)))))
    else:
        instances = scale_rows(csr_matrix(given), model.encoder.features)
    scorer = Scorer(in_float32(model.model), instances, model.held)
    wanted = scorer.of_labels(slice(0, len(model.label_names))).double().cpu().numpy()
    if found.shape != wanted.shape or not np.array_equal(np.isinf(found), np.isinf(wanted)):
        raise FedalcError("the exported file does not score the same labels as the model: nothing was written")
    held = model.held
    largest = np.abs(wanted[:, held]).max(axis=1, keepdims=True, initial=0)
    scale = np.maximum(largest, 1e-3 * largest.max(initial=1e-30))
    difference = float((np.abs(found[:, held] - wanted[:, held]) / scale).max(initial=0))
    if not difference <= TOLERANCE:
        raise FedalcError(
            f"the exported file's scores differ from the model's by {difference:.1e} of the largest, more than "
            f"{TOLERANCE:g}: nothing was written"
        )
    for probabilities in rest:
        wanted = model.calibrated().probabilities(found)
        if not (off := float(np.abs(probabilities - wanted).max(initial=0))) <= TOLERANCE:
            raise FedalcError(
                f"the exported file's probabilities differ from the model's by {off:.1e}: nothing was written"
            )
    return difference


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Hide the warnings of some loggers, about packages that are not needed."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
