"""Four parties with seven labels, the same problem on engine `clients`, and helpers for the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Features, Split
from fedalc.deployment.flower import engine, search, secure_engine, take_census, text_census
from fedalc.deployment.flower.party import held_out
from fedalc.deployment.flower.server_app import app as server_app
from fedalc.deployment.local import write_party
from fedalc.deployment.twin import in_one_process
from fedalc.engines import Engine
from fedalc.engines.base import RoundResult
from fedalc.labels.collection.hashing import Hasher, canonical_features
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import byte_order
from fedalc.models.encoders import Chance
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from fedalc.training.federated import FederatedTraining
from tests.deployment.flower.local_grid import LocalGrid, Tamper
from tests.problems import random_split

Nodes = dict[int, dict[str, Any]]
NAMES = [f"label {u}" for u in range(7)]
OWNED = {101: [0, 4], 7: [1, 2, 3], 55: [5], 9: [6]}  # node → labels
ROUNDS = 3
RUN_ID = "tests"  # the same always, as the key is
SETTINGS: dict[str, Any] = {
    "encoder.name": "mlp",
    "encoder.dim": 6,
    "encoder.embedding": 5,
    "encoder.hidden": [8, 7],
    "encoder.dropout": 0.2,
    "client.learning_rate": 0.5,
    "client.row_learning_rate": 0.8,
    "server.learning_rate": 0.05,
    "server.optimizer": "momentum",
    "server.aggregation": "mean",  # test_robust.py has the others
    "regularizer.lambda": 10.0,
    "regularizer.rate": 0.01,
    "regularizer.neighbours": 2,
    "fixed.steps": 5,
    "fixed.rate": 0.1,
    "hashing.tables": 2,
    "hashing.buckets": 5,
}
LINEAR: dict[str, Any] = {"encoder.name": "linear", "encoder.dim": 8, "encoder.start": "zero", "encoder.output": "raw"}
LINEAR |= {"client.loss": "square"}


def all_different() -> Split:
    """Make every instance different, so that identity `content` distinguishes them like row numbers."""
    split = random_split(50, 20, 7, seed=11)
    kept = np.flatnonzero((split.labels.getnnz(axis=1) > 0) & (split.features.getnnz(axis=1) > 0))
    return split.rows(kept)


def write_parties(folder: Path, train: Split, owned: Mapping[int, list[int]] = OWNED) -> Nodes:
    key = folder / "key"
    Key(bytes(range(7, 47))).write(key)  # the same always: the order of labels, and so what is drawn, depends on it
    nodes = {}
    for node, labels in owned.items():
        data = write_party(folder / f"party {node}", train, labels, [NAMES[u] for u in labels])
        # With encoders this small a few instances often make most of a label's gradient: `fewest` is for test_trust.
        nodes[node] = {"data": str(data), "key": str(key), "client": f"party {node}", "fewest": 1}
    return nodes


def places(key: str, labels: Sequence[int]) -> np.ndarray:
    """Return the positions of these labels in the order of pseudonyms, which is the order of W's rows."""
    order = byte_order(Hasher("hmac-sha256", Key.read(key), run=RUN_ID).labels(NAMES))
    return np.flatnonzero(np.isin(order, labels))


def literal_twin(settings: Experiment, train: Split, key: str) -> FederatedTraining:
    return in_one_process(settings, train, NAMES, key, RUN_ID)


def asked(method: str, settings: dict[str, Any], **config: Any) -> dict[str, Any]:
    lines = "\n".join(f"{key}={value!r}".replace("'", '"') for key, value in settings.items())
    return {
        "method": method, "num-server-rounds": ROUNDS, "set": lines, "held-out-share": 0.0, "wait": 5.0,
        "round-timeout": 5.0, "num-parties": len(OWNED), "run-id": RUN_ID,
        "secure-sums": "off", **config,  # test_secure_sums.py has them on
    }  # fmt: skip


def run(grid: LocalGrid, folder: Path, config: dict[str, Any]) -> TrainedModel:
    server_app(grid, Context(1, 1, {}, RecordDict(), {"run-folder": str(folder), **config}))
    return TrainedModel.load(folder / "model")


@contextmanager
def fails(error: type[Exception]) -> Iterator[None]:
    """Expect a run to end with this error, in one attempt: parties would refuse the others for the same reasons."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine, search, secure_engine, take_census, text_census):
            patch.setattr(module, "ATTEMPTS", 1)
        with pytest.raises(error):
            yield


def overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value!r}".replace("'", '"') for key, value in settings.items()]


class Without:
    """Engine `clients` without some labels in some rounds (round → labels)."""

    def __init__(self, engine: Engine, absent: Mapping[int, np.ndarray]) -> None:
        self.engine, self.absent = engine, absent

    clients_keep_rows = True

    def run(self, model: Model, participants: np.ndarray, chance: Chance, t: int) -> RoundResult:
        kept = participants[~np.isin(participants, self.absent.get(t, ()))]
        return replace(self.engine.run(model, kept, chance, t), heard=len(kept) > 0)


_EXPECTED: dict[str, Model] = {}


def expected(
    method: str, settings: Mapping[str, Any], train: Split, key: str, absent: Mapping[int, list[int]], rounds: int = 3
) -> Model:
    """Return the result of engine `clients` when nodes are absent (round → nodes). Cached."""
    case = repr((method, settings, id(train), key, absent, rounds))
    if case not in _EXPECTED:
        _EXPECTED[case] = _worked_out(method, settings, train, key, absent, rounds)
    return _EXPECTED[case]


def _worked_out(
    method: str, settings: Mapping[str, Any], train: Split, key: str, absent: Mapping[int, list[int]], rounds: int
) -> Model:
    literal_settings = experiment(
        {"method": method, "engine": "clients", "rounds": rounds}, overrides=overrides(settings)
    )
    literal = literal_twin(literal_settings, train, key)
    away = {t: places(key, [label for node in nodes for label in OWNED[node]]) for t, nodes in absent.items()}
    literal.engine = Without(literal.engine, away)  # type: ignore[assignment]
    for _ in range(rounds):
        literal.run_round()
    return literal.averaged_model()


def assert_same(found: Model, wanted: Model) -> None:
    for ours, theirs in zip([*found.theta, found.W], [*wanted.theta, wanted.W], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def notes(folder: Path, what: str = "left out") -> list[tuple[int, str, str]]:
    """Return (round, party, reason) from the run folder's log."""
    lines = (folder / "parties.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [(r["round"], r["party"], r["why"]) for r in records if r["what"] == what]


def in_round(t: int, change: Callable[[Message, Message], Message | None], kind: str = "train") -> Tamper:
    """Alter the answer in one round only."""

    def tamper(asked: Message, reply: Message) -> Message | None:
        hit = asked.metadata.message_type == kind and asked.metadata.group_id == str(t)
        return change(asked, reply) if hit else reply

    return tamper


def kept_out(key: Path | str, features: Features, share: float, what: str = "content") -> np.ndarray:
    """Return which records parties with this key hold out, in every run."""
    return held_out(Hasher("hmac-sha256", Key.read(str(key))).instances(canonical_features(features), what), share)
