"""The paper's mechanism: in every step on W each instance's gradient is clipped, and noise is added to their sum.

With weights σ the regularisers are means over instances, and so is their gradient, (1/N) Σ_j G_j. Clipped, it is
(1/N) Σ_j f_j G_j with f_j = min(1, clip / ‖G_j‖), which is the gradient of the *same* regulariser when instance j is
counted f_j times: n' = Yᵀf, c' = Yᵀ diag(f) Y. So only the norms are new.

Let A_uv be the slopes of the pairs taken, T_uv those of the attraction, and L the labels of instance j. G_j has

    in row u ∈ L    Σ_{v∉L} A_uv w_v + Σ_{v∈L} 2 T_uv w_v  =  (A W)_u - Σ_{v∈L} E_uv w_v,    E = A - 2T
    in row v ∉ L    Σ_{u∈L} A_uv w_u

and its squared norm takes nothing but numbers at pairs of labels that are both in L: with S = W Wᵀ, all cut to L × L,

    ‖G_j‖² = Σ_u ‖(A W)_u‖² - 2⟨E, A W Wᵀ⟩ + ⟨E S, E⟩ + ⟨S, A Aᵀ - A_LL A_LLᵀ⟩

These are worked out once per pair that occurs together, then looked up. A step costs, beside the regulariser's own
gradient, pairs · (D + K²) for the mined form or pairs · (D + C) for the full one, and Σ_j |L_j|³; memory is bounded by
the budget, beside labels × D and the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix, identity
from torch import Tensor

from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.core.sparse_products import products_at
from fedalc.labels.correlations import Correlations
from fedalc.labels.privacy import PrivateLabelSets, SecureGenerator
from fedalc.methods.regularizers import Regularizer


@dataclass(frozen=True)
class PrivateGradient:
    """Stands where a regulariser stands in a step on W, and lets no instance count for more than `clip`.

    `regularizer_of` must be a function: the same regulariser for the same correlations, or the norms are not those of
    the gradients. Weighted by σ (or `counts`, which is σ·N: then the sum is meant, not the mean).
    """

    regularizer_of: Callable[[Correlations], Regularizer]
    label_sets: csr_matrix
    clip: float
    noise_multiplier: float
    sample_rate: float
    generator: SecureGenerator
    budget: int = DEFAULT_BUDGET

    @classmethod
    def of(cls, sets: PrivateLabelSets, regularizer_of: Callable[[Correlations], Regularizer]) -> PrivateGradient:
        """What stands, for one step, for the regulariser that is made of correlations."""
        noise, own = sets.look(), sets.settings
        return cls(regularizer_of, sets.label_sets, own.clip, sets.noise_multiplier, own.sample_rate, noise)

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        """(NaN, gradient). The value is not given: it would need noise, and a share of ε, of its own.

        In double precision, so that rounding cannot make the norms' nearest classes others than the gradient's.
        """
        double = W.double()
        sampled = self._sample()
        known = self._correlations(sampled)
        regularizer = self.regularizer_of(known)
        norms = instance_norms(regularizer, known, sampled, double, self.budget)
        factors = np.divide(self.clip, norms, out=np.ones_like(norms), where=norms > self.clip)
        _, gradient = self.regularizer_of(self._correlations(sampled, factors)).value_and_gradient(double)
        if self.noise_multiplier:
            noise = torch.from_numpy(self.generator.normal(tuple(W.shape))).to(W.device)
            gradient += noise * (self.noise_multiplier * self.clip * regularizer.weight_of_one)
        return math.nan, (gradient / self.sample_rate).to(W)

    def _sample(self) -> csr_matrix:
        """Each instance with probability `sample_rate`, independently: what the accounting assumes."""
        if self.sample_rate == 1:
            return self.label_sets
        return self.label_sets[self.generator.chosen(self.sample_rate, self.label_sets.shape[0])]

    def _correlations(self, label_sets: csr_matrix, weights: np.ndarray | None = None) -> Correlations:
        """Of a sample, with the N of all: it is public, and must not depend on what was drawn."""
        return replace(Correlations.from_label_sets(label_sets, weights), instances=self.label_sets.shape[0])


def instance_norms(
    regularizer: Regularizer, known: Correlations, label_sets: csr_matrix, W: Tensor, budget: int = DEFAULT_BUDGET
) -> np.ndarray:
    """‖G_j‖ of every row of `label_sets`, whose correlations are `known`. An instance without labels has 0."""
    pairs = known.together + identity(len(W), format="csr")  # of labels that are both in some L, u = v included
    first = torch.from_numpy(np.repeat(np.arange(len(W)), np.diff(pairs.indptr))).to(W.device)
    second = torch.from_numpy(pairs.indices.astype(np.int64)).to(W.device)
    slopes = regularizer.slopes(W, first, second).scaled(1 / regularizer.weight_of_one)
    cosine = products_at(W, W, first, second)
    pulled = products_at(slopes.pull, W, first, second)
    inner = slopes.apart - 2 * slopes.together
    alone = slopes.pull.square().sum(1)
    number = first * len(W) + second  # ascending, to look pairs up in

    norms = np.zeros(label_sets.shape[0])
    for instances, labels in _of_equal_size(label_sets, budget):
        L = torch.from_numpy(labels).to(W.device)
        at = torch.searchsorted(number, L.unsqueeze(2) * len(W) + L.unsqueeze(1))
        A, E, S = slopes.apart[at], inner[at], cosine[at]
        square = (E @ S * E - 2 * E * pulled[at] + S * (slopes.shared[at] - A @ A.mT)).sum((1, 2))
        norms[instances] = (square + alone[L].sum(1)).clamp(min=0).sqrt().cpu().numpy()
    return norms


def _of_equal_size(label_sets: csr_matrix, budget: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Instances with equally many labels, in blocks: (which, their labels, one row each)."""
    sizes = np.diff(label_sets.indptr)
    for size in np.unique(sizes[sizes > 0]):
        instances = np.flatnonzero(sizes == size)
        at_once = max(1, budget // (10 * 8 * int(size) ** 2))  # about ten size × size blocks of eight bytes each
        for start in range(0, len(instances), at_once):
            block = instances[start : start + at_once]
            places = label_sets.indptr[block, None] + np.arange(size)
            yield block, label_sets.indices[places].astype(np.int64)
