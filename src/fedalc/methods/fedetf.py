"""FedETF (Li et al., "No Fear of Classifier Biases", ICCV 2023, arXiv 2303.10058): W is a fixed simplex.

Our reading: the rows alone, with the clients' loss of `client.loss`. The paper has a balanced softmax over all labels;
`client.loss = "softmax"` is the nearest.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fedalc.methods.fedavg import FedAvgFixed
from fedalc.models.class_embeddings import simplex_rows


class FedETF(FedAvgFixed):
    """W is a simplex equiangular tight frame: the cosine of any two rows is -1/(C - 1), as small as C rows allow.

    That needs D ≥ C - 1. With more labels the rows come in runs of D + 1, each a simplex, and a warning says so.
    """

    help = "averaging with class embeddings fixed at the corners of a simplex"
    use_when = "To compare with class embeddings that are as far apart as possible"
    colour = "#00B300"  # bright green
    shards_rows = False
    ignores = {"embeddings.start": {}}
    defaults = {"embeddings": {"start": "simplex"}}

    def start(self, generator: torch.Generator) -> Tensor:
        dim = self.settings.encoder.dim
        if self.label_count - 1 > dim:
            warnings.warn(
                f"{self.label_count} labels have no simplex in encoder.dim = {dim}: {self.settings.method} uses one "
                f"for every {dim + 1} labels. encoder.dim = {self.label_count - 1} gives one for all",
                stacklevel=2,
            )
        return simplex_rows(self.label_count, dim, generator, getattr(torch, self.settings.dtype))
