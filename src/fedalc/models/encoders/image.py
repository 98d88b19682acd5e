"""Encoders of pictures: a ResNet followed by a linear map. Output: unit rows, or raw.

With batch normalisation, an instance's embedding depends on the rest of its batch, and a client's batch has only one
label, so its statistics differ from every other client's. There are three options (docs/images.md):

group   normalises each instance separately, over groups of channels. One step per client is then exactly one gradient
        over all instances, so engine `fused` works. The default.
frozen  batch normalisation with the fixed statistics of pretrained weights. Engine `fused` works.
batch   as published: a client uses the statistics of its batch, and the server averages the clients' running averages.
        Engine `fused` does not support it, because the result of a client depends on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedalc.config.facts import OF_RANDOM_FEATURES
from fedalc.config.schema import EncoderSettings
from fedalc.data.images.images import CHANNELS
from fedalc.errors import ConfigError
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders.base import Encoder
from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.image_rows import PictureRows

GROUPS = 32  # groups of channels, as published for group normalisation; fewer if 32 does not divide the channels
# Pretrained weights must agree with the named shape on all of these: a saved model is rebuilt from the name only.
SHAPE_KEYS = (
    *("num_channels", "embedding_size", "hidden_sizes", "depths", "layer_type", "hidden_act"),
    *("downsample_in_first_stage", "downsample_in_bottleneck"),
)


class ImageEncoder(Encoder):
    """A ResNet and a linear map."""

    pictures = True
    for_parties = True
    family = "resnet"
    ignores = ("embedding", "hidden", "input_dropout", "constant", *OF_RANDOM_FEATURES)
    only: ClassVar[Mapping[str, tuple[object, ...]]] = {"shortcut": (False,), "start": ("he", "framework")}
    dropout_layers = 1
    shape: ClassVar[dict[str, Any]]  # arguments of transformers' ResNetConfig

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        self.feature_count = feature_count
        self.unit = settings.output == "unit"
        self.mixed = settings.precision == "mixed"
        self.statistics = settings.norm == "batch"  # whether a client uses the statistics of its batch
        with torch.random.fork_rng(devices=[]):  # the library draws from torch's global generator
            torch.manual_seed(int(torch.randint(1 << 62, (1,), generator=generator, device="cpu")))
            self.backbone = _backbone(self.shape, settings)
            width = self.backbone.config.hidden_sizes[-1]
            self.head = nn.Linear(width, settings.dim)
            # A raw output starts at zero: the square loss would first have to shrink any other start.
            nn.init.normal_(self.head.weight, 0, 1 / math.sqrt(width) if self.unit else 0.0)
            nn.init.zeros_(self.head.bias)
        if settings.norm == "group":
            _use_groups(self.backbone)
        self.eval()

    def forward(self, rows: PictureRows, chance: Chance | None = None, pixels: Tensor | None = None) -> Tensor:
        """Encode pictures. `pixels`: the pixels of the rows, if already read for another encoder."""
        if pixels is None:
            pixels = rows.pixels(chance)
        # A single picture has no variance: normalise it by the running averages, and do not update them.
        self.backbone.train(self.training and len(rows) > 1)
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.mixed):
            h = self.backbone(pixels).pooler_output.flatten(1)
            if chance:
                h = chance.drop(h, rows.keys, self.first_layer)
            h = self.head(h)
        h = h.to(self.head.weight.dtype)
        return unit_rows(h) if self.unit else h

    def train(self, mode: bool = True) -> ImageEncoder:
        """Set training mode, but only if batch normalisation uses the statistics of the batch."""
        return super().train(mode and self.statistics)


class ResNet50(ImageEncoder):
    help = "the paper's network for pictures"
    shape = {"layer_type": "bottleneck", "depths": (3, 4, 6, 3), "hidden_sizes": (256, 512, 1024, 2048)}


class ResNet18(ImageEncoder):
    help = "a smaller ResNet for pictures"
    shape = {"layer_type": "basic", "depths": (2, 2, 2, 2), "hidden_sizes": (64, 128, 256, 512)}


class ResNetSmall(ImageEncoder):
    help = "a ResNet of 1.4 million weights, for pictures on two cores"
    shape = {
        "layer_type": "basic",
        "depths": (1, 1, 1, 1),
        "hidden_sizes": (32, 64, 128, 256),
        "embedding_size": 32,
    }


def _backbone(shape: Mapping[str, Any], settings: EncoderSettings) -> Any:
    try:
        from transformers import ResNetConfig, ResNetModel
    except ImportError:
        raise ConfigError("needs the extra: pip install 'fedalc[images]'", "encoder.name") from None
    config = ResNetConfig(**shape)
    return ResNetModel(config) if settings.pretrained is None else _pretrained(settings, config)


def _pretrained(settings: EncoderSettings, shape: Any) -> Any:
    """Load pretrained weights by name or folder. Refuse a file that lacks weights: the library would draw them."""
    from transformers import ResNetConfig, ResNetModel
    from transformers.utils import logging

    source = str(settings.pretrained)
    _check_folder(Path(source))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        config = ResNetConfig.from_pretrained(source)
        if config.to_dict().get("model_type") != ResNetConfig.model_type:
            raise ConfigError(f"{source}: is not a resnet", "encoder.pretrained")
        for key in SHAPE_KEYS:
            theirs, ours = (_plain(getattr(each, key)) for each in (config, shape))
            if theirs != ours:
                raise ConfigError(f"{source}: is not a {settings.name}: its {key} is {theirs}", "encoder.pretrained")
        # Never load a pickle. (The library's type hints do not mention the loading report.)
        loaded: Any = ResNetModel.from_pretrained(
            source, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        first = _first_line(error)
        raise ConfigError(f"{source}: no such weights, by name or folder: {first}", "encoder.pretrained") from None
    except Exception as error:  # the library raises errors of many kinds; all mean damaged files
        first = _first_line(error)
        raise ConfigError(f"{source}: damaged, or weights of another network: {first}", "encoder.pretrained") from None
    model, report = loaded
    lacking = sorted(key for key in report["missing_keys"] if not key.endswith("num_batches_tracked"))
    if lacking:
        raise ConfigError(
            f"{source}: lacks weights of a {settings.name}: {lacking[0]}"
            + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""),
            "encoder.pretrained",
        )
    if not all(bool(torch.isfinite(numbers).all()) for numbers in model.state_dict().values()):
        raise ConfigError(f"{source}: has weights that are not finite", "encoder.pretrained")
    return model


def _check_folder(folder: Path) -> None:
    """Refuse unusable folders with clear messages. The library's are unclear, or come after a request to the hub."""
    if folder.is_file():
        raise ConfigError(
            f"{folder}: a file, but a ResNet is trained from a folder with config.json and safetensors. Leave out "
            "--encoder and encoder.frozen to use the file's network as it is",
            "encoder.pretrained",
        )
    if not folder.is_dir():
        if folder.is_absolute() or (folder.parent != Path() and folder.parent.is_dir()):
            raise ConfigError(f"{folder}: no such folder", "encoder.pretrained")
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: has no config.json, which describes the network", "encoder.pretrained")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder}: has no safetensors weights. Other formats are not read: a pickle can run any code",
            "encoder.pretrained",
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _use_groups(module: nn.Module) -> None:
    """Replace every batch normalisation by group normalisation with the same scale and shift."""
    for name, child in module.named_children():
        if not isinstance(child, nn.BatchNorm2d):
            _use_groups(child)
            continue
        norm = nn.GroupNorm(math.gcd(GROUPS, child.num_features), child.num_features, eps=child.eps)
        with torch.no_grad():
            norm.weight.copy_(child.weight)
            norm.bias.copy_(child.bias)
        setattr(module, name, norm)


@torch.no_grad()
def picture_bytes(encoder: nn.Module, size: int) -> int:
    """Return how many bytes of layer outputs one picture needs for the backward pass. `encoder` is on the meta device.
    0 if it has no encoder of pictures."""
    total = 0

    def count(_layer: Any, _inputs: Any, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * output.element_size()

    for part in encoder.modules():
        if not isinstance(part, ImageEncoder):
            continue
        layers = [layer for layer in part.backbone.modules() if not list(layer.children())]
        hooks = [layer.register_forward_hook(count) for layer in layers]
        part.backbone(torch.zeros(1, CHANNELS, size, size, dtype=part.head.weight.dtype, device="meta"))
        for hook in hooks:
            hook.remove()
    return total
