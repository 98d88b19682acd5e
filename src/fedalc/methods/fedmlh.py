"""FedMLH (Dai et al., "Federated Multiple Label Hashing", 2021): labels share buckets, several small models vote.

The facts are those of its public code; that class embeddings of the buckets are fixed is how the FedALC paper ran it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.errors import ConfigError
from fedalc.methods.fedavg import FedAvgFixed


class FedMLH(FedAvgFixed):
    """R tables of B buckets, label l in bucket h_r(l) = murmur3_32(l, seed r) mod B; a sub-model for each table.

    Sub-model r has an encoder of its own and B fixed rows, and learns to score the bucket of a client's label. A
    label's score is the sum over tables of its buckets' scores. Here the sub-models stand side by side: their encoders'
    outputs as one long embedding, and as a label's row its R bucket rows, so that gᵀw is that sum. The loss is a sum
    over sub-models, so each is trained, and averaged, as if it were alone.
    """

    help = "labels share hash buckets; several small models vote"
    colour = "#9BAF2D"  # olive
    shards_rows = False
    sections = ("hashing",)

    @classmethod
    def check(cls, settings: Experiment) -> None:
        if settings.embeddings.start == "by-frequency":
            raise ConfigError(
                f"{settings.method} has one class embedding per bucket, and a bucket holds labels of different "
                "frequencies; use orthogonal or random",
                "embeddings.start",
            )
        if settings.server.optimizer == "cg":
            raise ConfigError(f"{settings.method} has several encoders; use another optimizer", "server.optimizer")

    @classmethod
    def sub_models(cls, settings: Experiment) -> int:
        return settings.hashing.tables

    def start(self, generator: torch.Generator) -> Tensor:
        """For each table B rows as fedavg-fixed draws them; a label has those of its buckets."""
        hashing = self.settings.hashing
        tables = [self.spread_out(hashing.buckets, generator) for _ in range(hashing.tables)]
        return torch.cat([rows[torch.from_numpy(own)] for rows, own in zip(tables, self.buckets, strict=True)], dim=1)

    @cached_property
    def buckets(self) -> list[np.ndarray]:
        """h_r(l), per table, of every label."""
        from sklearn.utils import murmurhash3_32  # slow to load

        hashing, labels = self.settings.hashing, np.arange(self.label_count, dtype=np.int32)
        hashes = [murmurhash3_32(labels, seed=table, positive=True) for table in range(hashing.tables)]
        return [(hash_ % hashing.buckets).astype(np.int64) for hash_ in hashes]
