"""Two Gaussians per direction, in one round: PLDA, the two-covariance model of speaker verification, from sums.

A person's mean y is normal around μ with covariance B, and its records x are normal around y with covariance S. The
score of a claim is the log of how much likelier x is as a further record of that person, given the n records of its
enrolment, than as the record of somebody whom nobody knows. So a stranger's record, far from everyone, gets low scores,
which no softmax and no regression promises.

All of it follows from the sums of fedalc-oneshot, with a constant column: Σ x xᵀ over everyone's records, and each
person's Σ x and n. S is what Σ x xᵀ has beside the means, so nobody needs negatives, or another person's records.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import Settings, Share
from fedalc.errors import ConfigError
from fedalc.methods.base import ClientSums
from fedalc.methods.fedavg import FedAvgFixed
from fedalc.models.encoders import SparseRows
from fedalc.models.encoders.squares import Squares, joined
from fedalc.models.model import Model

SMALLEST = 1e-6  # of a variance between persons, where it is 1 within


class FedALCPlda(FedAvgFixed):
    """In the directions of z (`squares`) S is 1 and B is diagonal, b. With C = 1 / (1/b + n), the variance of y that is
    left after n records, and m = n C z̄, the score is Σ_k of

        log N(z; m, 1 + C) - log N(z; 0, 1 + b) = ½ log((1 + b) / (1 + C)) - ½ (z - m)² / (1 + C) + ½ z² / (1 + b)

    which is a row of W times [z, z², 1].
    """

    class Options(Settings):
        shrinkage: Share = 0.5
        """How much of the covariance within persons is replaced by a multiple of the identity with the same trace."""

    help = "likelihood ratio of two Gaussian models (PLDA), in one round, for verification"
    use_when = "Verification with embeddings of a pretrained network: the best against strangers"
    family = "ours"
    colour = "#FF8C69"  # salmon
    one_round = True
    shards_rows = False
    unit_rows = False
    secret_rows = True  # a row shows the mean of its person's records
    encoders = ("squares",)
    widest = 8192  # it takes the eigenvectors of features × features numbers
    enough_persons = 20  # docs/verification.md has what it does with fewer
    ignores = {"embeddings.start": {}, "server.ridge": {}}
    defaults = {
        "rounds": 1,
        "encoder": {"name": "squares", "features": "unit", "constant": 1.0, "output": "raw"},
        "client": {"loss": "square", "set_size": "ignored"},
        "server": {"weights": "samples", "weight_decay": 0.0},
        "selection": {"every": 1},
    }

    @classmethod
    def check(cls, settings: Experiment) -> None:
        if settings.embeddings.secret or settings.secure_sums.on or settings.privacy.covers_records:
            setting = "embeddings.secret" if settings.embeddings.secret else "privacy.mechanism"
            setting = "secure_sums.on" if settings.secure_sums.on else setting
            raise ConfigError(
                f"{settings.method} needs each person's own sum at the server; use fedalc-oneshot, or leave it out",
                setting,
            )
        if settings.compression.up != "full":
            raise ConfigError(f"{settings.method} counts records by its sums, exactly; leave it out", "compression.up")
        if settings.encoder.name not in cls.encoders:
            raise ConfigError(f"{settings.method} has an encoder of its own, squares; leave it out", "encoder.name")
        if settings.client.set_size != "ignored" or settings.client.label_power > 0:
            raise ConfigError(
                f'{settings.method} uses no label sets: set_size = "ignored" and label_power = 0', "client.set_size"
            )

    @classmethod
    def dim_for(cls, settings: Experiment, labels: int) -> int:
        """k directions need D = 2k + 1, and the means of C persons differ in C - 1 directions at most."""
        return max(3, min(settings.encoder.dim, 2 * labels - 1))

    def start(self, generator: torch.Generator) -> Tensor:
        return torch.zeros(self.label_count, self.settings.encoder.dim, dtype=getattr(torch, self.settings.dtype))

    def summed_rows(self, model: Model) -> Tensor:
        """An axis for each label: column u of `cross` is then label u's own sum."""
        return torch.eye(self.label_count, dtype=model.W.dtype, device=model.W.device)

    def fill(self, model: Model, sums: ClientSums) -> float:
        encoder = model.encoder
        assert isinstance(encoder, Squares) and isinstance(self.options, FedALCPlda.Options)
        gram, cross = sums.gram.double(), sums.cross.double()
        directions, between = two_covariances(gram, cross, encoder.between.shape[0], self.options.shrinkage)
        encoder.embedding.zero_()
        encoder.between.zero_()
        encoder.embedding[:, : len(between)] = directions.to(encoder.embedding)
        encoder.between[: len(between)] = between.to(encoder.between)
        counts = cross[-1]
        means = (directions.T @ (cross / counts.clamp(min=1))).T
        W = likelihood_rows(means, counts, between, model.W.shape[1], encoder.between.shape[0])
        W[counts == 0] = 0
        model.W.copy_(W.to(model.W))
        return _loss(gram, directions, sums.pairs)


def two_covariances(gram: Tensor, cross: Tensor, most: int, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Return the directions, (features + 1) × k, and the variance between persons in each; within persons it is 1.

    `gram`: Σ [x, 1][x, 1]ᵀ. `cross`: each person's Σ [x, 1], in columns. `most`: of k.
    """
    counts, total = cross[-1], gram[-1, -1]
    present = counts > 0
    sums, counts = cross[:-1, present], counts[present]
    mean, means = gram[:-1, -1] / total, sums / counts
    within = (gram[:-1, :-1] - sums @ means.T) / total
    size = len(within)
    within = (1 - shrinkage) * within + shrinkage * within.diagonal().sum() / size * torch.eye(size).to(within)
    apart = means - mean[:, None]
    values, vectors = torch.linalg.eigh(within)
    keep = values > 1e-10 * values[-1].clamp(min=1e-30)  # without shrinkage there may be directions without variance
    whiten = vectors[:, keep] / values[keep].sqrt()
    left, lengths, _ = torch.linalg.svd(whiten.T @ apart, full_matrices=False)
    k = max(1, min(most, len(counts) - 1, left.shape[1]))
    A = whiten @ left[:, :k]
    between = (lengths[:k].square() / len(counts)).clamp(min=SMALLEST)
    return torch.cat([A, -(mean @ A)[None]]), between


def likelihood_rows(means: Tensor, counts: Tensor, between: Tensor, dim: int, width: int) -> Tensor:
    """Return rows of W, from each person's mean of z and number of records. `width`: the encoder's k."""
    left_over = 1 / (1 / between + counts[:, None])  # C
    expected = left_over * counts[:, None] * means  # m
    inside, outside = 1 / (1 + left_over), 1 / (1 + between)
    constant = 0.5 * (inside.log() - outside.log() - inside * expected.square()).sum(1, keepdim=True)
    first, squared = (
        torch.nn.functional.pad(part, (0, width - part.shape[1]))
        for part in (inside * expected, 0.5 * (outside - inside))
    )
    return joined(first, squared, constant, dim)


def row_of_new_person(model: Model, batch: SparseRows) -> Tensor:
    """Return the row of a person who is enrolled afterwards. Mean and covariances stay as they are."""
    encoder, W = model.encoder, model.W
    assert isinstance(encoder, Squares)
    with torch.no_grad():
        mean = encoder.map(batch).double().mean(0, keepdim=True)
    counts, spread = mean.new_full((1,), len(batch)), encoder.between.detach().double().clamp(min=1e-12)
    return likelihood_rows(mean, counts, spread, W.shape[1], len(spread)).to(W)


def _loss(gram: Tensor, directions: Tensor, pairs: int) -> float:
    """Return the mean of z² over all records and directions: it says how far records spread beside persons' 1."""
    return float((directions * (gram @ directions)).sum() / (pairs * directions.shape[1]))
