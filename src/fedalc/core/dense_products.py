"""Products with dense matrices of θ by the faster of the two libraries that torch has on a processor.

torch multiplies by MKL, which uses half the width of an AMD processor's AVX-512 units (measured: 105 GFLOP/s of a core
that does 240). Its other library, oneDNN, uses all of them. But it keeps code and memory for each shape (0.7 MB for
1024 × 1024 numbers), so it gets blocks of a few sizes, and MKL the remaining rows.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

SIZES = (64, 32)  # rows of a block
LEAST = 2**21  # multiplications of a block, from which on oneDNN is faster: it takes longer to begin


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, without a graph. b: of one of a few shapes."""
    a, b = a.detach(), b.detach()
    if a.dtype != torch.float32 or a.device.type != "cpu" or not _has_onednn():
        return a @ b
    blocks, begin = [], 0
    for size in SIZES:
        while size * b.numel() >= LEAST and len(a) - begin >= size:
            blocks.append(torch.ops.mkldnn._linear_pointwise(a[begin : begin + size], b.T, None, "none", [], ""))
            begin += size
    if begin < len(a) or not blocks:
        blocks.append(a[begin:] @ b)
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


@cache
def _has_onednn() -> bool:
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
