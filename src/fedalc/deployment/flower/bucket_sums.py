"""Set sizes without a join (`collection.by = "sums"`): what parties are asked to count, and the sums they get.

Parties count in tables of keyed buckets (`labels.collection.buckets`). Their vectors are masked, so that the server has
sums over all parties only. It sends the sums to all of them with every question that needs set sizes, as one record for
all, to which every mask is bound; a party looks up its own records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.limits import Limits, check_memory
from fedalc.deployment.flower.sum_messages import BUCKET_SUMS, COUNTING
from fedalc.deployment.flower.wire import BadMessage, config, pack, unpack
from fedalc.labels.collection.buckets import COUNTERS_PER_WORD, MOST_TABLES, Tables, packed, unpacked
from fedalc.labels.collection.held_pairs import units
from fedalc.labels.collection.sums import SetSize

QUESTION = "query.bucket_counts"
PAIRS: Final = "pairs"
RECORDS: Final = "records"
LARGEST = (1 << 16) - 1  # of a count that parties get


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
        return words + (label_count if self.what == RECORDS else 0)

    def vector(self, counts: np.ndarray, amounts: np.ndarray) -> np.ndarray:
        """Return a party's numbers. `counts`: n of each label; `amounts`: in its buckets."""
        return np.concatenate([counts, packed(amounts) if self.unit == 1 else amounts])

    def read(self, total: np.ndarray, label_count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return n, and the tables, from the sum of the parties' numbers."""
        first = label_count if self.what == RECORDS else 0
        n, summed = np.rint(total[:first] / self.unit).astype(np.int64), total[first:]
        summed = unpacked(summed, self.tables.size) if self.unit == 1 else np.rint(summed / self.unit)
        return n, summed.clip(max=LARGEST).astype(np.uint16).reshape(self.tables.tables, self.tables.buckets)

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
class BucketSums:
    """What all parties get, if they learn set sizes. `sizes`: tables × buckets, how many labels the records in
    each bucket have. `holders`: the same for pairs and parties, if parties may have the same labels."""

    sizes: np.ndarray
    holders: np.ndarray | None = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"sizes": self.sizes} | ({} if self.holders is None else {"holders": self.holders})

    def record(self) -> ArrayRecord:
        return pack(self.arrays)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        return {prefix + name: torch.from_numpy(array.astype(np.int32)) for name, array in self.arrays.items()}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], prefix: str) -> BucketSums | None:
        found = {name: tensors.get(prefix + name) for name in ("sizes", "holders")}
        arrays = {name: part.numpy().astype(np.uint16) for name, part in found.items() if part is not None}
        return cls(**arrays) if "sizes" in arrays else None


def read_tables(content: RecordDict, names: tuple[str, ...], limits: Limits) -> dict[str, np.ndarray]:
    """At a party: return the tables of these names in a message."""
    wanted: dict[str, Any] = {name: ("uint16", (None, None)) for name in names}
    arrays = unpack(content, BUCKET_SUMS, wanted)
    for array in arrays.values():
        if not 1 <= len(array) <= MOST_TABLES:
            raise BadMessage(f"sums of {len(array)} tables; 1 to {MOST_TABLES} are possible")
        limits.check("collection.buckets", array.size)
    return arrays
