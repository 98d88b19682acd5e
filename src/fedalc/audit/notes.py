"""How a curious server turns answers into guesses of records: as mixtures of them, which it takes apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedalc.audit.answers import ALONE, RULE, Notes, from_words
from fedalc.audit.reconstruct import principal, reconstruct
from fedalc.audit.targets import Target
from fedalc.models.model import Model

Part = tuple[np.ndarray, np.ndarray]
"""The features that are not zero, and their rows."""


class Mixtures(Notes):
    """Answers are mixtures of records. Of a label alone they are mixtures of its own, all of them useful. Among other
    labels its class embedding tells its part apart: a change Σ_v s_v w_vᵀ times the dual of w_u is s_u."""

    def __init__(self, features: int) -> None:
        self.features = features
        self._kept: dict[tuple[int, str], list[Part]] = defaultdict(list)
        self._duals = torch.empty(0), torch.empty(0)  # of W, and W itself

    def add(self, target: Target, view: str, answers: Sequence[Tensor], model: Model) -> None:
        if view not in (ALONE, RULE):
            answers = [answers[0].to_dense() @ self._dual(model.W)[:, [target.label]]]
        for answer in answers:
            rows = answer.detach().to_dense()[: self.features].double().cpu().numpy()
            present = np.flatnonzero(rows.any(axis=1))
            if len(present):
                self._kept[target.label, view].append((present, principal(rows[present], len(target.records) + 1)))

    def _dual(self, W: Tensor) -> Tensor:
        if not torch.equal(self._duals[1], W):
            self._duals = duals(W), W.clone()
        return self._duals[0]

    def guess(self, target: Target, view: str) -> np.ndarray:
        """Try each answer by itself, and all of them together."""
        parts = self._kept[target.label, view]
        together = [parts] if len(parts) > 1 else []
        mixtures = [self._whole(some) for some in [*([part] for part in parts), *together]]
        return reconstruct(mixtures, len(target.records))

    def _whole(self, parts: Sequence[Part]) -> np.ndarray:
        whole = np.zeros((self.features, sum(rows.shape[1] for _, rows in parts)))
        start = 0
        for present, rows in parts:
            whole[present, start : start + rows.shape[1]] = rows
            start += rows.shape[1]
        return whole


def duals(W: Tensor) -> Tensor:
    """Return D × labels: Σ_v s_v w_vᵀ times column u is s_u, exactly if the rows of W are linearly independent, and
    otherwise with as little of other labels as least squares leave."""
    rows = W.double()
    few = rows.shape[0] < rows.shape[1]
    products = rows @ rows.T if few else rows.T @ rows
    inverse = torch.linalg.pinv(products, hermitian=True)
    return (rows.T @ inverse if few else inverse @ rows.T).to(W)


def guess_from_words(words: np.ndarray, bits: int, W: Tensor, label: int, count: int) -> np.ndarray:
    """Try the same on a vector modulo 2⁶⁴ as a party sends it: features × D numbers in fixed point, masked or not."""
    change = from_words(words, bits, (-1, W.shape[1]))
    own = change @ duals(W)[:, [label]].double().cpu().numpy()
    return reconstruct([principal(change, count + 1), own], count)
