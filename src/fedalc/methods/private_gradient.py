"""The paper's privacy mechanism: every step on W clips each instance's gradient and adds noise to the sum.

With weights σ a regulariser is a mean over instances, and so is its gradient, (1/N) Σ_j G_j. After clipping it is
(1/N) Σ_j f_j G_j with f_j = min(1, clip / ‖G_j‖). This is the gradient of the *same* regulariser when instance j counts
f_j times: n' = Yᵀf, c' = Yᵀ diag(f) Y. So only the norms need extra work.

Let A_uv be the slopes of the repelling pairs, T_uv those of the attraction, and L the labels of instance j. G_j has

    in row u ∈ L    Σ_{v∉L} A_uv w_v + Σ_{v∈L} 2 T_uv w_v  =  (A W)_u - Σ_{v∈L} E_uv w_v,    E = A - 2T
    in row v ∉ L    Σ_{u∈L} A_uv w_u

and its squared norm needs only values at pairs of labels that are both in L: with S = W Wᵀ, all restricted to L × L,

    ‖G_j‖² = Σ_u ‖(A W)_u‖² - 2⟨E, A W Wᵀ⟩ + ⟨E S, E⟩ + ⟨S, A Aᵀ - A_LL A_LLᵀ⟩

These values are computed once per pair of labels that occur together, then looked up. In addition to the regulariser's
own gradient, a step costs pairs · (D + K²) for the mined form or pairs · (D + C) for the full one, plus Σ_j |L_j|³.
Memory: the budget, plus labels × D, plus the pairs.
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
    """Replaces a regulariser in a step on W, and limits the gradient of each instance to the norm `clip`.

    `regularizer_of` must return the same regulariser for the same correlations; otherwise the norms do not belong to
    the gradients. Weights are σ (a mean over instances) or `counts` (σ·N, a sum).
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
        """Build the private replacement of a regulariser for one step. This uses up one look at the labels."""
        noise, privacy = sets.look(), sets.settings
        return cls(regularizer_of, sets.label_sets, privacy.clip, sets.noise_multiplier, privacy.sample_rate, noise)

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        """Return (NaN, gradient). Publishing the value would need additional noise and a share of ε.

        Computes in double precision: with rounding, norms and gradient could use different nearest classes.
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
        """Draw each instance independently with probability `sample_rate`, as the privacy accounting assumes."""
        if self.sample_rate == 1:
            return self.label_sets
        return self.label_sets[self.generator.chosen(self.sample_rate, self.label_sets.shape[0])]

    def _correlations(self, label_sets: csr_matrix, weights: np.ndarray | None = None) -> Correlations:
        """Return the correlations of a sample, but with N of all instances: N is public and fixed."""
        return replace(Correlations.from_label_sets(label_sets, weights), instances=self.label_sets.shape[0])


def instance_norms(
    regularizer: Regularizer, known: Correlations, label_sets: csr_matrix, W: Tensor, budget: int = DEFAULT_BUDGET
) -> np.ndarray:
    """Return ‖G_j‖ for every row of `label_sets`, whose correlations are `known`. 0 for an instance without labels."""
    pairs = known.together + identity(len(W), format="csr")  # all (u, v) that are both in some L, including u = v
    first = torch.from_numpy(np.repeat(np.arange(len(W)), np.diff(pairs.indptr))).to(W.device)
    second = torch.from_numpy(pairs.indices.astype(np.int64)).to(W.device)
    slopes = regularizer.slopes(W, first, second).scaled(1 / regularizer.weight_of_one)
    cosine = products_at(W, W, first, second)
    pulled = products_at(slopes.pull, W, first, second)
    inner = slopes.apart - 2 * slopes.together
    alone = slopes.pull.square().sum(1)
    number = first * len(W) + second  # ascending, for searchsorted

    norms = np.zeros(label_sets.shape[0])
    for instances, labels in _of_equal_size(label_sets, budget):
        L = torch.from_numpy(labels).to(W.device)
        at = torch.searchsorted(number, L.unsqueeze(2) * len(W) + L.unsqueeze(1))
        A, E, S = slopes.apart[at], inner[at], cosine[at]
        square = (E @ S * E - 2 * E * pulled[at] + S * (slopes.shared[at] - A @ A.mT)).sum((1, 2))
        norms[instances] = (square + alone[L].sum(1)).clamp(min=0).sqrt().cpu().numpy()
    return norms


def _of_equal_size(label_sets: csr_matrix, budget: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of instances with the same number of labels: (row numbers, labels with one row per instance)."""
    sizes = np.diff(label_sets.indptr)
    for size in np.unique(sizes[sizes > 0]):
        instances = np.flatnonzero(sizes == size)
        at_once = max(1, budget // (10 * 8 * int(size) ** 2))  # about ten size × size blocks of eight bytes each
        for start in range(0, len(instances), at_once):
            block = instances[start : start + at_once]
            positions = label_sets.indptr[block, None] + np.arange(size)
            yield block, label_sets.indices[positions].astype(np.int64)
