"""Training and ranking whose sums the server cannot look into: what engine and ranking do, by `MaskedSums`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedalc.config.facts import leaves_out_features
from fedalc.deployment.flower.compared_rows import RECORD as ALL_ROWS
from fedalc.deployment.flower.engine import ATTEMPTS, CURVATURE, FlowerEngine
from fedalc.deployment.flower.feature_holders import told_to_all
from fedalc.deployment.flower.held_out_records import tells_sizes
from fedalc.deployment.flower.masked_sums import MaskedSums, Unfinished
from fedalc.deployment.flower.punctuality import TRAIN
from fedalc.deployment.flower.ranking import OF_ALL, RANK, PartyHits, PartyRanking
from fedalc.deployment.flower.sum_messages import (
    BUCKET_SUMS,
    EVERY_ROW,
    FEATURES,
    LABEL_WEIGHTS,
    MEAN_SHARE,
    NOISED,
    RANKING,
    RAREST,
    TRAINING,
    WEIGHTS,
    all_labels,
)
from fedalc.deployment.flower.table_seals import SEALS
from fedalc.deployment.flower.totals import LabelsOf
from fedalc.deployment.flower.wire import pack, pack_all_rows, pack_encoder, pack_theta, record_bytes
from fedalc.engines.base import RoundResult, no_rows
from fedalc.engines.noised_sums import NoisedSums
from fedalc.engines.record_sums import private_sums
from fedalc.engines.record_updates import UPDATE, update_of
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.engines.vectors import unflattened, whole_of
from fedalc.evaluation.metrics import CUTS
from fedalc.evaluation.owner_hits import RANKED_BY
from fedalc.labels.privacy import NoiseSize
from fedalc.models.encoders import Chance
from fedalc.models.model import Model
from fedalc.secure_sums.messages import LEAST_PARTIES

_LISTS = "sum_lists"  # in a checkpoint
_WHOLE = (NOISED, FEATURES)  # questions whose answers are whole numbers


class SecureFlowerEngine(FlowerEngine):
    """The rows are fixed and all parties get all of them, so that they can tell that all are asked the same."""

    sums_of: MaskedSums

    def using(self, sums: MaskedSums) -> Self:
        self.sums_of = sums
        return self

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        if self.settings.privacy.mechanism == "updates":
            return self._private_update(model, participants, round_number)
        like = model.theta
        shared = pack_encoder(model) | self._every_row(model) | self._compared_rows(model, round_number)
        total = self._total(TRAIN, model, participants, round_number, shared, _size(like) + 2, round=round_number)
        tensors, (loss, weight) = unflattened(total, [tensor.double() for tensor in like])
        change = [(tensor / (weight or 1.0)).to(one) for tensor, one in zip(tensors, like, strict=True)]
        self.loss = loss / weight if weight else self.loss
        return RoundResult(change, *no_rows(model.W), self.loss, self._traffic, weight > 0)

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        shared = pack_encoder(model) | self._every_row(model) | self._compared_rows(model, round_number)
        shared["direction"] = pack_theta([direction])
        length = direction.numel() + 1
        total = self._total(CURVATURE, model, participants, round_number, shared, length, round=round_number)
        (product,), (weight,) = unflattened(total, [direction.double()])
        return (product / weight).to(direction), self._traffic

    def private_sums(self, model: Model) -> NoisedSums:
        knowledge, traffic = self.method.knowledge, Ledger()
        assert knowledge is not None and knowledge.noise_multiplier is not None

        def ask(what: str, length: int) -> np.ndarray:
            total = self._total(NOISED, model, self.roster.clients, 1, {}, length, what=what)
            traffic.add(self._traffic)
            return total

        size = NoiseSize(knowledge.noise_multiplier)
        found = private_sums(ask, self.settings.privacy, model.encoder.width, size, model.W)
        return replace(found, traffic=traffic)

    def _private_update(self, model: Model, participants: np.ndarray, round_number: int) -> RoundResult:
        (theta,), shared = model.theta, pack_encoder(model) | {ALL_ROWS: pack_all_rows(model.W)}
        length, t = len(theta) * self.roster.label_count + 1, round_number
        total = self._total(NOISED, model, participants, t, shared, length, what=UPDATE, round=t)
        return update_of(total, model, self.settings.client.learning_rate, self._traffic)

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        size, W = model.encoder.width, model.W
        gram_size = size if self.method.sends_gram else 0
        half, cross = W.new_zeros(gram_size * (gram_size + 1) // 2), W.new_zeros(size, W.shape[1])
        length, shared, traffic = half.numel() + cross.numel() + 2, self._every_row(model), Ledger()
        if leaves_out_features(self.settings):
            length_of_count = self.roster.feature_count + SEALS
            holders = self._total(FEATURES, model, participants, 1, self._every_row(model), length_of_count)
            shared |= told_to_all(holders, self.sums_of.last)
            traffic.add(self._traffic)
        total = self._total("train.sums", model, participants, 1, shared, length)
        traffic.add(self._traffic)
        (half, cross), (constant, pairs) = unflattened(total, [half, cross])
        return Sums(whole_of(half, gram_size), cross, constant, round(pairs), traffic)

    def _total(
        self,
        kind: str,
        model: Model,
        participants: np.ndarray,
        round_number: int,
        shared: dict[str, ArrayRecord],
        length: int,
        **more: int | float | str,
    ) -> np.ndarray:
        """Ask until a sum is unmasked. `shared`: the records that are the same for all parties."""
        self.sums_of.traffic = self._traffic = Ledger()
        more["label-count"] = self.roster.label_count
        shared = shared | all_labels(self.settings, self.roster.pseudonyms)
        if self.settings.weighs_labels and kind not in _WHOLE:
            records, values = self._weighing()
            shared, more = shared | records, more | values
        if self.settings.collection.by == "sums" and self.settings.client.set_size == "expected" and kind != NOISED:
            more[MEAN_SHARE] = float(self.method.tell(np.zeros(1, dtype=np.int64), None).shares[0])
        noised, whole, lost = kind == NOISED, kind in _WHOLE, set[int]()
        for attempt in range(ATTEMPTS):
            labels_of = self._choose(participants, round_number, attempt)
            every = self._needs_everyone(round_number) or self.method.one_round or noised
            if not every and TRAINING in self.sums_of.lists:
                labels_of = self._allowed(labels_of, lost)
            elif attempt < ATTEMPTS - 1:  # who misses the first sum stays out
                every = True
            content = self._contents(model, labels_of, shared, more, with_rows=not noised)
            try:
                total, _ = self.sums_of.total(kind, round_number, labels_of, content, length, every, whole=whole)
                return total.view(np.int64) if noised else total
            except Unfinished as error:
                self.parties.say(f"round {round_number}: no secure sum: {error}")
                lost |= set(labels_of) - set(self.sums_of.answered)
        raise self._too_few(round_number)

    def _allowed(self, labels_of: LabelsOf, lost: set[int]) -> LabelsOf:
        """Return the parties to ask: their sum may not show, beside earlier ones, what one or two of them sent. `lost`:
        those that did not answer now. If too few are left without them, they are asked again."""
        for present in (set(labels_of) - lost, set(labels_of)):
            allowed = self.sums_of.allowed(TRAINING, present)
            if len(allowed) >= LEAST_PARTIES:
                return {party: labels for party, labels in labels_of.items() if party in allowed}
        return labels_of

    def _contents(
        self,
        model: Model,
        labels_of: LabelsOf,
        shared: dict[str, ArrayRecord],
        more: dict[str, int | float | str],
        with_rows: bool,
    ) -> Callable[[int], RecordDict]:
        def content(party: int) -> RecordDict:
            message = self._content(party, labels_of[party], **more)
            message.update(shared)
            if with_rows:
                message["rows"] = self._own_rows(model, labels_of[party])
            self._traffic.down += sum(map(record_bytes, shared.values()))
            return message

        return content

    def _weighing(self) -> tuple[dict[str, ArrayRecord], dict[str, int | float | str]]:
        """Return what all parties get about label weights: all of them or, if each label is at one party, which knows
        its n, the n of the rarest label. As records, and as values of the task."""
        if self.settings.clients == "parties":
            weights = {"weights": self.method.label_weights.double().cpu().numpy()}
            buckets = self.census.buckets
            counted = {} if buckets is None or buckets.labels is None else buckets.labels.arrays("labels")
            return {LABEL_WEIGHTS: pack(weights | counted)}, {}
        return {}, {RAREST: self.method.rarest}

    def _every_row(self, model: Model) -> dict[str, ArrayRecord]:
        whole = self.method.set_loss is not None and self.settings.client.negatives is None
        return {ALL_ROWS if whole else EVERY_ROW: pack_all_rows(model.W)}

    def _needed(self, round_number: int) -> tuple[int, str]:
        needed, because = super()._needed(round_number)
        taking_part = max(map(len, self.sums_of.lists.get(TRAINING, [])), default=LEAST_PARTIES)
        if taking_part < 2 * LEAST_PARTIES and needed < taking_part:
            return taking_part, " (secure sums over fewer would show single parties' parts)"
        return max(needed, LEAST_PARTIES), because

    def facts(self) -> dict[str, Any]:
        return super().facts() | {_LISTS: self.sums_of.lists}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        super().restore(tensors, facts)
        self.sums_of.lists |= facts.get(_LISTS, {})


class SecureRanking(PartyRanking):
    """Hits as one sum over all parties that answer. `needs_all`: of all that are asked."""

    sums_of: MaskedSums
    needs_all = False

    def using(self, sums: MaskedSums) -> Self:
        self.sums_of = sums
        return self

    def compare(self, model: Model, round_number: int, weights: np.ndarray | None = None) -> list[PartyHits]:
        self.sums_of.traffic, self.silent = Ledger(), set()
        self.traffic = self.sums_of.traffic
        chosen, count = self._choose(round_number), 1 if weights is None else len(weights)
        allowed = self.sums_of.allowed(RANKING, chosen)
        labels_of = {party: labels for party, labels in chosen.items() if party in allowed}
        if len(labels_of) < LEAST_PARTIES:
            few = f"{len(labels_of)} parties can rank labels, and secure sums need {LEAST_PARTIES}"
            self.parties.say(f"round {round_number}: {few}")
            return [PartyHits()] * count
        hits = len(RANKED_BY) if tells_sizes(self.settings) else len(CUTS)
        length = count * hits + (BUCKET_SUMS in self.records.told_to_all())  # and its part of the number of records
        shared = self._shared(model) | all_labels(self.settings, self.roster.pseudonyms)
        shared |= {} if weights is None else {WEIGHTS: pack({WEIGHTS: weights})}

        def content(party: int) -> RecordDict:
            return self._content(party, labels_of[party], shared)

        try:
            every = self.needs_all or RANKING not in self.sums_of.lists
            total, survivors = self.sums_of.total(RANK, round_number, labels_of, content, length, every)
        except Unfinished as error:
            self.parties.say(f"round {round_number}: no secure sum of hits: {error}")
            self.silent = set(labels_of) - set(self.sums_of.answered) or set(labels_of)
            return [PartyHits()] * count
        records = self.records.records_of(total, survivors)
        each = total[: count * hits].reshape(count, hits)
        return [PartyHits({OF_ALL: one}, records) if records else PartyHits() for one in each]


def _size(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
