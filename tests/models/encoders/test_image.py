"""Picture encoders against a literal network; numerical gradients; the three normalisations; initial weights."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fedalc.config.schema import EncoderSettings
from fedalc.data.images.images import Images
from fedalc.errors import ConfigError
from fedalc.models.encoders import ImageEncoder, PictureRows, encoder_size, make_encoder
from fedalc.models.encoders.image import _use_groups
from tests.models.encoders.weights import save_resnet

pytest.importorskip("transformers")

PIXELS = np.random.default_rng(4).integers(0, 256, (6, 24, 24, 3)).astype(np.uint8)
IMAGES = Images(PIXELS, [str(row) for row in range(6)])


def encoder(seed: int = 0, double: bool = True, **settings: Any) -> ImageEncoder:
    made = make_encoder(
        IMAGES.shape[1],
        EncoderSettings(**{"name": "resnet-small", "dim": 8, **settings}),
        torch.Generator().manual_seed(seed),
    )
    assert isinstance(made, ImageEncoder)
    return made.double() if double else made


def rows(images: Images = IMAGES, dtype: torch.dtype = torch.float64) -> PictureRows:
    return PictureRows(images, np.arange(len(images)), dtype, "cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_resnet(folder)
    return folder


# --- the network, written out ---


def literal_norm(x: Tensor, p: dict[str, Tensor], at: str, norm: str) -> Tensor:
    count, channels = x.shape[:2]
    scale, shift = (p[f"{at}.{name}"].view(1, -1, 1, 1) for name in ("weight", "bias"))
    if norm == "frozen":
        mean, variance = (p[f"{at}.running_{name}"].view(1, -1, 1, 1) for name in ("mean", "var"))
        return (x - mean) / (variance + 1e-5).sqrt() * scale + shift
    out = torch.empty_like(x)
    if norm == "group":
        size = channels // 32
        for picture in range(count):
            for group in range(32):
                part = x[picture, group * size : (group + 1) * size]
                away = part - part.mean()
                out[picture, group * size : (group + 1) * size] = away / (away.square().mean() + 1e-5).sqrt()
    else:
        for channel in range(channels):
            away = x[:, channel] - x[:, channel].mean()
            out[:, channel] = away / (away.square().mean() + 1e-5).sqrt()
    return out * scale + shift


def literal_embedding(p: dict[str, Tensor], norm: str) -> Tensor:
    """resnet-small: a stem, four blocks of two 3×3 convolutions with a shortcut, mean over positions, linear map."""
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], dtype=torch.float64)
    x = ((torch.from_numpy(PIXELS).double() / 255 - mean) / deviation).permute(0, 3, 1, 2)

    def layer(x: Tensor, at: str, stride: int, edge: int) -> Tensor:
        x = functional.conv2d(x, p[f"{at}.convolution.weight"], stride=stride, padding=edge)
        return literal_norm(x, p, f"{at}.normalization", norm)

    x = functional.max_pool2d(torch.relu(layer(x, "backbone.embedder.embedder", 2, 3)), 3, 2, 1)
    for stage, stride in enumerate((1, 2, 2, 2)):
        at = f"backbone.encoder.stages.{stage}.layers.0"
        y = layer(torch.relu(layer(x, f"{at}.layer.0", stride, 1)), f"{at}.layer.1", 1, 1)
        x = torch.relu(y + (x if stage == 0 else layer(x, f"{at}.shortcut", stride, 0)))
    h = x.mean(dim=(2, 3)) @ p["head.weight"].T + p["head.bias"]
    return h / h.norm(dim=1, keepdim=True)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["group", "frozen", "batch"])
def test_the_network_written_out(norm: str, weights: Path) -> None:
    """With scales, shifts and statistics other than 1 and 0. `batch` uses its batch's statistics, as on a client."""
    network = encoder(norm=norm, pretrained=str(weights)).train()
    wanted = literal_embedding(network.state_dict(), norm)
    torch.testing.assert_close(network(rows()), wanted, rtol=1e-10, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["group", "frozen"])
def test_a_picture_is_encoded_the_same_whoever_is_beside_it(norm: str, weights: Path) -> None:
    network = encoder(norm=norm, pretrained=str(weights)).train()
    together = network(rows())
    alone = torch.cat([network(rows(IMAGES[row])) for row in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_batch_normalisation_ties_a_batch_together_only_while_a_client_works() -> None:
    network = encoder(norm="batch")
    assert not network.training
    torch.testing.assert_close(network(rows())[:2], network(rows(IMAGES[:2])), rtol=1e-10, atol=1e-12)
    network.train()
    assert (network(rows())[:2] - network(rows(IMAGES[:2]))).abs().max() > 0.01


@pytest.mark.parametrize("norm", ["group", "frozen", "batch"])
def test_only_batch_normalisation_has_a_mode_of_work(norm: str, weights: Path) -> None:
    network = encoder(norm=norm, pretrained=str(weights))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.train()(rows())
    assert network.training == (norm == "batch")
    changed = {name.rsplit(".", 1)[1] for name, value in network.state_dict().items() if not value.equal(before[name])}
    assert changed == ({"running_mean", "running_var", "num_batches_tracked"} if norm == "batch" else set())
    assert not network.eval().training


@pytest.mark.few(1)
@pytest.mark.parametrize("norm", ["group", "frozen", "batch"])
@pytest.mark.parametrize("output", ["unit", "raw"])
def test_gradients_numerically(norm: str, output: str, weights: Path) -> None:
    network = encoder(norm=norm, output=output, pretrained=str(weights)).train()
    # A raw output starts at zero, and nothing before the head has a gradient then.
    nn.init.normal_(network.head.weight, std=1 / 16, generator=torch.Generator().manual_seed(2))
    target = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss() -> Tensor:
        return (network(rows()) * target).sum()

    loss().backward()
    parameters = dict(network.named_parameters())
    chosen = [
        "backbone.embedder.embedder.convolution.weight",
        "backbone.embedder.embedder.normalization.bias",
        "backbone.encoder.stages.2.layers.0.layer.0.normalization.weight",
        "backbone.encoder.stages.3.layers.0.shortcut.convolution.weight",
        "head.weight",
        "head.bias",
    ]
    step = 1e-7
    for name in chosen:
        flat, gradient = parameters[name].data.view(-1), parameters[name].grad
        assert gradient is not None and gradient.abs().max() > 1e-6
        for place in (len(flat) // 3, len(flat) - 1):
            with torch.no_grad():
                flat[place] += step
                up = loss().item()
                flat[place] -= 2 * step
                down = loss().item()
                flat[place] += step
            assert gradient.reshape(-1)[place].item() == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-6)


# --- what comes out, and what it starts from ---


@torch.no_grad()
def test_unit_is_raw_scaled_to_length_one() -> None:
    of_unit, of_raw = encoder(output="unit"), encoder(output="raw")
    assert of_raw(rows()).eq(0).all(), "as it starts"
    of_raw.load_state_dict(of_unit.state_dict())
    unit, raw = of_unit(rows()), of_raw(rows())
    assert unit.norm(dim=1).tolist() == pytest.approx([1] * 6)
    assert (raw.norm(dim=1) - 1).abs().min() > 1e-3
    torch.testing.assert_close(unit * raw.norm(dim=1, keepdim=True), raw, rtol=1e-12, atol=1e-13)


def test_the_heads_start() -> None:
    """Weights have deviation 1/√256, so outputs are as large as inputs."""
    head = encoder(dim=128).head
    assert head.bias.eq(0).all() and head.weight.shape == (128, 256)
    assert head.weight.mean().item() == pytest.approx(0, abs=4 / 16 / np.sqrt(head.weight.numel()))
    assert head.weight.std().item() == pytest.approx(1 / 16, rel=0.03)


def test_the_seed_decides_and_the_callers_random_numbers_stay() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, again, other = encoder(0), encoder(0), encoder(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    anywhere = encoder(0)
    for a, b, c in zip(first.parameters(), again.parameters(), anywhere.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert not torch.equal(first.head.weight, other.head.weight)
    conv = "backbone.embedder.embedder.convolution.weight"
    assert not torch.equal(first.state_dict()[conv], other.state_dict()[conv])


def test_copies_side_by_side_start_and_drop_differently() -> None:
    settings = EncoderSettings(name="resnet-small", dim=3)
    both = make_encoder(IMAGES.shape[1], settings, torch.Generator().manual_seed(0), copies=2).double()
    with torch.no_grad():
        g = both(rows())
    assert g.shape == (6, 6) and (g[:, :3] - g[:, 3:]).abs().max() > 0.01
    assert [part.first_layer for part in both.encoders] == [0, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (32, 32), (48, 16), (20, 4), (7, 1), (1, 1)])
def test_groups_where_32_does_not_divide(channels: int, groups: int) -> None:
    old = nn.BatchNorm2d(channels, eps=1e-3)
    nn.init.normal_(old.weight)
    nn.init.normal_(old.bias)
    holder = nn.ModuleDict({"inner": nn.Sequential(old)})
    _use_groups(holder)
    (norm,) = holder["inner"]  # type: ignore[misc]
    assert isinstance(norm, nn.GroupNorm) and (norm.num_groups, norm.eps) == (groups, 1e-3)
    assert torch.equal(norm.weight, old.weight) and torch.equal(norm.bias, old.bias)


def test_no_batch_normalisation_is_left_with_groups() -> None:
    assert not any(isinstance(module, nn.BatchNorm2d) for module in encoder().modules())
    assert not list(encoder().buffers())


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize(("name", "backbone", "width"), [("resnet18", 11_176_512, 512), ("resnet50", 23_508_032, 2048)])
def test_sizes_are_those_published(name: str, backbone: int, width: int, norm: str) -> None:
    settings = EncoderSettings(name=name, dim=10, norm=norm)  # type: ignore[arg-type]
    assert encoder_size(192, settings) == backbone + 10 * width + 10


@pytest.mark.parametrize("norm", ["group", "batch", "frozen"])
def test_the_size_is_that_of_what_is_built_and_costs_no_pretrained_weights(norm: str, weights: Path) -> None:
    built = encoder(norm=norm, pretrained=str(weights), dim=5)
    settings = EncoderSettings(name="resnet-small", dim=5, norm=norm, pretrained="nowhere")  # type: ignore[arg-type]
    assert encoder_size(192, settings) == sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_mixed_precision_is_near(norm: str) -> None:
    """bfloat16 has 8 bits: numbers are off by up to 0.4 %, and errors accumulate over a dozen layers."""
    found = []
    for precision in ("full", "mixed"):
        network = encoder(double=False, norm=norm, precision=precision).train()
        g = network(rows(dtype=torch.float32))
        (g * torch.arange(8)).sum().backward()
        assert g.dtype == torch.float32
        assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
        found.append((g.detach(), network.head.weight.grad))
    (full, full_gradient), (mixed, mixed_gradient) = found
    assert full_gradient is not None and mixed_gradient is not None
    assert not torch.equal(full, mixed)
    assert (full - mixed).abs().max() < 0.06
    assert ((full_gradient - mixed_gradient).norm() / full_gradient.norm()).item() < 0.1


# --- pretrained weights ---


@pytest.mark.parametrize("norm", ["group", "batch", "frozen"])
def test_pretrained_weights_arrive(norm: str, tmp_path: Path) -> None:
    theirs = save_resnet(tmp_path).state_dict()
    ours = encoder(double=False, norm=norm, pretrained=str(tmp_path)).backbone.state_dict()
    kept = {name for name in theirs if norm != "group" or ("running" not in name and "tracked" not in name)}
    assert set(ours) == kept
    assert all(torch.equal(ours[name], theirs[name]) for name in kept)
    if norm == "frozen":
        pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        network = encoder(double=False, norm=norm, pretrained=str(tmp_path)).train()
        with torch.no_grad():
            assert torch.equal(network.backbone(pixels).pooler_output, save_resnet(tmp_path)(pixels).pooler_output)


def test_the_head_is_drawn_beside_pretrained_weights(weights: Path) -> None:
    first, again, other = (encoder(seed, pretrained=str(weights)).head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_weights_saved_in_half_precision_are_float32_here(tmp_path: Path) -> None:
    save_resnet(tmp_path, torch.float16)
    network = encoder(double=False, pretrained=str(tmp_path), norm="frozen")
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float32, torch.int64}
    assert network(rows(dtype=torch.float32)).isfinite().all()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("depths", (2, 1, 1, 1), "its depths is [2, 1, 1, 1]"),
        ("hidden_sizes", (32, 64, 128, 512), "its hidden_sizes is [32, 64, 128, 512]"),
        ("layer_type", "bottleneck", "its layer_type is bottleneck"),
        ("embedding_size", 64, "its embedding_size is 64"),
        ("hidden_act", "gelu", "its hidden_act is gelu"),
        ("downsample_in_first_stage", True, "its downsample_in_first_stage is True"),
    ],
)
def test_weights_of_another_shape_are_refused(tmp_path: Path, key: str, value: Any, said: str) -> None:
    save_resnet(tmp_path, **{key: value})
    with pytest.raises(ConfigError) as refused:
        encoder(pretrained=str(tmp_path))
    assert str(refused.value) == f"encoder.pretrained: {tmp_path}: is not a resnet-small: {said}"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^encoder\.pretrained: .*absent: no such folder$"):
        encoder(pretrained=str(tmp_path / "absent"))


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    save_resnet(tmp_path)
    file = tmp_path / "model.safetensors"
    torch.save(load_file(file), tmp_path / "pytorch_model.bin")
    file.unlink()
    with pytest.raises(ConfigError, match=r"has no safetensors weights\. Other formats are not read"):
        encoder(pretrained=str(tmp_path))


def test_what_the_file_lacks_is_not_made_up(tmp_path: Path, weights: Path) -> None:
    shutil.copytree(weights, tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if not name.endswith("running_mean")}
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks weights of a resnet-small: embedder\..*running_mean and 11 more$"):
        encoder(pretrained=str(tmp_path / "cut"), norm="frozen")
    counters = {name: tensor for name, tensor in load_file(weights / "model.safetensors").items() if "num_" not in name}
    save_file(counters, file, {"format": "pt"})
    encoder(pretrained=str(tmp_path / "cut"), norm="frozen")  # older files do not count batches, and nobody needs it


def test_a_damaged_file_is_refused(tmp_path: Path, weights: Path) -> None:
    shutil.copytree(weights, tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match=r"^encoder\.pretrained: .*: damaged, or weights of another network: "):
        encoder(pretrained=str(tmp_path / "cut"))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_picture_alone_is_normalised_by_the_running_averages() -> None:
    settings = EncoderSettings(name="resnet-small", dim=4, norm="batch")
    encoder = make_encoder(16 * 16 * 3, settings, torch.Generator().manual_seed(0))
    images = Images(np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8), list("abc"))

    def rows(of: Images) -> PictureRows:
        return PictureRows(of, np.arange(len(of)), torch.float32, "cpu")

    alone = encoder(rows(images[:1]))
    encoder.train()
    before = copy.deepcopy(encoder.state_dict())
    assert torch.equal(encoder(rows(images[:1])), alone)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    encoder(rows(images))  # several: by their own, which are remembered
    assert not torch.equal(encoder.state_dict()["backbone.embedder.embedder.normalization.running_mean"],
                           before["backbone.embedder.embedder.normalization.running_mean"])  # fmt: skip
