"""Networks for pictures in transformers' layout: ResNet, ViT, DINO, and the picture towers of CLIP and SigLIP.

Weights are safetensors only, and code in the folder does not run. `preprocessor_config.json`, if it is there, says the
size and the mean and deviation of the colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedalc.data.pretrained.networks import DEVIATION, EXTRA, MEAN, PictureNetwork, runs_module
from fedalc.data.pretrained.usual import preparation, side_of_folder
from fedalc.data.pretrained.weights import FIELD
from fedalc.errors import ConfigError


def open_folder(folder: Path, device: str) -> PictureNetwork:
    """Read the network and how its pictures are prepared."""
    import torch

    network, lacking = _load(folder)
    vision = getattr(network, "vision_model", network)  # of a model of pictures and texts, the part for pictures
    pooled = not any("pool" in key or ".head." in key for key in lacking)
    lacking = [key for key in lacking if key.startswith("vision_model.") or vision is network]
    if others := [key for key in lacking if "pool" not in key]:
        raise ConfigError(f"{folder}: lacks weights, such as {others[0]}", FIELD)
    prepared, size, config = preparation(folder), side_of_folder(folder), vision.config

    def output(outputs: Any) -> Any:
        """The pooled output if it was trained, otherwise the first token's, or the mean over places."""
        row = getattr(outputs, "pooler_output", None)
        if row is not None and pooled:
            return row.flatten(1)
        last = outputs.last_hidden_state
        return last[:, 0] if last.ndim == 3 else last.mean(dim=(2, 3))

    run = runs_module(vision, output, device)
    try:
        with torch.inference_mode():
            width = run(torch.zeros(1, 3, size, size).numpy()).shape[1]
    except Exception as error:  # a network of texts, or of other pictures
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{folder}: does not take pictures of {size} × {size}: {first:.200}", FIELD) from None
    mean, deviation = _channels(prepared, "image_mean", MEAN), _channels(prepared, "image_std", DEVIATION)
    fixed = len(getattr(config, "hidden_sizes", ())) == 0  # a transformer has as many positions as its pictures patches
    return PictureNetwork(str(config.model_type), width, size, run, mean, deviation, only_size=fixed)


def _load(folder: Path) -> tuple[Any, list[str]]:
    """Return the network, and the names of weights that the files lack."""
    try:
        import torch
        from transformers import AutoModel
        from transformers.utils import logging
    except ImportError:
        raise ConfigError(EXTRA, FIELD) from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,  # never a pickle
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # of many kinds; all mean files that it cannot use
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{folder}: not a network that can be read: {first:.200}", FIELD) from None
    network, report = loaded
    if not all(bool(torch.isfinite(value).all()) for value in network.state_dict().values()):
        raise ConfigError(f"{folder}: has weights that are not finite", FIELD)
    return network, sorted(key for key in report["missing_keys"] if not key.endswith("num_batches_tracked"))


def _channels(prepared: Mapping[str, Any], name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    found = prepared.get(name)
    if not isinstance(found, list) or len(found) != len(usual) or not all(type(v) in (int, float) for v in found):
        return usual
    return tuple(map(float, found))
