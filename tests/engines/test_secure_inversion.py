"""The inversion of a party's change into its records: certain from a plain change, chance from a masked one.

And what remains: a sum over parties splits by label again if the server knows rows that are at right angles.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.data.federation import Federation
from fedalc.engines import make_engine
from fedalc.engines.secure import SecureSums
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.secret_rows import turned
from fedalc.models.encoders import Chance
from fedalc.secure_sums import ServerSum, decoded
from fedalc.training.federated import FederatedTraining, begin_training

PARTIES, FEATURES = 12, 400


def cosine(found: np.ndarray, record: np.ndarray) -> float:
    return float(abs(found @ record) / np.linalg.norm(found) / np.linalg.norm(record))


class Attacked:
    """Each party has one label with one record. The server keeps every masked vector that it gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.X = np.abs(np.random.default_rng(3).normal(size=(PARTIES, FEATURES))) ** 3
        features, labels = csr_matrix(self.X), csr_matrix(np.eye(PARTIES))
        self.federation = Federation(features, labels, parties=np.arange(PARTIES))
        self.masked: list[np.ndarray] = []
        add = ServerSum.add_masked

        def watched(server: ServerSum, name: str, masked: np.ndarray, complaints: bytes) -> None:
            self.masked.append(masked.copy())
            add(server, name, masked, complaints)

        monkeypatch.setattr(ServerSum, "add_masked", watched)

    def training(self, secure: bool) -> FederatedTraining:
        settings = experiment(
            {
                "method": "fedavg-fixed",
                "engine": "clients",
                "dtype": "float64",
                "encoder": {"name": "linear", "dim": PARTIES, "output": "raw", "start": "zero", "features": "raw"},
                "client": {"learning_rate": 0.1},
                "secure_sums": {"on": secure},
            }
        )
        return begin_training(settings, self.federation, lambda method: make_engine(settings, self.federation, method))

    def inverted(self, change: np.ndarray, W: np.ndarray) -> list[float]:
        """The cosine of each record with what the change says about its label's row."""
        return [cosine(change.reshape(FEATURES, -1) @ W[label], self.X[label]) for label in range(PARTIES)]


def test_the_inversion_of_a_plain_change_is_the_record_and_of_a_masked_one_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attack = Attacked(monkeypatch)
    plain, secure = attack.training(False), attack.training(True)
    W = plain.model.W.numpy()
    for label in range(PARTIES):
        alone = plain.engine.run(plain.model, np.array([label]), Chance(plain.settings, 1, plain.model.W), 1)
        assert attack.inverted(alone.change[0].numpy(), W)[label] == pytest.approx(1, abs=1e-9)
    secure.engine.run(secure.model, attack.federation.clients, Chance(secure.settings, 1, secure.model.W), 1)
    assert len(attack.masked) == PARTIES
    # The records have only positive numbers, so noise is compared with them after their common direction is taken off.
    centred = attack.X - attack.X.mean(0)
    found = []
    for label, masked in enumerate(attack.masked):
        change = decoded(masked[: FEATURES * PARTIES], 40).reshape(FEATURES, PARTIES)
        found.append(cosine(change @ W[label], centred[label]))
    assert max(found) < 4 / np.sqrt(FEATURES) and np.mean(found) < 1.5 / np.sqrt(FEATURES)  # chance: 0.8/√400


def test_a_sum_splits_by_label_if_the_server_knows_its_rows_and_not_if_they_are_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attack = Attacked(monkeypatch)
    secure = attack.training(True)
    assert isinstance(secure.engine, SecureSums)
    known = secure.model.W.clone()
    total = secure.engine.run(secure.model, attack.federation.clients, Chance(secure.settings, 1, known), 1)
    assert min(attack.inverted(total.change[0].numpy(), known.numpy())) > 1 - 1e-6  # what remains
    secure.model.W = turned(known, Hasher("hmac-sha256", Key(bytes(range(7, 47))), run="r"))
    hidden = secure.engine.run(secure.model, attack.federation.clients, Chance(secure.settings, 2, known), 2)
    change = hidden.change[0].numpy()
    guesses = np.random.default_rng(0).normal(size=(200, PARTIES, PARTIES))
    chance = [np.mean(attack.inverted(change, rows)) for rows in guesses]  # with rows that are guessed
    assert np.mean(attack.inverted(change, known.numpy())) < np.quantile(chance, 0.99)
