"""Set sizes without a join (`collection.by = "sums"`): what parties are asked to count, and the sums they get.

Parties count in tables of keyed buckets (`labels.collection.buckets`). Their vectors are masked, so that the server has
sums over all parties only. It sends the sums to all of them with every question that needs set sizes, as one record for
all, to which every mask is bound; a party looks up its own records. Seals (`table_seals`) show false sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.limits import Limits, check_memory
from fedalc.deployment.flower.sum_messages import BUCKET_SUMS, COUNTING
from fedalc.deployment.flower.table_seals import SEALED, SEALS, Sealing, SumOf
from fedalc.deployment.flower.wire import BadMessage, config, pack, unpack
from fedalc.errors import FedalcError
from fedalc.labels.collection.buckets import COUNTERS_PER_WORD, MOST_TABLES, Tables, packed, unpacked
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.held_pairs import units
from fedalc.labels.collection.sums import SetSize
from fedalc.secure_sums.messages import LEAST_PARTIES

QUESTION = "query.bucket_counts"
PAIRS: Final = "pairs"
RECORDS: Final = "records"
LARGEST = (1 << 16) - 1  # of a count that parties get
MOST_RECORDS = (1 << 24) - 1  # of a label: larger numbers could be given false seals more easily (`table_seals`)
_NAMES = ("sizes", "holders", "labels")  # of what they get


@dataclass(frozen=True)
class Counting:
    """What parties count in tables: pairs of a record and a label, or of each record its labels and of each label its
    records (n, in front of the tables). `on_held_out`: of the records kept out of training. `parties`: if several may
    have a pair, how many parties there are; each counts its part of the pair, in whole units. Otherwise 1."""

    what: Literal["pairs", "records"]
    on_held_out: bool
    tables: Tables
    parties: int = 1

    @property
    def unit(self) -> int:
        return units(self.parties)

    def length(self, label_count: int) -> int:
        """Return how many numbers a party's vector has."""
        words = -(-self.tables.size // COUNTERS_PER_WORD) if self.unit == 1 else self.tables.size
        return words + SEALS + (label_count + SEALS if self.what == RECORDS else 0)

    def vector(self, hasher: Hasher, of: SumOf, counts: np.ndarray, amounts: np.ndarray) -> np.ndarray:
        """Return a party's numbers, in this sum. `counts`: n of each label; `amounts`: in its buckets."""
        shape = (self.tables.tables, self.tables.buckets)
        seals = Sealing(of, self.what, self.on_held_out, shape).of_party(hasher, amounts)
        numbers = [packed(amounts) if self.unit == 1 else amounts, seals]
        if self.what == RECORDS:
            numbers += [counts, of_labels(of, self.on_held_out, len(counts)).of_party(hasher, counts)]
        return np.concatenate(numbers)

    def read(self, total: np.ndarray, label_count: int, of: SumOf) -> tuple[SealedTables, SealedTables]:
        """Return the tables, and n in units, from the sum of the parties' numbers."""
        end = len(total) - (label_count + SEALS if self.what == RECORDS else 0)
        summed, seals = total[: end - SEALS], total[end - SEALS : end]
        n, of_n = total[end : end + label_count], total[end + label_count :]
        summed = unpacked(summed, self.tables.size).astype(np.uint16) if self.unit == 1 else summed
        shape = (self.tables.tables, self.tables.buckets)
        return SealedTables(summed.reshape(shape), seals, of), SealedTables(n.reshape(-1, 1), of_n, of)

    def record(self) -> ConfigRecord:
        return ConfigRecord(
            {
                "what": self.what,
                "held-out": self.on_held_out,
                "tables": self.tables.tables,
                "buckets": self.tables.buckets,
                "parties": self.parties,
            }
        )


def of_labels(of: SumOf, on_held_out: bool, labels: int) -> Sealing:
    """Return what the seals of n are bound to."""
    return Sealing(of, "labels", on_held_out, (labels, 1))


def size_for(settings: Experiment, on_held_out: bool) -> SetSize:
    """Return what parties learn of set sizes. Ranking held-out records needs them with every loss."""
    return settings.client.set_size if on_held_out or settings.client.loss != "hinge" else "ignored"


def counts_parts(settings: Experiment, on_held_out: bool) -> bool:
    """Return whether a pair that several parties have counts once: each of them counts a part."""
    return settings.clients == "parties" and size_for(settings, on_held_out) == "exact"


def read_counting(content: RecordDict, settings: Experiment, limits: Limits) -> Counting:
    """At a party: return what it is asked to count, if this run may ask for it."""
    wanted = {"what": str, "held-out": bool, "tables": int, "buckets": int, "parties": int}
    said = config(content, COUNTING, wanted)
    tables = Tables(said["tables"], said["buckets"])
    if said["what"] not in (PAIRS, RECORDS) or not 0 <= tables.tables <= MOST_TABLES or tables.buckets < 1:
        raise BadMessage(f"asks for counts in {said['tables']!r:.20} tables, or not of pairs or records")
    limits.check("holders", said["parties"])
    shared = counts_parts(settings, said["held-out"])
    if said["parties"] > 1 if said["what"] == PAIRS or not shared else said["parties"] == 1:
        raise BadMessage("asks for parts of pairs that no two parties have, or for whole ones that several have")
    if said["what"] == PAIRS and not shared:
        raise BadMessage("asks for counts of pairs, which nobody needs with these settings")
    limits.check("collection.buckets", max(tables.size, 1))
    check_memory(32 * tables.size)
    return Counting(said["what"], said["held-out"], tables, said["parties"])


@dataclass(frozen=True, eq=False)
class SealedTables:
    """Sums of tables over all parties, as they are: whole numbers as uint16, parts in units as uint64. `seals`: their
    sums. `secure_sum`: which."""

    amounts: np.ndarray
    seals: np.ndarray
    secure_sum: SumOf

    @property
    def parties(self) -> int:
        return self.secure_sum.parties

    @property
    def counts(self) -> np.ndarray:
        """Tables × buckets, in whole numbers."""
        if self.amounts.dtype == np.uint16:
            return self.amounts
        return np.rint(self.amounts / units(self.parties)).clip(max=LARGEST).astype(np.uint16)

    def whole(self, parts: bool) -> np.ndarray:
        """Return n of each label, in whole numbers, from a table of labels. `parts`: whether parties counted parts."""
        return np.rint(self.amounts[:, 0] / (units(self.parties) if parts else 1)).astype(np.int64)

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return {name: self.amounts, f"{name} seals": np.concatenate([self.seals, self.secure_sum.numbers])}

    @classmethod
    def of(cls, name: str, arrays: Mapping[str, np.ndarray]) -> SealedTables:
        sealed = arrays[f"{name} seals"]
        return cls(arrays[name], sealed[:SEALS].astype(np.uint64), SumOf.of_numbers(sealed[SEALS:]))


@dataclass(frozen=True, eq=False)
class BucketSums:
    """What all parties get. `sizes`: how many labels the records in each bucket have, if parties learn set sizes.
    `holders`: the same for pairs and parties, if parties may have the same labels. `labels`: then also n of each label,
    if labels have weights."""

    sizes: SealedTables | None = None
    holders: SealedTables | None = None
    labels: SealedTables | None = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        there = {name: getattr(self, name) for name in _NAMES if getattr(self, name) is not None}
        return {key: array for name, tables in there.items() for key, array in tables.arrays(name).items()}

    def record(self) -> ArrayRecord | None:
        """Return what a party looks up its records in, if it does."""
        return pack(replace(self, labels=None).arrays) if self.sizes is not None else None

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """As torch has them: whole counts as int32, others as int64."""
        kinds = {np.dtype(np.uint16): np.int32, np.dtype(np.uint64): np.int64}
        return {
            prefix + name: torch.from_numpy(array.astype(kinds[array.dtype])) for name, array in self.arrays.items()
        }

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], prefix: str) -> BucketSums | None:
        names = [name for name in _NAMES if prefix + name in tensors]
        if not names:
            return None
        if any(len(tensors.get(f"{prefix}{name} seals", ())) != SEALED for name in names):
            raise FedalcError(
                "this run began with an earlier version of fedalc, whose parties sealed their counts otherwise: begin "
                "anew"
            )
        kinds = {torch.int32: np.uint16, torch.int64: np.uint64}
        wanted = [each for name in names for each in (name, f"{name} seals")]
        arrays = {name: tensors[prefix + name].numpy().astype(kinds[tensors[prefix + name].dtype]) for name in wanted}
        return cls(**{name: SealedTables.of(name, arrays) for name in names})


def read_tables(
    content: RecordDict,
    names: tuple[str, ...],
    limits: Limits,
    hasher: Hasher,
    on_held_out: bool,
    parts: bool,
    check: Callable[[SumOf], None],
) -> dict[str, np.ndarray]:
    """At a party: return the tables of these names in a message, if they are what the parties counted. `parts`: whether
    set sizes are sums of parts. `check`: refuses those of other parties.

    False ones are refused by all parties alike, so that a refusal says nothing about a party's records."""
    kinds = {"holders": "uint16", "sizes": "uint64" if parts else "uint16"}
    wanted: dict[str, Any] = {name: (kinds[name], (None, None)) for name in names}
    arrays = unpack(content, BUCKET_SUMS, wanted | {f"{name} seals": ("uint64", (SEALED,)) for name in names})
    tables = {}
    for name in names:
        found = SealedTables.of(name, arrays)
        if not 1 <= len(found.amounts) <= MOST_TABLES:
            raise BadMessage(f"sums of {len(found.amounts)} tables; 1 to {MOST_TABLES} are possible")
        limits.check("collection.buckets", found.amounts.size)
        what = RECORDS if name == "sizes" else PAIRS
        sealing = Sealing(found.secure_sum, what, on_held_out, (found.amounts.shape[0], found.amounts.shape[1]))
        largest = LARGEST * (units(found.parties) if found.amounts.dtype == np.uint64 else 1)
        possible = found.parties >= LEAST_PARTIES and found.amounts.max(initial=0) <= largest
        if not possible or not np.array_equal(sealing.of_sum(hasher, found.amounts), found.seals):
            raise BadMessage("sends other sums of bucket counts than those that the parties counted")
        check(found.secure_sum)
        tables[name] = found.counts if name == "sizes" else found.counts.clip(max=found.parties)
    return tables


def check_label_counts(found: SealedTables, settings: Experiment, hasher: Hasher) -> np.ndarray:
    """At a party: return n of all labels, if the parties counted so."""
    parts, sealing = counts_parts(settings, False), of_labels(found.secure_sum, False, len(found.amounts))
    possible = found.parties >= LEAST_PARTIES
    possible = possible and found.amounts.max(initial=0) <= MOST_RECORDS * (units(found.parties) if parts else 1)
    if not possible or not np.array_equal(sealing.of_sum(hasher, found.amounts), found.seals):
        raise BadMessage("sends other numbers of records of the labels than the parties counted")
    return found.whole(parts)
