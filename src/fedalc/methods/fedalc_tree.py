"""Trees of labels, in one round: clusters of labels, clusters within these, and weights of each label in its own.

With many more labels than axes no class embeddings keep labels apart. So this method asks one question after another:
in which clusters does a record have labels, in which clusters of these, and which labels of the last? Each answer is
ridge regression over the records of one cluster's labels, and follows exactly from sums over positive-only clients
(docs/many-labels.md), as a cluster is a smaller problem of the same kind: an owner counts 1/m of a record, where m is
the number of the record's labels in the cluster. A label's score is the mean over a few trees.

What client u sends: Σ_j x_j; then for all labels, and for the cluster of its label in each level of each tree,
Σ_j x_j x_jᵀ/m_j and Σ_j x_j/m_j. The server tells it these m of each of its records. Each G says as much about the
client's records as that of fedalc-oneshot: the records up to a rotation (docs/exact.md, "What the sums reveal"). The
server also needs the label sets, by pseudonym, to know m in a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csc_matrix, diags, hstack
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import parsed_options
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

OF_CLUSTERS = ("trees", "clusters", "levels", "clusters_from", "cluster_penalty", "cluster_weight", "beam")
Penalty = Annotated[float, Field(gt=0, lt=1e6)]
Weight = Annotated[float, Field(ge=0, le=100)]


@dataclass
class Growth:
    """A tree that is solved: where its columns of θ go, and what they explain of how many records."""

    theta: Tensor
    tree: np.ndarray  # level × label: the column of θ
    sums_of: SumsOf
    explained: float = 0.0
    records: float = 0.0


class FedALCTree(FedAvgFixed):
    """A column of θ scores a cluster, row u of W has ones for the clusters of label u, and `columns` has weights of
    label u, in each tree, for the features that its own records have.

        θ of a cluster's parts  = (G + cluster_penalty·I)⁻¹ [Σ x over the records of each part]
        column u                = a_u (G[F_u, F_u] + ridge·I)⁻¹ b_u[F_u]

    G = Σ x xᵀ over the records of the cluster's labels, or of u's cluster in the last level.
    """

    class Options(Settings):
        trees: Count = 3
        """Trees, each from another random start. The score of a label is the mean of theirs."""
        clusters: Count = 1024
        """Clusters in the last level of a tree: a power of two, and at most half as many as labels."""
        levels: Annotated[int, Field(ge=1, le=8)] = 2
        """Levels of clusters above the labels, each with as many parts to a cluster."""
        clusters_from: Literal["features", "correlations", "both", "random"] = "features"
        """What labels of a cluster have in common. features: the mean of their records. correlations: the labels that
        they occur with (the paper's idea). both: one beside the other. random: nothing, to compare with."""
        cluster_penalty: Penalty = 1.0
        """Penalty of the regression to clusters. For the labels of a cluster it is server.ridge."""
        cluster_weight: Weight = 0.7
        """Weight of log P(cluster) of each level in a label's score, beside log P(label | cluster)."""
        beam: Count = 40
        """Clusters whose labels are ranked for a record: the best of the first tree."""
        nearness: Weight = 2.0
        """Weight of the cosine between a record and the mean of a label's records, in the label's score."""
        steps: Count = 12
        """Steps of conjugate gradients, for each regression."""

    help = "trees of label clusters, in one round, for more labels than axes"
    use_when = "Rows of features and thousands of labels: no label shares an axis with another"
    family = "ours"
    colour = "#005F73"  # petrol
    one_round = True
    sums_by_cluster = True
    shards_rows = False
    unit_rows = False  # before the round there are no clusters
    encoders = ("linear",)
    ignores = {"embeddings.start": {}, "encoder.dim": {}}
    defaults = {
        "rounds": 1,
        "encoder": {"name": "linear", "start": "zero", "features": "unit", "output": "raw"},
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
    def dim_for(cls, settings: Experiment, labels: int) -> int:
        """A column of θ for each cluster of each level and tree."""
        options = parsed_options(settings)
        assert isinstance(options, FedALCTree.Options)
        trees, sizes = cls.shape(options, labels)
        return trees * sum(sizes)

    @classmethod
    def shape(cls, options: FedALCTree.Options, labels: int) -> tuple[int, list[int]]:
        """Return the number of trees, and of clusters in each level. Clusters are halves of halves: powers of two."""
        halvings = max(1, min(options.clusters, labels // 2)).bit_length() - 1
        sizes = {1 << -(-halvings * level // options.levels) for level in range(1, options.levels + 1)}
        return options.trees, sorted(sizes)

    def start(self, generator: torch.Generator) -> Tensor:
        """No label is in a cluster yet."""
        return torch.zeros(self.label_count, self.settings.encoder.dim, dtype=getattr(torch, self.settings.dtype))

    def fill_clusters(self, model: Model, sums_of: SumsOf) -> float:
        labels, options = np.flatnonzero(self._counts), self._options
        trees, sizes = self.shape(options, self.label_count)
        whole = sums_of(labels)
        model.theta[0].zero_()
        model.W.zero_()
        columns, explained, records = [], 0.0, 0.0
        for number in range(trees):
            tree = self._tree(number, sizes, whole.cross, labels)
            model.W[labels.repeat(len(sizes)), tree[:, labels].T.ravel()] = 1
            grown = Growth(model.theta[0], tree, sums_of)
            columns.append(self._grow(grown, whole, labels, 0))
            explained, records = explained + grown.explained, records + grown.records
        model.columns = LabelColumns.of(
            columns,
            (len(model.theta[0]), self.label_count),
            self.label_weights.log(),
            Weights(options.cluster_weight, options.nearness, options.beam),
            sizes,
        )
        return 1 - explained / records

    def _tree(self, number: int, sizes: Sequence[int], cross: csc_matrix, labels: np.ndarray) -> np.ndarray:
        """Return the column of θ for each level and label."""
        lowest = np.zeros(self.label_count, dtype=np.int64)
        lowest[labels] = self.clusters(cross, labels, sizes[-1], number)
        first = number * sum(sizes) + np.cumsum([0, *sizes[:-1]])
        return np.stack([lowest // (sizes[-1] // size) + start for size, start in zip(sizes, first, strict=True)])

    def _grow(self, grown: Growth, sums: ClusterSums, labels: np.ndarray, level: int) -> Entries:
        """Solve for the parts of the cluster that has these labels and sums, and for all within. Returns the labels'
        columns."""
        if level == len(grown.tree):
            return self._own_columns(sums, labels)
        options, columns = self._options, []
        parts = np.unique(grown.tree[level, labels])
        targets = sums.total.new_zeros(len(sums.features), len(parts))
        for at, part in watched("clusters", list(enumerate(parts)), len(parts)) if level == 0 else enumerate(parts):
            own = labels[grown.tree[level, labels] == part]
            below = sums if len(parts) == 1 else grown.sums_of(own)
            targets[np.searchsorted(sums.features, below.features), at] = below.total
            grown.records += below.records
            columns.append(self._grow(grown, below, own, level + 1))
        solved = sums.solve(targets, options.cluster_penalty, options.steps)
        grown.theta[torch.from_numpy(sums.features).unsqueeze(1), torch.from_numpy(parts)] = solved.to(grown.theta)
        grown.explained += (solved * targets).sum().item()
        return Entries.joined(columns)

    def clusters(self, cross: csc_matrix, labels: np.ndarray, count: int, tree: int) -> np.ndarray:
        """Return the cluster of each of these labels, whose Σ x are the columns of `cross`."""
        kind, random = self._options.clusters_from, numpy_generator(self.settings.seed, "clusters", tree)
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
    ignores = {**FedALCTree.ignores, **{f"options.{name}": {} for name in OF_CLUSTERS}}

    @classmethod
    def shape(cls, options: FedALCTree.Options, labels: int) -> tuple[int, list[int]]:
        return 1, [1]
