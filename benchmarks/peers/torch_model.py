"""The mlp and a client's data in plain PyTorch, for the other engines; it uses no fedalc code, but for the
order of the instances in an epoch, so that all engines take the same steps.

Sparse features go into an `nn.EmbeddingBag` with weights. Of a bag with dense gradients, a bag with sparse gradients, a
sparse CSR product and a dense first layer, the first was the fastest on eurlex15k and within 2% of the CSR product on
Bibtex. Dense features go into an `nn.Linear`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from fedalc.core.seeds import numpy_generator
from peers.job import MARGIN, Job

ClientData = tuple[Tensor, ...]
"""Sparse: the start of each instance, feature indices, values, and the client's row. Dense: instances, and the row.

The length of the first tensor is the client's number of instances."""


class Encoder(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        embedding, *layers = [torch.from_numpy(part) for part in job.theta]
        features, width = embedding.shape
        self.sparse = not isinstance(job.features, np.ndarray)
        self.first: nn.Module
        if self.sparse:
            self.first = nn.EmbeddingBag(features, width, mode="sum", _weight=embedding.clone())
        else:
            self.first = nn.Linear(features, width, bias=False)
        widths = [width, *(len(bias) for bias in layers[1::2])]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        with torch.no_grad():
            if not self.sparse:
                self.first.weight.copy_(embedding.T)
            for parameter, start in zip(self.layers.parameters(), layers, strict=True):
                parameter.copy_(start)

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.sparse:
            starts, index, value = inputs
            h = self.first(index, starts, per_sample_weights=value)
        else:
            h = self.first(*inputs)
        for depth, layer in enumerate(self.layers):
            h = layer(torch.relu(h) if depth else h)
        return nn.functional.normalize(h, dim=1)

    def loss(self, *data: Tensor) -> Tensor:
        *inputs, row = data
        return (MARGIN - self(*inputs) @ row).clamp(min=0).square().mean()


def client_data(job: Job) -> list[ClientData]:
    """Build the tensors of every client."""
    labels, rows = job.labels.tocsc(), torch.from_numpy(job.rows)
    clients: list[ClientData] = []
    for client, (start, stop) in enumerate(pairwise(labels.indptr)):
        own = job.features[labels.indices[start:stop]]
        if isinstance(own, np.ndarray):
            clients.append((torch.from_numpy(own), rows[client]))
        else:
            starts, index = (torch.from_numpy(part.astype(np.int64)) for part in (own.indptr[:-1], own.indices))
            clients.append((starts, index, torch.from_numpy(own.data), rows[client]))
    return clients


def epoch(data: ClientData, job: Job, client: int, round_number: int, number: int) -> Iterator[ClientData]:
    """Yield the batches of a client's epoch, in the same order as fedalc's engines."""
    count = len(data[0])
    if job.batch is None or job.batch >= count:
        yield data
        return
    order = torch.from_numpy(numpy_generator(0, "batches", round_number, client, number).permutation(count))
    for chosen in order.split(job.batch):
        yield chosen_rows(data, chosen)


def chosen_rows(data: ClientData, chosen: Tensor) -> ClientData:
    """Return some of a client's instances."""
    if len(data) == 2:
        return data[0][chosen], data[1]
    starts, index, value, row = data
    lengths = torch.diff(starts, append=starts.new_tensor([len(index)]))[chosen]
    ends = lengths.cumsum(0)
    at = torch.repeat_interleave(starts[chosen] - ends + lengths, lengths) + torch.arange(int(ends[-1]))
    return ends - lengths, index[at], value[at], row
