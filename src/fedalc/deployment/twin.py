"""What a deployment's result is compared with: the same training in one process, by engine `clients`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Split
from fedalc.data.federation import Federation
from fedalc.deployment.flower.party import instance_keys
from fedalc.engines import make_engine
from fedalc.labels.collection.hashing import Hasher, canonical_features, features_identity
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import byte_order
from fedalc.models.encoders import scale_rows
from fedalc.models.model import Model
from fedalc.training.federated import FederatedTraining, begin_training, knowledge_for


def in_one_process(
    settings: Experiment,
    train: Split,
    names: Sequence[str],
    key: Path | str,
    run: str = "",
    owner: np.ndarray | None = None,
) -> FederatedTraining:
    """Labels in the order of their pseudonyms, as the server has them, and instances' keys as the parties have them.
    `owner`: whose each label is, in that order (`Roster.owner`); without, each is a party of its own."""
    settings = settings.model_copy(update={"engine": "clients"})
    hasher = Hasher("hmac-sha256", Key.read(key), run=run)
    held = np.flatnonzero(train.labels.getnnz(axis=0))
    order = held[byte_order(hasher.labels([names[label] for label in held.tolist()]))]
    train = Split(train.features, train.labels[:, order])
    train = train.rows(np.flatnonzero(train.labels.getnnz(axis=1)))
    digests = hasher.instances(canonical_features(train.features), features_identity("content", train.features))
    keys = instance_keys(hasher, digests, settings.client.sample)
    features = scale_rows(train.features, settings.encoder.features)
    federation = Federation(features, train.labels, keys=keys, parties=owner)
    return begin_training(
        settings, federation, partial(make_engine, settings, federation), knowledge_for(settings, train)
    )


def model_in_one_process(
    settings: Experiment,
    train: Split,
    names: Sequence[str],
    key: Path | str,
    run: str = "",
    owner: np.ndarray | None = None,
) -> Model:
    """After all rounds."""
    training = in_one_process(settings, train, names, key, run, owner)
    for _ in range(settings.rounds):
        training.run_round()
    return training.averaged_model()
