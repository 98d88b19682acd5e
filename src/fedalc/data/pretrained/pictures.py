"""Pictures to the rows of frozen networks, which are read from a file or folder when they are first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.images.images import Fit, Images
from fedalc.data.pretrained.feature_cache import cached_rows
from fedalc.data.pretrained.networks import BATCH, BATCH_ON_GPU, PictureNetwork, open_network
from fedalc.data.pretrained.view_names import ViewName
from fedalc.data.pretrained.weights import FIELD, digest_of, find_weights, joint_digest
from fedalc.errors import ConfigError, DataError

VERSION = 1
"""Raise it when the same pictures and weights would give other rows."""
TURNING = "pictures to features"
SCALES = (0.8, 1.0, 1.25)  # of the side of the pictures
PATCH = 32  # sides are multiples of it: networks halve pictures five times
WHERE = "give its folder or file (--pretrained FOLDER, or model.pictures.look_in(folder) in Python)"


@dataclass(frozen=True)
class Views:
    """How a picture is shown to a network: its size, how it becomes a square, and in which views, whose rows are
    averaged. `mean` and `deviation`: of the colours, if other than the network's own."""

    size: int
    fit: Fit = "squeeze"
    views: ViewName = "one"
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    def of(self, pixels: np.ndarray) -> list[np.ndarray]:
        """Return the views of pictures, uint8 N × size × size × 3."""
        sides = [round(scale * self.size / PATCH) * PATCH for scale in SCALES] if "scales" in self.views else []
        shown = [resized(pixels, side) for side in sides] or [pixels]
        return shown + ([picture[:, :, ::-1] for picture in shown] if "mirror" in self.views else [])


def resized(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return pictures of another size."""
    if pixels.shape[1] == side:
        return pixels
    import torch

    given = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float()
    scaled = torch.nn.functional.interpolate(given, (side, side), mode="bilinear", antialias=True)
    return np.asarray(scaled.round().clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8).numpy())


@dataclass
class Weights:
    """The weights of one network: where they are, their digest, and how many numbers their network gives."""

    path: Path
    digest: str
    width: int
    network: PictureNetwork | None = field(default=None, compare=False, repr=False)

    @classmethod
    def open(cls, source: str | Path, device: str) -> Weights:
        path = find_weights(source)
        network = open_network(path, device)
        return cls(path, digest_of(path), network.width, network)

    def opened(self, device: str) -> PictureNetwork:
        """Return the network, read when it is first needed, and checked to be the one of training."""
        if self.network is None:
            if not self.path.exists():
                raise ConfigError(f"the model's pretrained network is not in {self.path}: {WHERE}", FIELD)
            self.look_in(self.path)
            self.network = open_network(self.path, device)
        return self.network

    def look_in(self, place: Path | str) -> None:
        """Look for the weights in this file or folder. They must be those of training."""
        path = find_weights(place)
        if digest_of(path) != self.digest:
            raise ConfigError(f"{path}: is not the pretrained network of training: {WHERE}", FIELD)
        self.path, self.network = path, None


class PictureFeatures:
    """Turns pictures into rows of features, always in the same way. A model that was trained on them keeps it: paths
    and digests of the weights, not the weights. Rows of several networks stand side by side, each of length 1."""

    def __init__(self, weights: Sequence[Weights], views: Views, device: str = "cpu") -> None:
        self.weights, self.views, self.device = tuple(weights), views, device

    @classmethod
    def open(cls, sources: Sequence[str | Path], views: Views, device: str = "cpu") -> PictureFeatures:
        """Read the networks."""
        opened = cls([Weights.open(source, device) for source in sources], views, device)
        if len({weights.digest for weights in opened.weights}) < len(sources):
            raise ConfigError("the same network twice: its features would only stand there twice", FIELD)
        for weights in opened.weights:
            opened._check_size(weights.opened(device))
        return opened

    def _check_size(self, network: PictureNetwork) -> None:
        if network.only_size and (network.size != self.views.size or "scales" in self.views.views):
            how = f"--set images.size={network.size}"
            how += ", and images.views one or mirror" if "scales" in self.views.views else ""
            raise ConfigError(
                f"{network.name} takes pictures of {network.size} × {network.size} only: {how}", "images.size"
            )

    @property
    def feature_count(self) -> int:
        return sum(weights.width for weights in self.weights)

    @property
    def digest(self) -> str:
        """A digest of all weights: parties with the same one have the same networks."""
        return joint_digest([weights.digest for weights in self.weights])

    def look_in(self, *places: Path | str) -> None:
        """Look for the weights in these files or folders. They must be the same."""
        if len(places) != len(self.weights):
            raise ConfigError(f"{len(places)} places for {len(self.weights)} networks", FIELD)
        for weights, place in zip(self.weights, places, strict=True):
            weights.look_in(place)

    def transform(self, images: Images) -> csr_matrix:
        """Return pictures × features as float32. Rows are cached by the picture's pixels, the weights and the views.
        Memory: the rows a few times, the networks, and the layers' outputs for a batch of pictures."""
        if images.size != self.views.size:
            raise DataError(f"the network gets pictures of {self.views.size} × {self.views.size}, not {images.size}")
        digests = [digest.tobytes() for digest in images.digests]
        parts = [self._rows(weights, images, digests) for weights in self.weights]
        if len(parts) > 1:
            parts = [part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in parts]
        return csr_matrix(np.concatenate(parts, axis=1))

    def _rows(self, weights: Weights, images: Images, digests: Sequence[bytes]) -> np.ndarray:
        size = BATCH if self.device == "cpu" else BATCH_ON_GPU

        def batches(places: np.ndarray) -> list[list[int]]:
            return [places[at : at + size].tolist() for at in range(0, len(places), size)]

        def compute(places: Sequence[int]) -> np.ndarray:
            network = self._prepared(weights.opened(self.device))
            shown = self.views.of(images[list(places)].pixels())
            return np.asarray(sum(network.rows(view) for view in shown) / len(shown))

        key = f"pictures {VERSION} {weights.digest} {self.views}"
        return cached_rows(key, weights.width, digests, batches, compute, TURNING)

    def _prepared(self, network: PictureNetwork) -> PictureNetwork:
        mean, deviation = self.views.mean or network.mean, self.views.deviation or network.deviation
        return replace(network, mean=mean, deviation=deviation)

    def facts(self) -> dict[str, Any]:
        """Return what a saved model keeps."""
        networks = [
            {"path": str(weights.path), "digest": weights.digest, "features": weights.width} for weights in self.weights
        ]
        views: dict[str, Any] = {"size": self.views.size, "fit": self.views.fit, "views": self.views.views}
        colours = {"mean": self.views.mean, "deviation": self.views.deviation}
        views |= {name: list(value) for name, value in colours.items() if value is not None}
        return {"version": VERSION, **views, "networks": networks}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], device: str = "cpu") -> PictureFeatures:
        """Return what `facts` described. Raises ValueError, KeyError or TypeError if they do not fit."""
        if facts["version"] != VERSION:
            raise ValueError(f"pictures of version {facts['version']!r}, but this version of fedalc makes {VERSION}")
        weights = [Weights(Path(each["path"]), each["digest"], each["features"]) for each in facts["networks"]]
        for each in weights:
            if not isinstance(each.digest, str) or type(each.width) is not int or each.width < 1:
                raise ValueError("a network is not described by a path, a digest and a number of features")
        size, fit, views = facts["size"], facts["fit"], facts["views"]
        known = fit in get_args(Fit) and views in get_args(ViewName)
        if not weights or type(size) is not int or not known:
            raise ValueError(f"no network, or pictures of {size!r}, {fit!r}, in views {views!r}")
        mean, deviation = (_three(facts.get(name)) for name in ("mean", "deviation"))
        return cls(weights, Views(size, fit, views, mean, deviation), device)


def _three(values: Any) -> tuple[float, ...] | None:
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != 3 or not all(type(value) in (int, float) for value in values):
        raise ValueError(f"{values!r:.60} is not a number for each colour")
    return tuple(map(float, values))
