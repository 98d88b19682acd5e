"""Products of dense matrices by the faster of the two libraries that torch has on a processor.

torch multiplies by MKL, which uses half the width of an AMD processor's AVX-512 units (measured: 105 GFLOP/s of a core
that does 240). Its other library, oneDNN, uses all of them, also on Intel's processors.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

LEAST = 2**21  # multiplications, from which on oneDNN is faster: it takes longer to begin


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, without a graph."""
    a, b = a.detach(), b.detach()
    if not _by_onednn(a, b):
        return a @ b
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")
    return found


def add_product(total: Tensor, a: Tensor, b: Tensor, factor: float = 1.0) -> None:
    """Add a b times a factor to a matrix."""
    if _by_onednn(a, b):
        total.add_(product(a, b), alpha=factor)
    else:
        total.addmm_(a, b, alpha=factor)


def _by_onednn(a: Tensor, b: Tensor) -> bool:
    wanted = a.dtype == torch.float32 and a.device.type == "cpu" and a.shape[0] * b.numel() >= LEAST
    return wanted and _has_onednn()


@cache
def _has_onednn() -> bool:
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
