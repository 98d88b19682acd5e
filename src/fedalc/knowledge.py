"""What the server knows of the labels, and at what privacy: collected under keys, then used exactly, noised once
(`counts`), or kept for steps that are noised each (`gradients`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.collection.collected import Collected
from fedalc.collection.simulation import SharedEncoder, collect, make_hasher, unambiguous
from fedalc.config import Experiment
from fedalc.correlations import Correlations
from fedalc.data.dataset import Split
from fedalc.privacy import PrivateLabelSets, noise_multiplier, noisy_correlations, spent_epsilon
from fedalc.seeds import derived_seed


@dataclass
class LabelKnowledge:
    """`labels` is what a method gets. The rest says what it took and what was spent."""

    labels: Correlations | PrivateLabelSets
    set_sizes: np.ndarray | None = None  # m of every instance, where clients are told
    bytes_up: int = 0
    bytes_down: int = 0
    collection: dict[str, Any] = field(default_factory=dict)
    noise_multiplier: float | None = None

    @property
    def looks(self) -> int:
        """How often noised figures were taken from the label sets so far."""
        if isinstance(self.labels, PrivateLabelSets):
            return self.labels.looks
        return 0 if self.noise_multiplier is None else 1

    def tensors(self) -> dict[str, Tensor]:
        """Counts that were noised, for a checkpoint: drawn again they would cost their ε again."""
        if not isinstance(self.labels, Correlations) or self.noise_multiplier is None:
            return {}
        known, c = self.labels, self.labels.together
        arrays = {"counts": known.counts, "indptr": c.indptr, "indices": c.indices, "together": c.data}
        return {f"labels.{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def facts(self) -> dict[str, Any]:
        return {"looks": self.looks, "noise_multiplier": self.noise_multiplier}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Go on with what was drawn before: the noised counts, or the noise level of the steps."""
        self.noise_multiplier = facts["noise_multiplier"]
        if isinstance(self.labels, PrivateLabelSets):
            self.labels.looks, self.labels.noise_multiplier = facts["looks"], facts["noise_multiplier"]
        elif self.noise_multiplier is not None:
            array = {name: tensors[f"labels.{name}"].numpy() for name in ("counts", "indptr", "indices", "together")}
            size = len(array["counts"])
            together = csr_matrix((array["together"], array["indices"], array["indptr"]), shape=(size, size))
            self.labels = Correlations(self.labels.instances, array["counts"], together)


def learn_labels(
    settings: Experiment, train: Split, looks: int, names: Sequence[str] | None = None, phase: str = "fit"
) -> LabelKnowledge:
    """Collect, in simulation or from a file, and protect as the settings ask.

    `looks` is how often noised figures may be taken from label sets, over all phases of the run.
    """
    names = [str(label) for label in range(train.labels.shape[1])] if names is None else names
    if settings.collection.correlations is not None:
        collected = Collected.load(settings.collection.correlations)
        known = collected.for_labels(make_hasher(settings.collection).labels(unambiguous(names)))
        return LabelKnowledge(known, collection={"file": settings.collection.correlations, **collected.facts})
    shared = SharedEncoder(settings.encoder, settings.seed)
    collection = collect(settings.collection, train.features, train.labels, names, shared)
    privacy = settings.privacy
    if privacy.mechanism is None:
        exact = Correlations.from_label_sets(collection.label_sets)
        told = settings.client.loss == "square" and settings.client.set_size == "exact"
        sizes, bytes_down = (collection.set_sizes, collection.bytes_down) if told else (None, 0)
        return LabelKnowledge(exact, sizes, collection.bytes_up, bytes_down, collection.facts)
    rate = privacy.sample_rate if privacy.mechanism == "gradients" else 1.0
    z = noise_multiplier(privacy.epsilon, privacy.delta, max(looks, 1), rate)
    labels: Correlations | PrivateLabelSets
    if privacy.mechanism == "counts":
        noise = _noise(settings, phase)
        labels = noisy_correlations(collection.label_sets, privacy.labels_per_instance, z, noise)
    else:
        labels = PrivateLabelSets(collection.label_sets, privacy, z)
    return LabelKnowledge(labels, None, collection.bytes_up, 0, collection.facts, z)


def noised(
    collected: Collected, label_sets: csr_matrix, epsilon: float, delta: float, labels_per_instance: int
) -> Collected:
    """What the server may hand on under (ε, δ): the counts, noised once, from the system's randomness."""
    z = noise_multiplier(epsilon, delta, 1)
    known = noisy_correlations(label_sets, labels_per_instance, z, np.random.default_rng())
    spent = {"mechanism": "counts", "epsilon": epsilon, "delta": delta, "noise_multiplier": z}
    facts = {**collected.facts, "privacy": {**spent, "labels_per_instance": labels_per_instance}}
    return Collected(known, collected.pseudonyms, collected.protocol, facts)


def _noise(settings: Experiment, phase: str) -> np.random.Generator:
    if settings.privacy.noise == "system":
        return np.random.default_rng()
    return np.random.default_rng(derived_seed(settings.seed, f"counts {phase}"))


def privacy_spent(settings: Experiment, knowledge: LabelKnowledge | None, looks: int) -> dict[str, Any] | None:
    """(ε, δ) of a finished run, for result.json. None where no label was looked at under differential privacy."""
    privacy = settings.privacy
    if privacy.mechanism is None or knowledge is None or knowledge.noise_multiplier is None:
        return None
    rate = privacy.sample_rate if privacy.mechanism == "gradients" else 1.0
    return {
        "mechanism": privacy.mechanism,
        "epsilon": spent_epsilon(knowledge.noise_multiplier, privacy.delta, looks, rate) if looks else 0.0,
        "delta": privacy.delta,
        "epsilon_asked": privacy.epsilon,
        "noise_multiplier": knowledge.noise_multiplier,
        "looks": looks,
        "noise": privacy.noise,
        "protects": "one instance's label set, in what the class embeddings learn from label correlations",
    }
