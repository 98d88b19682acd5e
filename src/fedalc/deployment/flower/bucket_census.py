"""Before round 1, at the server: n and set sizes from masked counts in keyed buckets, without a digest of any record.

All parties take part in every sum. Nothing is unmasked unless all of them answer: two sums that differ by one party
would show its counts, from which the label sets of its records follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.bucket_sums import (
    PAIRS,
    QUESTION,
    RECORDS,
    BucketSums,
    Counting,
    SealedTables,
    counts_parts,
    size_for,
)
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.introductions import Introduction
from fedalc.deployment.flower.masked_sums import MaskedSums, Members
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.sum_messages import BUCKET_SUMS, COUNTING, all_labels
from fedalc.deployment.flower.wire import pack, record_bytes, task
from fedalc.engines.traffic import Ledger
from fedalc.errors import FedalcError
from fedalc.labels.collection.buckets import Tables
from fedalc.labels.collection.messages import Protocol as HashingProtocol
from fedalc.labels.collection.sums import mean_size, record_tables, too_many
from fedalc.labels.correlations import LabelCounts
from fedalc.labels.knowledge import LabelKnowledge

_HELD_OUT = "held_out_buckets."


@dataclass(frozen=True, eq=False)
class Found:
    """What sums over all parties show of some records: n, the number of records (estimated), the mean set size if it is
    all that parties get, otherwise what they look up."""

    counts: np.ndarray
    records: float
    mean: float | None
    told: BucketSums | None
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class HeldOutBuckets:
    """The held-out records, as far as sums show them. `counts`: n of each label, of these records. `mean`: their mean
    set size, if parties get no sums to look up their own in."""

    roster: Roster
    counts: np.ndarray
    mean: float | None
    told: BucketSums | None
    bytes_up: int = 0

    @property
    def parties(self) -> list[int]:
        """The parties that have such records."""
        return np.unique(self.roster.owner[self.roster.held_out > 0]).tolist()

    def records_of(self, total: np.ndarray, survivors: list[int]) -> float:
        """Return how many records the parties' hits are of. With set sizes each party sends its part, Σ 1/m over its
        pairs; without, it follows from the mean."""
        if self.told is not None:
            return round(float(total[-1]), 6)
        labels = self.roster.label_of[np.isin(self.roster.owner, survivors)]
        assert self.mean is not None
        return float(self.counts[labels].sum()) / self.mean

    def told_to(self, party: int, with_sizes: bool) -> dict[str, ArrayRecord]:
        return {}

    def told_to_all(self) -> dict[str, ArrayRecord]:
        record = None if self.told is None else self.told.record()
        return {} if record is None else {BUCKET_SUMS: record}

    def tensors(self) -> dict[str, Tensor]:
        told = {} if self.told is None else self.told.tensors(_HELD_OUT)
        return {f"{_HELD_OUT}counts": torch.from_numpy(self.counts)} | told

    def facts(self) -> dict[str, Any]:
        return {"by": "sums", "mean": self.mean, "bytes_up": self.bytes_up}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], roster: Roster) -> HeldOutBuckets:
        counts, told = tensors[f"{_HELD_OUT}counts"].numpy(), BucketSums.restored(tensors, _HELD_OUT)
        return cls(roster, counts, facts["mean"], told, facts["bytes_up"])


class Asking(Members, Protocol):
    """The parties that count, and how a question names their labels."""

    def about(self, labels: np.ndarray) -> dict[str, Any]: ...


class BucketCensus:
    """Asks all parties of a census to count. `begun`: whether a sum was unmasked."""

    def __init__(self, parties: Parties, census: Asking, settings: Experiment) -> None:
        self.sums = MaskedSums(parties, census, settings)
        self.parties = parties
        self.census = census
        self.settings = settings
        self.begun = False
        self.sums.traffic = Ledger()

    def knowledge(self, protocol: HashingProtocol) -> tuple[LabelKnowledge, BucketSums | None]:
        """Return what the server learns of the training records, and what it tells the parties."""
        found = self._found(on_held_out=False)
        facts: dict[str, Any] = {"by": "sums", "algorithm": protocol.algorithm, "identity": protocol.identity}
        facts |= {"digest_bytes": protocol.digest_bytes, "parties": len(self.census.roster.parties), **found.facts}
        traffic, known = self.sums.traffic, LabelCounts(found.counts, found.mean)
        return LabelKnowledge(known, bytes_up=traffic.up, bytes_down=traffic.down, collection=facts), found.told

    def held_out(self) -> HeldOutBuckets:
        """Return what it learns of held-out records."""
        self.sums.traffic, roster = Ledger(), self.census.roster
        found = self._found(on_held_out=True)
        records = f"about {found.records:.0f} held-out instances"
        self.parties.say(
            f"{records} at {len(np.unique(roster.owner[roster.held_out > 0]))} parties, to rank labels for"
        )
        return HeldOutBuckets(roster, found.counts, found.mean, found.told, self.sums.traffic.up)

    def _found(self, on_held_out: bool) -> Found:
        collection, roster = self.settings.collection, self.census.roster
        set_size = size_for(self.settings, on_held_out)
        pairs = int((roster.held_out if on_held_out else roster.counts).sum())
        holders, count = None, 1
        if counts_parts(self.settings, on_held_out):
            count = len(roster.parties)
            every = Counting(PAIRS, on_held_out, Tables.for_records(pairs, collection.collisions))
            holders = self._total(every)[0]
        if set_size == "ignored" and on_held_out:
            set_size = "expected"  # the number of records is needed, and follows from the mean
        tables = Tables(0, 1) if set_size == "ignored" else record_tables(collection, pairs, set_size)
        counting = Counting(RECORDS, on_held_out, tables, count)
        summed, of_labels = self._total(counting, holders)
        n = of_labels.whole(counting.unit > 1)
        weighs = self.settings.clients == "parties" and self.settings.weighs_labels and not on_held_out
        to_check = of_labels if weighs else None
        told = None if to_check is None else BucketSums(labels=to_check)
        if set_size == "ignored":
            return Found(n, 0.0, None, told, {})
        records = tables.records(summed.counts.ravel())
        facts: dict[str, Any] = {"tables": tables.tables, "buckets": tables.buckets, "records": round(records)}
        if set_size == "expected":
            return Found(n, records, mean_size(n, records), told, facts)
        facts["collisions"] = tables.collision_rate(round(records))
        if problem := too_many(collection, records, facts["collisions"]):
            self.parties.say(f"set sizes: {problem}")
        return Found(n, records, None, BucketSums(summed, holders, to_check), facts)

    def _total(self, counting: Counting, holders: SealedTables | None = None) -> tuple[SealedTables, SealedTables]:
        """Return the tables and n, summed over all parties. `holders`: the sums of pairs, if parties count parts."""
        roster = self.census.roster
        what = f"{counting.what} of {'held-out' if counting.on_held_out else 'training'} instances"
        self.parties.say(f"asking {len(roster.parties)} parties for masked counts of {what}")
        told = None if holders is None else pack(holders.arrays("holders"))

        def content(party: int) -> RecordDict:
            labels = roster.label_of[roster.owner == party]
            about = self.census.about(labels) | {"label-count": roster.label_count}
            message = RecordDict({"task": task(self.settings, self.census.run, **about), COUNTING: counting.record()})
            message.update(all_labels(self.settings, roster.pseudonyms))
            if told is not None:
                message[BUCKET_SUMS] = told
                self.sums.traffic.down += record_bytes(told)
            return message

        everyone, length = range(len(roster.parties)), counting.length(roster.label_count)
        total, _ = self.sums.total(QUESTION, 0, everyone, content, length, all_of_them=True, whole=True)
        self.begun = True
        return counting.read(total, roster.label_count, self.sums.last)


def same_protocol(
    parties: Parties, known: Mapping[int, Introduction]
) -> tuple[HashingProtocol, dict[int, Introduction]]:
    """Return how most parties hash their instances, and these parties. Others would look for other buckets."""
    users = Counter(who.protocol for who in known.values() if who.protocol is not None)
    if not users:
        raise FedalcError("no party says how it hashes its instances, which counts in buckets need")
    (usual, often), *others = users.most_common()
    if others and others[0][1] == often:
        raise FedalcError(
            "the parties hash their instances in different ways (key, identity), and none is the commonest"
        )
    for who in known.values():
        if who.protocol != usual:
            parties.leave_out(0, who.client, "hashes its instances in another way than most parties (key, identity)")
    return usual, {node: who for node, who in known.items() if who.protocol == usual}
