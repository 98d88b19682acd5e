"""Networks against the library that saved them, or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedalc.data.images.images import Images
from fedalc.data.pretrained.efficientnet_lite0 import EfficientNetLite0, _SamePadded
from fedalc.data.pretrained.mobilenet_v2 import MobileNetV2
from fedalc.data.pretrained.networks import DEVIATION, MEAN, open_network
from fedalc.errors import ConfigError
from tests.data.pretrained.networks import SIDE, pictures, save_clip, save_resnet, save_vit


def as_input(images: Images, mean: Any = MEAN, deviation: Any = DEVIATION) -> torch.Tensor:
    scaled = (images.pixels() / 255.0 - np.array(mean)) / np.array(deviation)
    return torch.from_numpy(scaled.transpose(0, 3, 1, 2)).float()


@pytest.mark.parametrize("prepared", [{}, {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "size": 48}])
def test_a_resnet(tmp_path: Path, prepared: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    model, images = save_resnet(tmp_path, **prepared), pictures()
    network = open_network(tmp_path)
    colours = (prepared["image_mean"], prepared["image_std"]) if prepared else ()
    with torch.inference_mode():
        wanted = model(as_input(images, *colours)).pooler_output.flatten(1)
    np.testing.assert_allclose(network.rows(images.pixels()), wanted, rtol=1e-4, atol=1e-5)
    assert (network.width, network.size, network.only_size) == (8, 48 if prepared else 224, False)


def test_a_vit_without_a_pooler_gives_the_first_token(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model, images = save_vit(tmp_path), pictures()
    network = open_network(tmp_path)
    with torch.inference_mode():
        wanted = model(as_input(images)).last_hidden_state[:, 0]
    np.testing.assert_allclose(network.rows(images.pixels()), wanted, rtol=1e-4, atol=1e-5)
    assert (network.size, network.only_size) == (SIDE, True)


def test_of_clip_the_tower_of_pictures(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model, images = save_clip(tmp_path), pictures()
    with torch.inference_mode():
        wanted = model.vision_model(as_input(images)).pooler_output
    np.testing.assert_allclose(open_network(tmp_path).rows(images.pixels()), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [MobileNetV2, EfficientNetLite0])
def test_known_networks_are_recognised_by_their_weights(tmp_path: Path, kind: Any) -> None:
    module = kind().eval()
    torch.save(module.state_dict(), tmp_path / "net.pth")
    network, images = open_network(tmp_path / "net.pth"), pictures(2)
    own = (MEAN, DEVIATION) if kind is MobileNetV2 else ((127 / 255,) * 3, (128 / 255,) * 3)
    with torch.inference_mode():
        wanted = module(as_input(images, *own))
    np.testing.assert_allclose(network.rows(images.pixels()), wanted, rtol=1e-3, atol=1e-5)
    assert network.width == 1280


def test_the_sizes_of_the_known_networks() -> None:
    """The numbers of weights that were published: 3.50 and 4.65 million."""
    sizes = [sum(weight.numel() for weight in kind().parameters()) for kind in (MobileNetV2, EfficientNetLite0)]
    assert sizes == [3_504_872, 4_652_008]


@pytest.mark.parametrize(("side", "out"), [(7, 4), (8, 4)])
def test_padding_as_tensorflow_does_it(side: int, out: int) -> None:
    """With an even side and stride 2, SAME pads the end alone; by hand with a kernel of ones."""
    convolution = _SamePadded(1, 1, 3, 2)
    nn.init.ones_(convolution.weight)
    given = torch.arange(1.0, side + 1).repeat(side, 1)[None, None]
    found = convolution(given)[0, 0, 1]
    row = [0.0] * (side % 2) + list(range(1, side + 1)) + [0.0]
    assert found.tolist() == [3 * sum(row[at : at + 3]) for at in range(0, 2 * out, 2)]


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit",))


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    file = tmp_path / "net.pth"
    weights = MobileNetV2().state_dict()
    for content, why in (
        ({"a": Evil()}, "never runs code of a file"),
        ({"a": torch.zeros(1)}, "not the weights of MobileNetV2 or EfficientNet-lite0"),
        ({**weights, "features.0.0.weight": torch.zeros(3)}, "not the weights of MobileNetV2"),
        ({**weights, "classifier.1.bias": torch.full((1000,), np.nan)}, "not finite"),
        ([1, 2], "expected tensors by name"),
    ):
        torch.save(content, file)
        with pytest.raises(ConfigError, match=why):
            open_network(file)


def test_folders_that_are_no_networks_of_pictures(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "resnet"}')
    with pytest.raises(ConfigError, match="no safetensors weights"):
        open_network(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="not a network that can be read"):
        open_network(tmp_path)


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).argmax(dim=1, keepdim=True)


@pytest.mark.parametrize("dynamic", [True, False])
def test_onnx(tmp_path: Path, dynamic: bool) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    module = nn.Sequential(nn.Conv2d(3, 6, 3, 4), nn.ReLU()).eval()
    shapes = {"x": {0: "n", 2: "h", 3: "w"}} if dynamic else None
    given = (torch.zeros(1, 3, SIDE, SIDE),)
    file = str(tmp_path / "net.onnx")
    torch.onnx.export(module, given, file, input_names=["x"], dynamic_axes=shapes, dynamo=False)
    network, images = open_network(tmp_path / "net.onnx"), pictures()
    with torch.inference_mode():
        wanted = module(as_input(images)).mean(dim=(2, 3))
    np.testing.assert_allclose(network.rows(images.pixels()), wanted, rtol=1e-4, atol=1e-5)
    assert (network.width, network.only_size, network.size) == (6, not dynamic, 224 if dynamic else SIDE)
    classes = nn.Sequential(module, Largest())
    torch.onnx.export(classes, given, file, input_names=["x"], dynamic_axes=shapes, dynamo=False)
    with pytest.raises(ConfigError, match="expected an output of floats"):
        open_network(tmp_path / "net.onnx")
    (tmp_path / "net.onnx").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="not an ONNX model"):
        open_network(tmp_path / "net.onnx")
