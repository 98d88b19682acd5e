"""FedUV (Hosseini et al., "Federated Learning of User Verification Models Without Sharing Embeddings", 2104.08776).

Each user draws a secret codeword of an error-correcting code, and the model learns to map the user's data to it. Our
reading: random codewords of length D with a checked minimum distance, in place of such a code; the score is a cosine.

What the secrecy is worth here: a client is sent its own row and cannot compute the others' from it. The server has all
rows, unlike in the paper, because it scores with them: in the paper users only verify themselves. With the clients' key
(collection.key) the codewords are drawn under it: a stranger who has the settings cannot draw them, but every holder of
the key can. Without a key they follow from `seed`, so who has the settings has the codewords; in a deployment every
party has the settings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.errors import ConfigError
from fedalc.labels.collection.identity import make_hasher
from fedalc.methods.fedavg import FedAvgFixed
from fedalc.models.class_embeddings import codeword_rows


class FedUV(FedAvgFixed):
    """The rows of W are codewords of ±1, divided by √D. The loss of a pair is max(0, 1 - s)."""

    help = "averaging with secret codewords as fixed class embeddings"
    use_when = "If clients must not know the class embeddings of others"
    colour = "#3333FF"  # bright blue
    secret_rows = True
    shards_rows = False
    ignores = {"client.margin": {}, "embeddings.start": {}}
    defaults = {"embeddings": {"start": "codewords"}}

    @classmethod
    def check(cls, settings: Experiment) -> None:
        if settings.client.loss != "hinge":
            raise ConfigError(f"{settings.method} has a loss of its own, max(0, 1 - s): leave it out", "client.loss")

    def start(self, generator: torch.Generator) -> Tensor:
        settings, secret = self.settings, None
        if settings.collection.key is not None:
            secret = make_hasher(settings.collection).secret(f"codewords\0{settings.seed}")
        dim, dtype = settings.encoder.dim, getattr(torch, settings.dtype)
        return codeword_rows(self.label_count, dim, generator, dtype, secret=secret)

    def loss(self, scores: Tensor, lengths: Tensor, labels: Tensor, instances: Tensor) -> Tensor:
        return (1 - scores).clamp(min=0)
