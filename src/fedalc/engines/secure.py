"""Runs another engine party by party and adds up what the parties send by secure sums, with real keys and masks.

The result is that of the plain mean, rounded to fixed point, and the bytes are those that travel. All parties take part
in every sum, so that every sum is over the same ones; without a participant a party adds zeros.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.seeds import derived_seed
from fedalc.data.federation import Federation
from fedalc.engines.aggregation.lengths import norm
from fedalc.engines.base import Engine, RoundResult, no_rows
from fedalc.engines.noised_sums import NoisedSums
from fedalc.engines.owned_records import OwnedRecords
from fedalc.engines.record_sums import owners_answer, private_sums
from fedalc.engines.record_updates import UPDATE, owners_update, update_of
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.engines.vectors import flattened, half_of, unflattened, whole_of
from fedalc.errors import ConfigError
from fedalc.labels.privacy import NoiseShares, NoiseSize, SecureGenerator
from fedalc.methods import Method
from fedalc.models.encoders import Chance
from fedalc.models.model import Model
from fedalc.secure_sums import (
    Disclosures,
    Identity,
    InProcess,
    Overflow,
    PartySum,
    Question,
    ServerSum,
    decoded,
    question_digest,
)

LEAST_PARTIES = 3
CUBE = 1.2e-5  # seconds of Shamir's scheme for a sum over n parties, divided by n³ (docs/results/secure_sums.md)
SLOW = 5.0


class SecureSums(Engine):
    """Runs `inner`, which has all clients in this process, once per party (`federation.party_of`)."""

    def __init__(self, inner: Engine, federation: Federation, method: Method, settings: Experiment) -> None:
        self.inner = inner
        self.federation = federation
        self.method = method
        self.settings = settings
        self.parties = np.unique(federation.party_of[federation.clients]).tolist()
        if len(self.parties) < LEAST_PARTIES:
            raise ConfigError(
                f"a sum over {len(self.parties)} parties shows single ones; at least {LEAST_PARTIES} are needed",
                "secure_sums.on",
            )
        if (seconds := len(self.parties) ** 3 * CUBE) > SLOW:
            warnings.warn(
                f"secure sums over {len(self.parties)} simulated parties take about {seconds:.0f} s for the shares of "
                "each sum, and more for masks. Data with a folder per party, or fewer parties, is faster "
                "(docs/secure-sums.md)",
                stacklevel=2,
            )
        secret = secrets.token_bytes(64)  # the parties' key has no other use in a simulation
        self._identities = {party: Identity(f"party {party:09}", "simulation", secret) for party in self.parties}
        self._disclosures = {identity.name: Disclosures({}) for identity in self._identities.values()}
        self._seq = 0

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        if self.settings.privacy.mechanism == "updates":
            return self._private_update(model, round_number)
        like, weight_of = model.theta + model.statistics, self._weights(model, participants)

        def vector(party: int, clients: np.ndarray) -> np.ndarray:
            sent = self.inner.run(model, clients, chance, round_number)
            weight = weight_of[party]
            parts = [*cut(sent.change, self.settings.secure_sums.norm), *sent.statistics]
            return flattened((weight * part for part in parts), weight * sent.loss, weight)

        length = sum(tensor.numel() for tensor in like) + 2
        about = [*like, torch.tensor(round_number)]
        total, traffic = self._sum("train", about, model.theta, length, participants, vector)
        traffic.down += len(self.parties) * payload_bytes(like)
        tensors, (loss, weight) = unflattened(total, [tensor.double() for tensor in like])
        mean = [(tensor / (weight or 1.0)).to(one) for tensor, one in zip(tensors, like, strict=True)]
        count = len(model.theta)
        change, statistics = mean[:count], mean[count:]
        rows = no_rows(model.W)
        return RoundResult(change, *rows, loss / (weight or 1.0), traffic, weight > 0, statistics)

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        weight_of = self._weights(model, participants)

        def vector(party: int, clients: np.ndarray) -> np.ndarray:
            product, _ = self.inner.curvature(model, direction, clients, round_number)
            return flattened([weight_of[party] * product], weight_of[party])

        about = [*model.theta, direction]
        total, traffic = self._sum("curvature", about, about, direction.numel() + 1, participants, vector)
        traffic.down += len(self.parties) * payload_bytes(about)
        (product,), (weight,) = unflattened(total, [direction.double()])
        return (product / weight).to(direction), traffic

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        size, W = model.encoder.width, model.W
        gram_size = size if self.method.sends_gram else 0

        def vector(party: int, clients: np.ndarray) -> np.ndarray:
            found = self.inner.sums(model, clients)
            return flattened([half_of(found.gram), found.cross], found.constant, found.pairs)

        half = W.new_zeros(gram_size * (gram_size + 1) // 2)
        cross = W.new_zeros(size, W.shape[1])
        length = half.numel() + cross.numel() + 2
        total, traffic = self._sum("sums", [W], [], length, participants, vector)
        (half, cross), (constant, pairs) = unflattened(total, [half, cross])
        return Sums(whole_of(half, gram_size), cross, constant, round(pairs), traffic)

    def private_sums(self, model: Model) -> NoisedSums:
        knowledge, traffic = self.method.knowledge, Ledger()
        assert knowledge is not None and knowledge.noise_multiplier is not None

        def ask(what: str, length: int) -> np.ndarray:
            def vector(party: int, clients: np.ndarray) -> np.ndarray:
                noise = self._share_of_noise(f"record noise {what}", 1, party)
                return owners_answer(self._records_of(model, clients), what, len(model.W), noise)

            total, took = self._whole_sum(what, [], length, vector)
            traffic.add(took)
            return total

        size = NoiseSize(knowledge.noise_multiplier)
        found = private_sums(ask, self.settings.privacy, model.encoder.width, size, model.W)
        return replace(found, traffic=traffic)

    def _private_update(self, model: Model, round_number: int) -> RoundResult:
        (theta,) = model.theta

        def vector(party: int, clients: np.ndarray) -> np.ndarray:
            noise = self._share_of_noise(f"record noise {UPDATE}", round_number, party)
            return owners_update(self._records_of(model, clients), model, noise)

        length = theta.shape[0] * len(model.W) + 1
        total, traffic = self._whole_sum(UPDATE, [theta, torch.tensor(round_number)], length, vector)
        traffic.down += len(self.parties) * payload_bytes([theta])
        return update_of(total, model, self.settings.client.learning_rate, traffic)

    def _whole_sum(
        self, what: str, about: Iterable[Tensor], length: int, vector: Callable[[int, np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, Ledger]:
        """Return the sum of whole numbers to which all parties add shares of noise."""
        about = list(about)
        return self._sum(f"noised {what}", about, about, length, self.federation.clients, vector, whole=True)

    def _share_of_noise(self, purpose: str, round_number: int, party: int) -> NoiseShares:
        """Return the share that this party draws."""
        knowledge, privacy = self.method.knowledge, self.settings.privacy
        assert knowledge is not None and knowledge.noise_multiplier is not None
        seeded = privacy.noise == "seeded"
        seed = derived_seed(self.settings.seed, purpose, round_number, self.parties.index(party))
        generator = SecureGenerator.seeded(seed) if seeded else SecureGenerator.system()
        count = len(self.parties)
        if privacy.noise_dropouts >= count:
            raise ConfigError(f"{count} parties share the noise: use less than that", "privacy.noise_dropouts")
        return NoiseShares(knowledge.noise_multiplier, count, privacy.noise_dropouts, generator, drawn=1)

    def _records_of(self, model: Model, clients: np.ndarray) -> OwnedRecords:
        return OwnedRecords(self.federation, self.method, self.settings, model.encoder, True, clients)

    def _weights(self, model: Model, participants: np.ndarray) -> dict[int, float]:
        """Return P_k, the sum of p_u over a party's participants."""
        counts = torch.from_numpy(self.federation.counts[participants]).to(model.W)
        p = self.method.weights(counts, self.federation.label_of[participants]).double().cpu().numpy()
        party_of = self.federation.party_of[participants]
        return {party: float(p[party_of == party].sum()) for party in self.parties}

    def _sum(
        self,
        kind: str,
        content: Iterable[Tensor],
        subject: Iterable[Tensor],
        length: int,
        participants: np.ndarray,
        vector: Callable[[int, np.ndarray], np.ndarray],
        whole: bool = False,
    ) -> tuple[np.ndarray, Ledger]:
        """Return the sum of the parties' vectors, and what it took beside the question. `vector`: of a party and its
        participants. `whole`: whole numbers with noise, to which every party must add its share."""
        self._seq += 1
        asked, secure = participants.astype("<i8").tobytes(), self.settings.secure_sums
        question = Question(
            question_digest(kind, asked, *map(_bytes, content)),
            question_digest(kind, asked, *map(_bytes, subject)),
            length,
            0 if whole else secure.bits,
            noised=whole,
        )
        party_of = self.federation.party_of[participants]
        number_of = {identity.name: party for party, identity in self._identities.items()}

        def vector_of(name: str) -> np.ndarray:
            clients = participants[party_of == number_of[name]]
            return vector(number_of[name], clients) if len(clients) else np.zeros(length)

        parties = {identity.name: PartySum(identity, self._seq) for identity in self._identities.values()}
        server = ServerSum("simulation", self._seq, secure.threshold)
        exchange = InProcess(server, parties, self._disclosures)
        try:
            numbers = exchange.total(question, vector_of)
        except Overflow as error:
            raise ConfigError(str(error), "secure_sums.bits") from None
        assert not server.problems  # in one process nobody is lost
        total = numbers.view(np.int64) if whole else decoded(numbers, secure.bits)
        return total, Ledger(exchange.down, exchange.up)


def cut(change: list[Tensor], longest: float) -> list[Tensor]:
    """Return the change, cut to a length (`secure_sums.norm`). 0: as it is."""
    length = norm(change)
    return [tensor * (longest / length) for tensor in change] if 0 < longest < length else change


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
