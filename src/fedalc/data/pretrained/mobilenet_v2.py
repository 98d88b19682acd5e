"""MobileNetV2 (Sandler et al. 2018) for ImageNet, with the weight names of torchvision's files."""

from __future__ import annotations

from torch import Tensor, nn

# Of each stage: how much blocks widen inside, channels out, blocks, stride of the first block.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
WIDTH = 1280


class MobileNetV2(nn.Module):
    """Pictures to 1,280 numbers (the mean over the last layer's places), and those to ImageNet's 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 32, 3, 2)]
        channels = 32
        for widening, out, blocks, stride in _STAGES:
            for number in range(blocks):
                layers.append(_InvertedResidual(channels, out, stride if number == 0 else 1, widening))
                channels = out
        layers.append(_convolution(channels, WIDTH, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(WIDTH, 1000))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.features(pixels).mean(dim=(2, 3))


class _InvertedResidual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int, widening: int) -> None:
        super().__init__()
        inside = channels * widening
        widen = [_convolution(channels, inside, 1)] if widening > 1 else []
        self.conv = nn.Sequential(
            *widen,
            _convolution(inside, inside, 3, stride, groups=inside),
            nn.Conv2d(inside, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


def _convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(inplace=True),
    )
