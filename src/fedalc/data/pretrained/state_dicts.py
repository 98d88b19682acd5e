"""Weights of small networks that fedalc knows, in a file that torch saved. Only tensors are read, no objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalc.data.pretrained.networks import DEVIATION, EXTRA, MEAN, PictureNetwork, runs_module
from fedalc.data.pretrained.usual import SMALL_NETWORKS
from fedalc.data.pretrained.weights import FIELD
from fedalc.errors import ConfigError


@dataclass(frozen=True)
class Known:
    """A network that fedalc builds. `layer`: a name that only its weights have."""

    name: str
    layer: str
    module: str
    mean: tuple[float, ...] = MEAN
    deviation: tuple[float, ...] = DEVIATION


KNOWN = (
    Known("MobileNetV2", "features.18.0.weight", "MobileNetV2"),
    # TensorFlow's EfficientNet-lite: (pixel - 127) / 128.
    Known("EfficientNet-lite0", "_conv_head.weight", "EfficientNetLite0", (127 / 255,) * 3, (128 / 255,) * 3),
)


def open_state_dict(path: Path, device: str) -> PictureNetwork:
    """Build the network whose weights these are, and load them."""
    weights = _read(path)
    known = next((known for known in KNOWN if known.layer in weights), None)
    if known is None:
        names = " or ".join(known.name for known in KNOWN)
        raise ConfigError(f"{path}: not the weights of {names}; use a folder of transformers, or ONNX", FIELD)
    module = _module(known.module)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise ConfigError(f"{path}: not the weights of {known.name}: {first:.200}", FIELD) from None
    import torch

    module = module.to(memory_format=torch.channels_last)
    return PictureNetwork(
        known.name, 1280, SMALL_NETWORKS, runs_module(module, lambda rows: rows, device), known.mean, known.deviation
    )


def _module(name: str) -> Any:
    if name == "MobileNetV2":
        from fedalc.data.pretrained.mobilenet_v2 import MobileNetV2

        return MobileNetV2()
    from fedalc.data.pretrained.efficientnet_lite0 import EfficientNetLite0

    return EfficientNetLite0()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        import torch
    except ImportError:
        raise ConfigError(EXTRA, FIELD) from None
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # of many kinds, with advice that does not apply here; all mean a file that cannot be used
        raise ConfigError(
            f"{path}: damaged, or not tensors alone: fedalc reads what torch.save(model.state_dict(), …) wrote, and "
            "never runs code of a file",
            FIELD,
        ) from None
    if not isinstance(weights, Mapping) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise ConfigError(f"{path}: expected tensors by name, as state_dict() gives them", FIELD)
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise ConfigError(f"{path}: has weights that are not finite", FIELD)
    return weights
