"""The reference for a deployment: the same training in one process, with engine `clients`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Split
from fedalc.data.federation import Federation, form_clients
from fedalc.deployment.flower.party import instance_keys
from fedalc.engines import make_engine
from fedalc.labels.collection.hashing import Hasher, canonical_features, features_identity
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import byte_order
from fedalc.models.encoders import scale_rows
from fedalc.models.model import Model
from fedalc.training.federated import FederatedTraining, begin_training, counted_parts, knowledge_for


def in_one_process(
    settings: Experiment,
    train: Split,
    names: Sequence[str],
    key: Path | str,
    run: str = "",
    owner: np.ndarray | None = None,
) -> FederatedTraining:
    """Return a training with labels in the order of their pseudonyms, as at the server, and the parties' instance keys.
    `owner`: the party of each label, in that order (`Roster.owner`); by default each label is its own party. If `train`
    names the party of each instance, labels may be at several parties, whose names sort as they do in the roster."""
    settings = settings.model_copy(update={"engine": "clients"})
    hasher = Hasher("hmac-sha256", Key.read(key), run=run)
    used = np.flatnonzero(train.labels.getnnz(axis=0))
    order = used[byte_order(hasher.labels([names[label] for label in used.tolist()]))]
    train = Split(train.features, train.labels[:, order], parties=train.parties)
    train = train.rows(np.flatnonzero(train.labels.getnnz(axis=1)))
    digests = hasher.instances(canonical_features(train.features), features_identity("content", train.features))
    keys = instance_keys(hasher, digests, settings.client.sample)
    features = scale_rows(train.features, settings.encoder.features)
    counting = Hasher("hmac-sha256", Key.read(key), run="" if settings.collection.by == "sums" else run)
    knowledge = knowledge_for(settings, train, [names[label] for label in order.tolist()], hasher=counting)
    if train.parties is None:
        federation = Federation(features, train.labels, keys=keys, parties=owner)
    else:
        clients = form_clients(replace(train, features=features), settings.clients, counted_parts(knowledge))
        federation = replace(clients, keys=keys)
    return begin_training(settings, federation, partial(make_engine, settings, federation), knowledge, hasher)


def model_in_one_process(settings: Experiment, *arguments: Any) -> Model:
    """Return the model after all rounds. Arguments as for `in_one_process`."""
    training = in_one_process(settings, *arguments)
    for _ in range(settings.rounds):
        training.run_round()
    return training.averaged_model()
