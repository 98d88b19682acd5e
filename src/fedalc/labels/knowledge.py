"""What the server knows about the labels, and with which privacy.

Label sets are collected under keys. Then they are used exactly, noised once (`counts`), or kept for training steps that
are noised one by one (`gradients`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import PrivacySettings
from fedalc.core import distributed
from fedalc.core.seeds import derived_seed
from fedalc.data.dataset import Split
from fedalc.data.federation import numbered
from fedalc.errors import ConfigError, FedalcError, either_setting
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.identity import SharedEncoder, make_hasher
from fedalc.labels.collection.join import Joined
from fedalc.labels.collection.psi import intersect
from fedalc.labels.collection.results import Collected
from fedalc.labels.collection.simulate import Collection, collect
from fedalc.labels.collection.sums import SetSize, count
from fedalc.labels.correlations import Correlations, LabelCounts
from fedalc.labels.privacy import (
    PrivateLabelSets,
    Release,
    SecureGenerator,
    counts_epsilon,
    counts_multiplier,
    counts_release,
    epsilon_of,
    label_threshold,
    noise_multiplier,
    noisy_correlations,
    published_correlations,
    spent_epsilon,
    sums_multiplier,
)
from fedalc.labels.privacy.ledger import Account, Charge

DISCRETE = "discrete Gaussian"
LABEL_SET = "one instance's label set, in what the server takes from label correlations"
WHOLE_RECORD = (
    "one record with all its features and labels, in the model and the noised sums it comes from; not from the server "
    "that joins digests of records, nor from owners of the same record"
)
SEEDED = "the noise follows from the seed: anyone who knows the seed can remove it (privacy.noise = 'seeded')"
CONTINUOUS = (
    "an earlier version of fedalc noised these counts with fractional noise, which shows which pairs of labels occur: "
    "treat the counts as disclosed (docs/privacy.md)"
)


@dataclass
class LabelKnowledge:
    """`labels` is what a method learns from. The other fields say how it was collected and what privacy was spent."""

    labels: Correlations | LabelCounts | PrivateLabelSets
    set_sizes: np.ndarray | None = None  # m of every instance, if the server tells the clients
    holders: np.ndarray | None = None  # how many parties have each (instance, label) pair, if the server tells them
    bytes_up: int = 0
    bytes_down: int = 0
    collection: dict[str, Any] = field(default_factory=dict)
    noise_multiplier: float | None = None

    @property
    def looks(self) -> int:
        """How often the label sets were accessed with noise so far."""
        if isinstance(self.labels, PrivateLabelSets):
            return self.labels.looks
        return 0 if self.noise_multiplier is None else 1

    def tensors(self) -> dict[str, Tensor]:
        """Return noised counts for a checkpoint: drawing them again would spend ε again."""
        if not isinstance(self.labels, Correlations) or self.noise_multiplier is None:
            return {}
        return self.labels.tensors()

    def facts(self) -> dict[str, Any]:
        return {
            "looks": self.looks,
            "noise_multiplier": self.noise_multiplier,
            "instances": self.labels.instances if isinstance(self.labels, Correlations) else None,
            "file": self.collection.get("sha256"),
        }

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Restore the noised counts, or the noise level of the steps, from a checkpoint."""
        if facts["file"] != self.collection.get("sha256"):
            raise FedalcError(f"{self.collection['file']}: the correlations have changed since this run began")
        self.noise_multiplier = facts["noise_multiplier"]
        if isinstance(self.labels, PrivateLabelSets):
            self.labels.looks, self.labels.noise_multiplier = facts["looks"], facts["noise_multiplier"]
        elif self.noise_multiplier is not None:
            self.labels = Correlations.restored(tensors, facts["instances"])


def learn_labels(
    settings: Experiment,
    train: Split,
    looks: int,
    names: Sequence[str] | None = None,
    phase: str = "fit",
    needed: np.ndarray | None = None,
    hasher: Hasher | None = None,
) -> LabelKnowledge:
    """Collect the labels by simulation or read them from a file, and protect them as the settings say.

    `looks` is how often the label sets may be accessed with noise, over all phases of the run. `needed` marks the
    labels that a file must have (default: those with an instance in `train`). `hasher`: that of real parties, on which
    collisions in sums depend.
    """
    names = [str(label) for label in range(train.labels.shape[1])] if names is None else list(names)
    if settings.collection.correlations is not None:
        needed = train.labels.getnnz(axis=0) > 0 if needed is None else needed
        return _from_file(settings, Path(settings.collection.correlations), names, needed)
    shared = SharedEncoder(settings.encoder, settings.seed)
    parties = numbered(train.parties) if settings.clients == "parties" and train.parties is not None else None
    if parties is not None and settings.collection.identity == "record":
        raise ConfigError(
            'the numbers of rows mean nothing to another party; use "content": equal records are the same',
            "collection.identity",
        )
    if settings.collection.by != "join":
        senders = numbered(train.users) if settings.clients == "users" and train.users is not None else parties
        if settings.collection.by == "sums":
            return _by_sums(settings, train, names, shared, senders, hasher)
        return _by_psi(settings, train, shared, senders, hasher)
    collection = collect(settings.collection, train.features, train.labels, names, shared, parties)
    return protected(settings, collection, looks, phase)


def _by_sums(
    settings: Experiment,
    train: Split,
    names: Sequence[str],
    shared: SharedEncoder,
    senders: np.ndarray | None,
    hasher: Hasher | None,
) -> LabelKnowledge:
    """Return what sums over the clients show: n, and m or its mean, as the settings need it."""
    set_size: SetSize = "ignored" if settings.client.loss == "hinge" else settings.client.set_size
    counted = count(settings.collection, train.features, train.labels, names, shared, set_size, senders, hasher=hasher)
    holders = counted.holders if settings.clients == "parties" else None  # a record at several users counts for each
    known = LabelCounts(counted.counts, counted.mean_set_size)
    up, down = counted.bytes_up, counted.bytes_down
    return LabelKnowledge(known, counted.set_sizes, holders, up, down, counted.facts)


def _by_psi(
    settings: Experiment, train: Split, shared: SharedEncoder, senders: np.ndarray | None, hasher: Hasher | None
) -> LabelKnowledge:
    """Return n and c, from intersections of each two labels."""
    known, sent, facts = intersect(settings.collection, train.features, train.labels, shared, senders, hasher)
    return LabelKnowledge(known, bytes_up=sent, bytes_down=sent, collection=facts)  # the server passes messages on


def protected(settings: Experiment, collection: Collection, looks: int, phase: str = "fit") -> LabelKnowledge:
    """Return what the server may learn from the label sets it has joined."""
    privacy = settings.privacy
    if privacy.mechanism is None:
        exact = Correlations.from_label_sets(collection.label_sets)
        if not settings.tells_shares:
            return LabelKnowledge(exact, bytes_up=collection.bytes_up, collection=collection.facts)
        return LabelKnowledge(
            exact,
            collection.set_sizes,
            collection.holders,
            collection.bytes_up,
            collection.bytes_down,
            collection.facts,
        )
    z = _multiplier(settings, looks)
    # The number of messages, and so their bytes, would reveal what the noise hides.
    public = {key: value for key, value in collection.facts.items() if key not in ("messages", "instances")}
    if privacy.covers_records:  # nothing that is derived from counts: as if all labels were equally frequent
        count = collection.label_sets.shape[1]
        unknown = Correlations(1, np.ones(count, dtype=np.int64), csr_matrix((count, count), dtype=np.int64))
        return LabelKnowledge(unknown, collection.set_sizes, collection.holders, collection=public, noise_multiplier=z)
    seed = derived_seed(settings.seed, f"label noise {phase}") if privacy.noise == "seeded" else None
    repeatable = seed is not None or distributed.here().count > 1  # all processes must get the same result
    label_sets = _in_fixed_order(collection.label_sets) if repeatable else collection.label_sets
    labels: Correlations | PrivateLabelSets
    if privacy.mechanism == "counts":
        generator = SecureGenerator(distributed.shared_key()) if seed is None else SecureGenerator.seeded(seed)
        labels = noisy_correlations(label_sets, privacy.labels_per_instance, z, generator)
    else:
        labels = PrivateLabelSets(label_sets, privacy, z, seed)
    return LabelKnowledge(labels, collection=public, noise_multiplier=z)


def _from_file(settings: Experiment, path: Path, names: list[str], needed: np.ndarray) -> LabelKnowledge:
    collected = Collected.load(path)
    hasher = make_hasher(settings.collection, collected.protocol.run)
    used, ours = collected.protocol, hasher.protocol(collected.protocol.identity)
    if used.algorithm != ours.algorithm:
        raise ConfigError(f"{path} was made with {used.algorithm}: set the same algorithm", "collection.algorithm")
    if used.key_check != ours.key_check:
        raise ConfigError(f"{path} was made with another key (check value {used.key_check})", "collection.key")
    facts = {"file": str(path), "sha256": collected.checksum, **collected.facts}
    if "privacy" in facts and facts["privacy"].get("distribution") != DISCRETE:
        warnings.warn(f"{path}: {CONTINUOUS}", stacklevel=2)
        facts["privacy"] = facts["privacy"] | {"epsilon": None, "why": CONTINUOUS}
    pseudonyms = hasher.labels(names)
    known = collected.for_labels(pseudonyms)  # refuses a file that has none of these labels
    if missing := [names[label] for label in np.flatnonzero(collected.lacks(pseudonyms) & needed)]:
        _report_missing(settings, path, missing, int(needed.sum()))
        facts["missing_labels"] = len(missing)
    return LabelKnowledge(known, collection=facts)


def _report_missing(settings: Experiment, path: Path, missing: list[str], needed: int) -> None:
    """Refuse or warn, as the settings say: the method treats a label without counts as one that never co-occurs."""
    shown = ", ".join(map(repr, missing[:3])) + (", …" if len(missing) > 3 else "")
    problem = f"{path} has no counts of {len(missing)} of the {needed} labels with training instances ({shown})"
    if settings.collection.missing_labels == "refuse":
        raise ConfigError(
            f"{problem}: collect them too, or treat them as labels that never occur with another: "
            + either_setting("collection.missing_labels", "allow"),
            "collection.correlations",
        )
    warnings.warn(f"{problem}; the method treats them as labels that never occur with another", stacklevel=2)


def _in_fixed_order(label_sets: csr_matrix) -> csr_matrix:
    """Return the label sets sorted by their labels. The join sorts by digest, which changes with the key."""
    sets = [label_sets.indices[a:b].tobytes() for a, b in pairwise(label_sets.indptr)]
    return label_sets[sorted(range(len(sets)), key=sets.__getitem__)]


def _multiplier(settings: Experiment, looks: int) -> float:
    """Return the noise for this many looks at the label sets, in units of the sensitivity."""
    privacy = settings.privacy
    if privacy.mechanism == "counts":
        return counts_multiplier(privacy.epsilon, privacy.delta, max(looks, 1), privacy.labels_per_instance)
    if privacy.covers_records:
        return sums_multiplier(privacy.epsilon, privacy.delta, max(looks, 1))
    return noise_multiplier(privacy.epsilon, privacy.delta, max(looks, 1), privacy.sample_rate)


def _spent(settings: Experiment, multiplier: float, looks: int) -> float:
    """Return the ε that this many looks spend."""
    privacy = settings.privacy
    if privacy.mechanism == "counts":
        return counts_epsilon(multiplier, privacy.delta, max(looks, 1), privacy.labels_per_instance)
    return spent_epsilon(multiplier, privacy.delta, max(looks, 1), _sample_rate(privacy))


def _sample_rate(privacy: PrivacySettings) -> float:
    """Return the share of the records in each look: all of them, but for mechanism `gradients`."""
    return privacy.sample_rate if privacy.mechanism == "gradients" else 1.0


def noised(joined: Joined, epsilon: float, delta: float, labels_per_instance: int, account: Account) -> Collected:
    """Return counts that the server may publish under (ε, δ), noised once with the system's randomness.

    Half of δ is for the noise, half for the list of labels, which has only those with a large noised count.
    """
    half = delta / 2
    for_noise = epsilon + math.log1p(-half)  # see `epsilon_of`
    if for_noise <= 0 < epsilon:
        raise ConfigError(f"{epsilon:g} is too small for a δ of {delta:g}: lower δ", "epsilon")
    z = counts_multiplier(for_noise, half, 1, labels_per_instance)
    least = label_threshold(labels_per_instance, z, half)
    release = replace(counts_release(z, 1, labels_per_instance), selection=half)
    spent = epsilon_of([release], delta)
    account.ledger.add(account.charge("collect server", delta, spent, release), account.budget)
    shown, known = published_correlations(joined.label_sets, labels_per_instance, z, least, SecureGenerator.system())
    facts = {
        "mechanism": "counts",
        "epsilon": epsilon,
        "delta": delta,
        "delta_noise": half,
        "delta_selection": half,
        "label_threshold": least,
        "noise_multiplier": z,
        "distribution": DISCRETE,
        "labels_per_instance": labels_per_instance,
    }
    return Collected(known, joined.pseudonyms[shown], joined.protocol, {"privacy": facts})


def planned_charge(settings: Experiment, account: Account, looks: int, run: Path | None = None) -> Charge:
    """Return the charge for a run with these settings, for all looks that it may take."""
    privacy, what = settings.privacy, f"{settings.method}, {settings.privacy.mechanism}"
    folder = None if run is None else str(run.resolve())
    if privacy.noise == "seeded":
        return account.charge(what, privacy.delta, None, None, noise="seeded", run=folder)
    z = _multiplier(settings, looks)
    if privacy.mechanism == "counts":
        release = counts_release(z, max(looks, 1), privacy.labels_per_instance)
    else:
        release = Release("gaussian", z, max(looks, 1), _sample_rate(privacy))
    return account.charge(what, privacy.delta, _spent(settings, z, looks), release, run=folder)


def privacy_spent(
    settings: Experiment, knowledge: LabelKnowledge | None, planned: int, looks: int
) -> dict[str, Any] | None:
    """Return (ε, δ) of a run for result.json, or None if it did not use labels under differential privacy.

    ε is for all planned looks, because the number of looks taken depends on data without noise. It is None where the
    noise does not protect; then `why` gives the reason.
    """
    privacy = settings.privacy
    if knowledge is not None and "privacy" in knowledge.collection:  # the file's counts already had noise
        return dict(knowledge.collection["privacy"])
    if knowledge is None or knowledge.noise_multiplier is None:
        return None
    spent: dict[str, Any] = {"mechanism": privacy.mechanism, "epsilon": None}
    if privacy.noise == "seeded":
        spent["why"] = SEEDED
    elif isinstance(knowledge.labels, Correlations) and knowledge.labels.counts.dtype.kind == "f":
        spent["why"] = CONTINUOUS
    else:
        spent["epsilon"] = _spent(settings, knowledge.noise_multiplier, planned)
    return spent | {
        "delta": privacy.delta,
        "noise_multiplier": knowledge.noise_multiplier,
        "looks": looks,
        "looks_planned": planned,
        "noise": privacy.noise,
        "protects": WHOLE_RECORD if privacy.covers_records else LABEL_SET,
    }
