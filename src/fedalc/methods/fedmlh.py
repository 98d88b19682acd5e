"""FedMLH (Dai et al., "Federated Multiple Label Hashing", 2021): labels share buckets, several small models vote.

The hashing follows the public code of FedMLH. The bucket embeddings are fixed, as in the FedALC paper's experiments.
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
    """R tables of B buckets, with one sub-model per table. Label l is in bucket h_r(l) = murmur3_32(l, seed r) mod B.

    Sub-model r has its own encoder and B fixed rows, and learns to score the bucket of a client's label. The score of a
    label is the sum of its bucket scores over all tables. To compute that sum as gᵀw, the outputs of all encoders are
    concatenated into one embedding g, and the R bucket rows of a label into one row w. The loss is a sum over
    sub-models, so each sub-model is trained and averaged independently.
    """

    help = "labels share hash buckets; several small models vote"
    use_when = "To compare with label hashing, at four times the bytes"
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
        """Draw B rows per table, as fedavg-fixed does, and give each label the rows of its buckets."""
        hashing = self.settings.hashing
        tables = [self.spread_out(hashing.buckets, generator) for _ in range(hashing.tables)]
        pairs = zip(tables, self.buckets, strict=True)
        return torch.cat([rows[torch.from_numpy(bucket_of_label)] for rows, bucket_of_label in pairs], dim=1)

    @cached_property
    def buckets(self) -> list[np.ndarray]:
        """h_r(l) of every label l, for each table r."""
        from sklearn.utils import murmurhash3_32  # slow to load

        hashing, labels = self.settings.hashing, np.arange(self.label_count, dtype=np.int32)
        hashes = [murmurhash3_32(labels, seed=table, positive=True) for table in range(hashing.tables)]
        return [(hash_ % hashing.buckets).astype(np.int64) for hash_ in hashes]
