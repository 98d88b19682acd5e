"""Encoders of pictures: a ResNet, a linear map, and an output of length 1 or raw.

Batch normalisation ties instances together: an instance's embedding depends on who is in its batch, and a client's
batch has one label only, so its statistics are those of no other client's. Three ways out (docs/images.md):

group   normalises each instance by itself, over groups of channels. One step per client is then exactly one gradient
        over all instances, so engine `fused` holds. The default.
frozen  batch normalisation with the statistics it came with (of pretrained weights), and never others. `fused` holds.
batch   as it was published: each client's own statistics while it works, the clients' running averages averaged by the
        server. There is no `fused` for it: what a client computes depends on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedalc.config.schema import EncoderSettings
from fedalc.data.images.images import CHANNELS
from fedalc.errors import ConfigError
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders.base import Encoder
from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.image_rows import PictureRows

GROUPS = 32  # of channels, as group normalisation was published; fewer where 32 does not divide them
# All that pretrained weights must agree on with these, as a model that is saved is built from its name alone.
SHAPE_KEYS = (
    *("num_channels", "embedding_size", "hidden_sizes", "depths", "layer_type", "hidden_act"),
    *("downsample_in_first_stage", "downsample_in_bottleneck"),
)


class ImageEncoder(Encoder):
    """A ResNet and a linear map."""

    pictures = True
    family = "resnet"
    ignores = ("embedding", "hidden")
    only: ClassVar[Mapping[str, tuple[object, ...]]] = {"shortcut": (False,), "start": ("he", "framework")}
    dropout_layers = 1
    shape: ClassVar[dict[str, Any]]  # as transformers' ResNetConfig takes it

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        self.feature_count = feature_count
        self.unit = settings.output == "unit"
        self.mixed = settings.precision == "mixed"
        self.statistics = settings.norm == "batch"  # whether a client's own are used while it works
        with torch.random.fork_rng(devices=[]):  # the library draws from torch's own generator
            torch.manual_seed(int(torch.randint(1 << 62, (1,), generator=generator, device="cpu")))
            self.backbone = _backbone(self.shape, settings)
            width = self.backbone.config.hidden_sizes[-1]
            self.head = nn.Linear(width, settings.dim)
            # A raw output starts at zero: the square loss would first have to shrink whatever else it is.
            nn.init.normal_(self.head.weight, 0, 1 / math.sqrt(width) if self.unit else 0.0)
            nn.init.zeros_(self.head.bias)
        if settings.norm == "group":
            _use_groups(self.backbone)
        self.eval()

    def forward(self, rows: PictureRows, chance: Chance | None = None, pixels: Tensor | None = None) -> Tensor:
        """`pixels` are those of the rows, where they have been read for another encoder too."""
        if pixels is None:
            pixels = rows.pixels(chance)
        # One picture has no spread: it is normalised by the running averages, and leaves them as they are.
        self.backbone.train(self.training and len(rows) > 1)
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.mixed):
            h = self.backbone(pixels).pooler_output.flatten(1)
            if chance:
                h = chance.drop(h, rows.keys, self.first_layer)
            h = self.head(h)
        h = h.to(self.head.weight.dtype)
        return unit_rows(h) if self.unit else h

    def train(self, mode: bool = True) -> ImageEncoder:
        """Only where batch normalisation is to use the statistics of the batch."""
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
    """With the weights of a name or folder, all of them: what the file lacks, the library would draw at random."""
    from transformers import ResNetConfig, ResNetModel
    from transformers.utils import logging

    place = str(settings.pretrained)
    _look_into(Path(place))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        found = ResNetConfig.from_pretrained(place)
        if found.to_dict().get("model_type") != ResNetConfig.model_type:
            raise ConfigError(f"{place}: is no resnet", "encoder.pretrained")
        for key in SHAPE_KEYS:
            theirs, ours = (_plain(getattr(config, key)) for config in (found, shape))
            if theirs != ours:
                raise ConfigError(f"{place}: is no {settings.name}: its {key} is {theirs}", "encoder.pretrained")
        # Never a pickle. (The library's type hints forget that the report comes too.)
        loaded: Any = ResNetModel.from_pretrained(
            place, config=found, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        first = _first_line(error)
        raise ConfigError(f"{place}: no such weights, by name or folder: {first}", "encoder.pretrained") from None
    except Exception as error:  # the library raises whatever comes: all of it means damaged files
        first = _first_line(error)
        raise ConfigError(f"{place}: damaged, or weights of another network: {first}", "encoder.pretrained") from None
    model, told = loaded
    lacking = sorted(key for key in told["missing_keys"] if not key.endswith("num_batches_tracked"))
    if lacking:
        raise ConfigError(
            f"{place}: lacks weights of a {settings.name}: {lacking[0]}"
            + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""),
            "encoder.pretrained",
        )
    if not all(bool(torch.isfinite(numbers).all()) for numbers in model.state_dict().values()):
        raise ConfigError(f"{place}: has weights that are not finite", "encoder.pretrained")
    return model


def _look_into(folder: Path) -> None:
    """What the library would say of a folder in a roundabout way, or after asking the hub for it."""
    if not folder.is_dir():
        if folder.is_absolute() or (folder.parent != Path() and folder.parent.is_dir()):
            raise ConfigError(f"{folder}: no such folder", "encoder.pretrained")
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: has no config.json, which says what the weights are of", "encoder.pretrained")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder}: has no weights in safetensors, and others are not read: a pickle can run any code",
            "encoder.pretrained",
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _use_groups(module: nn.Module) -> None:
    """Group normalisation in place of every batch normalisation, with its scale and shift."""
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
    """What one picture leaves in memory on its way through an encoder that has none itself: its layers' outputs, which
    the way back needs. Without an encoder of pictures: nothing."""
    total = 0

    def count(_layer: Any, _given: Any, output: Tensor) -> None:
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
