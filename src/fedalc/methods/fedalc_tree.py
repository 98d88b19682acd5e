"""A tree of labels, in one round: clusters of labels, and weights of each label within its cluster.

With many more labels than axes no class embeddings keep labels apart. So this method has none: a cluster's score is
ridge regression over all records, and a label's score is ridge regression over the records of its cluster's labels.
Both follow exactly from sums over positive-only clients (docs/many-labels.md), as a cluster is a smaller problem of the
same kind: an owner counts 1/m of a record, where m is the number of the record's labels in the cluster.

What client u sends: Σ_j x_j; then Σ_j x_j x_jᵀ/m_j twice, with m over all labels and over those of its cluster, and
Σ_j x_j/m_j for the latter. The server tells it both m of each of its records. Each G says as much about the client's
records as that of fedalc-oneshot: the records up to a rotation (docs/exact.md, "What the sums reveal"). The server also
needs the label sets, by pseudonym, to know m in a cluster.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csc_matrix, diags, hstack
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import Count, Settings
from fedalc.core import distributed
from fedalc.core.blocks import blocks
from fedalc.core.progress_events import watched
from fedalc.core.seeds import numpy_generator
from fedalc.errors import ConfigError
from fedalc.labels.clusters import balanced_clusters, random_clusters, unit_vectors
from fedalc.labels.correlations import Correlations
from fedalc.methods.base import ClusterSums, SumsOf
from fedalc.methods.fedavg import FedAvgFixed
from fedalc.models.label_columns import Entries, LabelColumns, Weights
from fedalc.models.model import Model

Penalty = Annotated[float, Field(gt=0, lt=1e6)]
Weight = Annotated[float, Field(ge=0, le=100)]


class FedALCTree(FedAvgFixed):
    """θ scores the D clusters, row u of W says in which of them label u is, and `columns` has weights of label u for
    the features that its own records have.

        θ          = (Σ x xᵀ + cluster_penalty·I)⁻¹ [Σ x over the records of each cluster]
        column u   = a_u (G[F_u, F_u] + ridge·I)⁻¹ b_u[F_u]      G, b_u: over the records of u's cluster
    """

    class Options(Settings):
        clusters_from: Literal["features", "correlations", "both", "random"] = "features"
        """What labels of a cluster have in common. features: the mean of their records. correlations: the labels that
        they occur with (the paper's idea). both: one beside the other. random: nothing, to compare with."""
        cluster_penalty: Penalty = 1.0
        """Penalty of the regression to clusters. Within clusters it is server.ridge."""
        cluster_weight: Weight = 0.7
        """Weight of log P(cluster) in a label's score, beside log P(label | cluster)."""
        beam: Count = 10
        """Clusters whose labels are ranked for a record."""
        nearness: Weight = 2.0
        """Weight of the cosine between a record and the mean of a label's records, in the label's score."""
        steps: Count = 20
        """Steps of conjugate gradients, for each regression."""

    help = "a tree of label clusters, in one round, for more labels than axes"
    use_when = "Rows of features and thousands of labels: no label shares an axis with another"
    family = "ours"
    colour = "#005F73"  # petrol
    one_round = True
    sums_by_cluster = True
    shards_rows = False
    unit_rows = False  # before the round there are no clusters
    encoders = ("linear",)
    ignores = {"embeddings.start": {}}
    defaults = {
        "rounds": 1,
        "encoder": {"name": "linear", "dim": 256, "start": "zero", "features": "unit", "output": "raw"},
        "client": {"loss": "square", "set_size": "exact", "label_power": 0.2},
        "server": {"weights": "samples", "weight_decay": 0.0, "ridge": 0.5},
        "selection": {"every": 1},
    }

    @classmethod
    def check(cls, settings: Experiment) -> None:
        encoder, collection = settings.encoder, settings.collection
        exact = "use fedalc-oneshot or fedalc-exact"
        for possible, problem, setting in (
            (encoder.name == "linear" and encoder.constant == 0, "is for encoder linear without a constant", "encoder"),
            (settings.client.loss == "square", "solves the square loss", "client.loss"),
            (settings.client.set_size == "exact", "needs the number of labels of each record", "client.set_size"),
            (settings.clients == "labels", "needs a client for each label", "clients"),
            (settings.engine in ("fused", "clients"), "runs on the engines fused and clients so far", "engine"),
            (not settings.secure_sums.on, f"has no secure sums yet; {exact}", "secure_sums.on"),
            (settings.privacy.mechanism is None, f"has no noise on its sums yet; {exact}", "privacy.mechanism"),
            (not settings.embeddings.secret, f"has no class embeddings to keep secret; {exact}", "embeddings.secret"),
            (
                settings.server.least_holders == 1,
                f"does not count holders of features; {exact}",
                "server.least_holders",
            ),
            (collection.by == "join" and collection.correlations is None, "needs label sets from a join", "collection"),
            (settings.task == "classification", "is for classification", "task"),
            (distributed.started_as().count == 1, "runs in one process: start it without torchrun", "method"),
        ):
            if not possible:
                raise ConfigError(f"{settings.method} {problem}", setting)

    @classmethod
    def dim_for(cls, dim: int, labels: int) -> int:
        """As many clusters as `dim` says, but of two labels or more; a power of two, as clusters are halves."""
        return 1 << (max(1, min(dim, labels // 2)).bit_length() - 1)

    def start(self, generator: torch.Generator) -> Tensor:
        """No label is in a cluster yet."""
        return torch.zeros(self.label_count, self.settings.encoder.dim, dtype=getattr(torch, self.settings.dtype))

    def fill_clusters(self, model: Model, sums_of: SumsOf) -> float:
        labels, count, options = np.flatnonzero(self._counts), model.W.shape[1], self._options
        whole = sums_of(labels)
        cluster = self.clusters(whole.cross, labels, count)
        targets, records, columns = whole.total.new_zeros(len(whole.features), count), 0.0, []
        for number in watched("clusters", range(count), count):
            own = labels[cluster == number]
            sums = whole if count == 1 else sums_of(own)
            columns.append(self._own_columns(sums, own))
            targets[np.searchsorted(whole.features, sums.features), number] = sums.total
            records += sums.records
        solved = whole.solve(targets, options.cluster_penalty, options.steps)
        (theta,) = model.theta
        theta.zero_()
        theta[whole.features] = solved.to(theta)
        model.W.zero_()
        model.W[labels, cluster] = 1
        model.columns = LabelColumns.of(
            Entries.joined(columns),
            (len(theta), self.label_count),
            self.label_weights.log(),
            Weights(options.cluster_weight, options.nearness, options.beam),
        )
        return 1 - (solved * targets).sum().item() / records

    def clusters(self, cross: csc_matrix, labels: np.ndarray, count: int) -> np.ndarray:
        """Return the cluster of each of these labels, whose Σ x are the columns of `cross`."""
        kind, random = self._options.clusters_from, numpy_generator(self.settings.seed, "clusters")
        if kind == "random":
            return random_clusters(len(labels), count, random)
        vectors = []
        if kind != "correlations":
            vectors.append(unit_vectors(cross.T.tocsr()))
        if kind != "features":
            known = self._known_counts
            assert isinstance(known, Correlations)
            together = known.together[labels][:, labels] + diags(known.counts[labels].astype(np.float64))
            vectors.append(unit_vectors(together.tocsr()))
        return balanced_clusters(hstack(vectors, format="csr"), count, random)

    def _own_columns(self, sums: ClusterSums, labels: np.ndarray) -> Entries:
        """Solve for the column of each label: features, labels, weights, and the label's mean direction."""
        parts = []
        for block in blocks(
            len(labels), 8 * sums.total.element_size() * len(sums.features), self.settings.memory_budget
        ):
            cross = sums.cross[:, block].tocoo()
            right = torch.from_numpy(cross.toarray())
            solved = sums.solve(right, self.settings.server.ridge, self._options.steps, (right != 0).to(right))
            means = right / right.norm(dim=0).clamp(min=1e-12)
            entries = cross.row, cross.col
            places = sums.features[cross.row], labels[block][cross.col]
            parts.append(Entries(*places, solved[entries].numpy(), means[entries].numpy()))
        return Entries.joined(parts)

    @property
    def _options(self) -> FedALCTree.Options:
        assert isinstance(self.options, FedALCTree.Options)
        return self.options


class FedALCColumns(FedALCTree):
    """The same with one cluster: ridge regression for each label on the features of its own records, among all."""

    help = "sparse weights for each label from the features of its own records, in one round"
    use_when = "Rows of features and up to some thousand labels: no label shares an axis with another"
    colour = "#4B0000"  # dark red
    ignores = {**FedALCTree.ignores, "encoder.dim": {}}

    @classmethod
    def dim_for(cls, dim: int, labels: int) -> int:
        return 1
