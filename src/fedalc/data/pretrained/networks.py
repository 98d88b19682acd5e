"""Networks that turn pictures into rows of features: one class for all kinds of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.data.pretrained.weights import FIELD, check_folder
from fedalc.errors import ConfigError

# Statistics of ImageNet per channel, in [0, 1]: most published networks are trained with them.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EXTRA = "needs the extra: pip install 'fedalc[images]'"
BATCH, BATCH_ON_GPU = 16, 64  # pictures at a time. More of them are slower on a processor: they leave its cache


@dataclass(frozen=True)
class PictureNetwork:
    """A frozen network. `run` takes pictures as float32, N × 3 × size × size, scaled by `mean` and `deviation` per
    channel, and returns N × `width`."""

    name: str
    width: int
    size: int  # of its input pictures, unless the user says otherwise
    run: Callable[[np.ndarray], np.ndarray]
    mean: tuple[float, ...] = MEAN
    deviation: tuple[float, ...] = DEVIATION
    only_size: bool = False  # whether it takes pictures of this size alone

    def rows(self, pixels: np.ndarray) -> np.ndarray:
        """Return a row for each picture, uint8 N × size × size × 3."""
        scaled = pixels.astype(np.float32) / 255
        scaled -= np.asarray(self.mean, dtype=np.float32)
        scaled /= np.asarray(self.deviation, dtype=np.float32)
        rows = np.asarray(self.run(scaled.transpose(0, 3, 1, 2)), dtype=np.float32)
        if rows.shape != (len(pixels), self.width):
            raise ConfigError(f"{self.name}: its output is {rows.shape}, not a row for each picture", FIELD)
        if not np.isfinite(rows).all():
            raise ConfigError(f"{self.name}: its output has numbers that are not finite (NaN or infinite)", FIELD)
        return rows


def open_network(path: Path, device: str = "cpu") -> PictureNetwork:
    """Read the weights of a file or a folder."""
    if path.is_dir():
        from fedalc.data.pretrained.vision_folder import open_folder

        check_folder(path)
        return open_folder(path, device)
    if path.suffix == ".onnx":
        from fedalc.data.pretrained.onnx_model import open_onnx

        return open_onnx(path)
    from fedalc.data.pretrained.state_dicts import open_state_dict

    return open_state_dict(path, device)


def runs_module(module: Any, output: Callable[[Any], Any], device: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that runs a torch module. `output`: what of its output is the row."""
    import torch

    module = module.to(device).eval()

    def run(scaled: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            # Rows of pictures come with the channels last, which is also faster.
            rows: np.ndarray = output(module(torch.from_numpy(scaled).to(device))).float().cpu().numpy()
        return rows

    return run
