"""The base class of encoders: torch modules g_θ that map a batch of instances to rows of `dim` numbers.

`register_encoder` makes an encoder of a user's torch.nn.Module, which gets features or pixels as one dense tensor.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedalc.config.facts import OF_RANDOM_FEATURES, EncoderFacts
from fedalc.config.schema import EncoderSettings
from fedalc.core.registry import ENCODERS
from fedalc.errors import ConfigError
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.image_rows import PictureRows
from fedalc.models.encoders.sparse_rows import Design, SparseRows

Batch = SparseRows | PictureRows


class Encoder(EncoderFacts, nn.Module):
    """The base class of encoders. They declare their facts as class attributes (`EncoderFacts`)."""

    feature_count: int
    #: Does a client compute statistics (of batch normalisation) that the server averages in addition to θ?
    statistics: bool = False
    #: The number that dropout gives to its first layer, and how many of its layers drop units.
    first_layer: int = 0
    dropout_layers: int = 0
    #: Can it be reduced to some features (`for_features`)? Then the cost of a round depends on the clients' features.
    takes_some_features: bool = False
    #: Of a linear encoder: does θ have a row for each feature?
    uses_features: bool = True
    #: The columns of W that say where a label is; the collapse of W is measured in these.
    directions: slice = slice(None)
    #: How many numbers it draws from the seed and keeps in memory, besides θ.
    drawn: int = 0

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__()

    def for_features(self, features: Tensor) -> Encoder:
        """Return this encoder for instances with these features only. It copies their rows of the first matrices
        (`rows_for`) and shares all other layers."""
        raise TypeError(f"{type(self).__name__} needs all features")

    def rows_for(self, features: Tensor) -> Tensor:
        """Return the rows of the first matrices that instances with these features need, ascending."""
        return features

    # --- of a linear encoder: g(x) = design(x) θ. Clients' sums, which determine θ, are sums over the design. ---

    @property
    def width(self) -> int:
        """The number of rows of θ."""
        return next(self.parameters()).shape[0]

    def columns(self, rows: SparseRows) -> Sequence[Tensor]:
        """Return the design's columns besides the features, as matrices of len(rows) rows: one for each part of θ that
        parties should check separately against too few contributors."""
        return ()

    def design(self, rows: SparseRows) -> SparseRows | Design:
        """Return what θ is multiplied with: the features of the rows (if `uses_features`), then `columns`."""
        return rows.beside(self.columns, self.uses_features)


class ModuleEncoder(Encoder):
    """A user's module. Its parameters are θ; fedalc scales its output to length 1 if encoder.output is "unit".

    Memory: a block of `block_rows` instances as a dense tensor, instances × features.
    """

    family = "module"
    ignores = ("start", "constant", *OF_RANDOM_FEATURES)
    only: ClassVar[Mapping[str, tuple[object, ...]]] = {  # the module's layers would have to support other values
        "dropout": (0.0,),
        "input_dropout": (0.0,),
        "shortcut": (False,),
        "precision": ("full",),
    }
    made_from: ClassVar[Any]  # a class of modules, or a module

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        self.feature_count = feature_count
        self.settings = settings
        if isinstance(self.made_from, nn.Module):
            self.module = copy.deepcopy(self.made_from).to(torch.get_default_device())
        else:
            with torch.random.fork_rng(devices=[]):  # so that the module's start depends only on the run's seed
                torch.manual_seed(int(torch.randint(1 << 62, (1,), generator=generator, device="cpu")))
                self.module = self.made_from(feature_count, settings)
        _check_layers(self.module, settings.name)
        self.eval()

    def forward(self, rows: Batch, chance: Chance | None = None, pixels: Tensor | None = None) -> Tensor:
        if pixels is None:
            pixels = rows.pixels(chance) if isinstance(rows, PictureRows) else None
        given = rows.dense() if isinstance(rows, SparseRows) else pixels
        assert given is not None
        try:
            h = self.module(given)
        except Exception as error:
            size = " × ".join(map(str, given.shape))
            raise ConfigError(
                f"the encoder {self.settings.name} failed on a tensor of {size}: {type(error).__name__}: {error}",
                "encoder.name",
            ) from error
        if not isinstance(h, Tensor) or h.shape != (given.shape[0], self.settings.dim):
            shape = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise ConfigError(
                f"the encoder {self.settings.name} returns {shape} for {len(rows)} instances, but "
                f"{(len(rows), self.settings.dim)} is expected: set it to the width of the module's output",
                "encoder.dim",
            )
        return unit_rows(h) if self.settings.output == "unit" else h

    def train(self, mode: bool = True) -> ModuleEncoder:
        """Stay in evaluation mode: what a module draws in training mode would differ between engines."""
        return super().train(False)


def _check_layers(module: nn.Module, name: str) -> None:
    """Refuse layers that make an instance's embedding depend on other instances, or on torch's global generator."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{name} has {type(layer).__name__}, whose output depends on the other instances in a batch, but a "
                "client's batch has only one label; use nn.GroupNorm or nn.LayerNorm",
                "encoder.name",
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise ConfigError(
                f"{name} has {type(layer).__name__}, which would drop different units on each engine; leave it out, or "
                "extend fedalc.Encoder and call chance.drop",
                "encoder.name",
            )
    parameters = list(module.named_parameters(remove_duplicate=False))
    if not parameters:
        raise ConfigError(f"{name} has no parameters, so there is nothing to train", "encoder.name")
    if len({id(value) for _, value in parameters}) < len(parameters):
        raise ConfigError(f"{name} uses one parameter in two places, which cannot be saved", "encoder.name")
    for parameter, value in parameters:
        if not value.requires_grad:
            raise ConfigError(f"{name} has a frozen parameter, {parameter}: all parameters are trained", "encoder.name")


def as_encoder_class(encoder: Any) -> type[Encoder]:
    """Return the class that builds an encoder: the class itself, or one that wraps a user's module or class of them."""
    is_class = isinstance(encoder, type) and issubclass(encoder, nn.Module)
    if not (is_class or isinstance(encoder, nn.Module)):
        raise ConfigError(f"{encoder!r:.60} is not an encoder: register a torch.nn.Module, or a class of them")
    if is_class and issubclass(encoder, Encoder):
        return encoder
    named = encoder if is_class else type(encoder)
    facts = {fact: getattr(named, fact) for fact in ("help", "pictures") if hasattr(named, fact)}
    origin = {"__module__": named.__module__, "__qualname__": named.__qualname__, "__doc__": named.__doc__}
    return type(named.__name__, (ModuleEncoder,), {"made_from": encoder, **facts, **origin})


def register_module(module: nn.Module) -> dict[str, Any]:
    """Register a module and return the [encoder] settings that select it. The name tells modules apart that differ in
    class, layers or shapes: a model that was trained with one must not be loaded into another."""
    shapes = [(name, tuple(value.shape)) for name, value in module.state_dict().items()]
    structure = hashlib.sha256(repr((type(module).__qualname__, repr(module), shapes)).encode()).hexdigest()[:8]
    name = f"{re.sub(r'[^A-Za-z]', '', type(module).__name__) or 'Module'}-{structure}"
    ENCODERS.register(name, module)
    return {"name": name, "dim": _width(module)}


def _width(module: nn.Module) -> int:
    """Return the output width of a module: its attribute `dim`, or the outputs of its last linear layer."""
    if isinstance(width := getattr(module, "dim", None), int):
        return width
    widths = [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not widths:
        raise ConfigError(
            f"the output width of {type(module).__name__} is unknown: give the module an attribute `dim`", "encoder"
        )
    return widths[-1]
