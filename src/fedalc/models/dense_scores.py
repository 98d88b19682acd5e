"""A trained model as one torch module: dense rows or pictures in, the scores of all labels out. Export traces it.

It calls the encoder that predicts, so there is no second copy of its formulas.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from fedalc.models.calibration import Calibration
from fedalc.models.encoders import ImageEncoder, PictureRows, SparseRows, TextEncoder
from fedalc.models.encoders.image_rows import network_input
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel


class DenseScores(nn.Module):
    """Computes in float32. Input: float32 instances × features, or for pictures uint8 N × size × size × 3 (RGB).

    Output: scores, instances × labels. Labels without a client get -inf, so the best k are those of
    `TrainedModel.predict`. With a calibrated model also the probabilities.
    """

    W: Tensor
    absent: Tensor

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        model = in_float32(trained.model)
        self.encoder, W = model.encoder, model.W
        self.axis_per_label = W.shape[0] == W.shape[1] and bool(torch.equal(W, W.diagonal().diag()))
        self.register_buffer("W", W.diagonal().clone() if self.axis_per_label else W.T.contiguous())
        self.register_buffer("absent", torch.from_numpy(~trained.held))
        self.scaling = trained.encoder.features
        self.pictures = trained.encoder.is_image  # of a frozen network: its features
        self.probabilities = None if trained.calibration is None else Probabilities(trained.calibration)

    def forward(self, given: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.pictures:
            encoded = self.encoder(_Pixels(network_input(given, torch.float32)))
        else:
            encoded = self.encoder(SparseRows.of_dense(scale_dense(given, self.scaling)))
        scores = encoded * self.W if self.axis_per_label else encoded @ self.W
        scores = scores.masked_fill(self.absent, -torch.inf)
        return scores if self.probabilities is None else (scores, self.probabilities(scores))


class Probabilities(nn.Module):
    """`Calibration.probabilities` of the scores of all labels, in float32."""

    offsets: Tensor

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.knots, self.slopes = calibration.knots.tolist(), calibration.slopes.tolist()
        self.register_buffer("offsets", torch.from_numpy(calibration.offsets.astype(np.float32)))

    def forward(self, scores: Tensor) -> Tensor:
        """The curve is a sum: what each of its pieces rises up to the score."""
        first, last = self.knots[0], self.knots[-1]
        odds = self.slopes[0] * (scores - first).clamp(max=0) + self.slopes[-1] * (scores - last).clamp(min=0)
        for start, end, slope in zip(self.knots[:-1], self.knots[1:], self.slopes[1:-1], strict=True):
            odds = odds + slope * (scores.clamp(start, end) - start)
        return torch.sigmoid(odds + self.offsets)


def in_float32(model: Model) -> Model:
    """Return a copy in main memory that computes in float32, also where the model computes in mixed precision."""
    encoder = copy.deepcopy(model.encoder).to(device="cpu", dtype=torch.float32).eval()
    for part in encoder.modules():
        if isinstance(part, TextEncoder | ImageEncoder):
            part.mixed = False
    return Model(encoder, model.W.detach().to(device="cpu", dtype=torch.float32))


def scale_dense(features: Tensor, how: str) -> Tensor:
    """Scale rows as `scale_rows` scales sparse ones: to length 1, by the number of values other than 0, or not."""
    if how == "raw":
        return features
    if how == "mean":
        count = (features != 0).sum(dim=1, keepdim=True)
        return features / count.clamp(min=1)
    largest = features.abs().amax(dim=1, keepdim=True)
    length = (features * features).sum(dim=1, keepdim=True).sqrt()
    # Squares that overflow or underflow: divide by the largest value first.
    odd = torch.isinf(length) | ((length == 0) & (largest > 0))
    features = features / largest.where(odd, 1.0)
    length = (features * features).sum(dim=1, keepdim=True).sqrt()
    return features / length.where(length > 0, 1.0)


class _Pixels(PictureRows):
    """Pictures whose pixels are a tensor."""

    def __init__(self, pixels: Tensor) -> None:
        self.keys = torch.zeros(pixels.shape[0], dtype=torch.int64)
        self._pixels = pixels

    def pixels(self, chance: object = None) -> Tensor:
        return self._pixels
