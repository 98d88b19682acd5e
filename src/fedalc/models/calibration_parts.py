"""What a model folder and a checkpoint have of a calibration."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedalc.models.calibration import PREFIX, Calibration


def calibration_tensors(calibration: Calibration | None) -> dict[str, Tensor]:
    """Return what a model folder has of a calibration."""
    parts = {} if calibration is None else calibration.parts()
    return {name: torch.from_numpy(part) for name, part in parts.items()}


def read_calibration(tensors: Mapping[str, Tensor], label_count: int) -> Calibration | None:
    """Return the calibration of a model folder; None in one without, as older versions wrote it."""
    parts = {name: tensor.clone().numpy() for name, tensor in tensors.items() if name.startswith(PREFIX)}
    return Calibration.from_parts(parts, label_count)
