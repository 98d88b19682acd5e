"""Where a search tries settings: on a split of train in this process, or elsewhere (`deployment.flower.search`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Split
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.evaluation.evaluate import check_map_affordable, evaluate
from fedalc.evaluation.metrics import DEEPEST, Ranked, all_metrics
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.models.class_embeddings import are_axes
from fedalc.models.column_scoring import make_scorer
from fedalc.models.encoders import make_batch
from fedalc.models.model import Model
from fedalc.models.scoring import AT_ONCE
from fedalc.training.federated import FederatedTraining, knowledge_for, simulated


class Part(ABC):
    """Records to train on, and others to judge by."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[FederatedTraining, Sums]] = {}  # by kind of features

    @property
    @abstractmethod
    def counts(self) -> np.ndarray:
        """The number of records of each label to train on."""

    @abstractmethod
    def begin(self, settings: Experiment, traffic: Ledger) -> FederatedTraining:
        """Return a training before its first round. Bytes of the first one are added to `traffic`."""

    @abstractmethod
    def judge(
        self, training: FederatedTraining, powers: Sequence[float] | None, traffic: Ledger
    ) -> list[dict[str, float]]:
        """Return the metrics on the records to judge by, for each label power, which weighs the labels' scores. None:
        without weights."""

    def weightings(self, powers: Sequence[float], offset: float) -> list[Tensor]:
        """Return the weights of the labels' scores for each label power: with axes, that is all that a power does."""
        counts = torch.from_numpy(self.counts.astype(np.float64)).clamp(min=1)
        weights = [(counts + offset) ** -power for power in powers]
        return [weight / weight.max() for weight in weights]


class SplitPart(Part):
    """One split of train, in this process."""

    def __init__(self, train: Split, held_out: Split, label_names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.train = train
        self.held_out = held_out
        self.label_names = label_names
        self._knowledge: list[LabelKnowledge | None] = []

    @property
    def counts(self) -> np.ndarray:
        return np.asarray(self.train.in_one_place.labels.getnnz(axis=0))

    def begin(self, settings: Experiment, traffic: Ledger) -> FederatedTraining:
        if not self._knowledge:
            self._knowledge = [knowledge := knowledge_for(settings, self.train, self.label_names)]
            if knowledge is not None:
                traffic.add(Ledger(knowledge.bytes_down, knowledge.bytes_up))
        return simulated(settings, self.train, self._knowledge[0])

    def judge(
        self, training: FederatedTraining, powers: Sequence[float] | None, traffic: Ledger
    ) -> list[dict[str, float]]:
        """Each client that has such records receives θ, and sends the hits and gains of its label at each depth, for
        each weighting."""
        offset = training.settings.client.label_offset
        weights: Sequence[Tensor | None] = [None] if powers is None else self.weightings(powers, offset)
        top = _best_labels(training.model, training.held, self.held_out, weights)
        clients = int((self.held_out.labels.getnnz(axis=0) > 0).sum())
        traffic.add(Ledger(clients * payload_bytes(training.model.theta), clients * 16 * DEEPEST * len(weights)))
        more = self._mean_precision(training) if training.settings.selection.metric == "mAP" else {}
        return [all_metrics(Ranked(labels, self.held_out.labels), with_scores=False) | more for labels in top]

    def _mean_precision(self, training: FederatedTraining) -> dict[str, float]:
        """Return mAP, which is the same for all weightings: each label ranks records by its own scores. Parties with
        positives only cannot count it, so it is for simulations."""
        check_map_affordable(self.held_out.labels)
        found = evaluate(training.model, self.held_out, training.held, with_map=True)
        return {"mAP": found["mAP"]}


@torch.no_grad()
def _best_labels(model: Model, held: np.ndarray, split: Split, weights: Sequence[Tensor | None]) -> list[np.ndarray]:
    """Return the best labels of each instance, for each weighting of the scores."""
    if model.columns is not None:
        return [make_scorer(model, split.features, held).top(min(DEEPEST, int(held.sum())))[0].numpy()]
    W, absent = model.W, torch.from_numpy(~held).to(model.W.device)
    k = min(DEEPEST, int(held.sum()))
    found: list[list[np.ndarray]] = [[] for _ in weights]
    axis = W.argmax(1) if are_axes(W) else None
    for start in range(0, len(split), AT_ONCE):
        features = split.features[start : start + AT_ONCE]
        g = model.encoder(make_batch(features, np.zeros(features.shape[0]), W.dtype, W.device))
        scores = g @ W.T if axis is None else g[:, axis]
        for place, weight in enumerate(weights):
            weighted = scores if weight is None else scores * weight.to(scores)
            found[place].append(weighted.masked_fill(absent, -torch.inf).topk(k).indices.cpu().numpy())
    return [np.concatenate(parts) for parts in found]
