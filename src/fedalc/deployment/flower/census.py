"""What the server knows before round 1: which parties take part, which labels they own and, if the method uses it,
which labels co-occur. `take_census` asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.tensor_folder import load_folder, save_folder
from fedalc.deployment.flower.agreement import TEXT, Agreement
from fedalc.deployment.flower.bucket_census import HeldOutBuckets
from fedalc.deployment.flower.bucket_sums import BucketSums
from fedalc.deployment.flower.held_out_records import HeldOutRecords, restored_holders
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.wire import SEARCH, for_parties, task
from fedalc.errors import FedalcError
from fedalc.labels.correlations import Correlations, LabelCounts
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.runs.folder import CENSUS

AnyHeldOut = HeldOutRecords | HeldOutBuckets
_BUCKETS = "bucket_sums."


@dataclass(frozen=True)
class Census:
    """`set_sizes`: per party, the number of labels of each instance whose digest it sent (ascending, each once).
    `holders`: if parties may have the same labels and learn set sizes, per party how many parties have each of its
    pairs of an instance and a label (by digest, then pseudonym).
    `share`: the share of its instances that each party keeps out of training for evaluation. `run`: the run id that
    digests and pseudonyms are hashed for; "" in a run of an early version without run ids. `ranking`: the held-out
    records, if parties rank labels for them; None also in runs of earlier versions. `search`: if the run searches for
    settings, those that it began with, as parties know them. `text`: what parties with texts agreed on. `buckets`: if
    set sizes come from sums, the sums that all parties get, to look up their training records."""

    roster: Roster
    knowledge: LabelKnowledge | None
    set_sizes: dict[int, np.ndarray]
    share: float
    run: str
    ranking: AnyHeldOut | None = None
    search: str = ""
    holders: dict[int, np.ndarray] = field(default_factory=dict)
    text: Agreement | None = None
    buckets: BucketSums | None = None

    def about(self, labels: np.ndarray) -> dict[str, Any]:
        """Return the part of a question that names the labels it is about."""
        about = {"labels": self.roster.pseudonyms_of(labels), "numbers": labels.tolist(), "share": self.share}
        return about | searching(self.search)

    def tensors(self) -> dict[str, Tensor]:
        tensors = self.roster.tensors()
        tensors |= {f"set_sizes.{party}": torch.from_numpy(sizes) for party, sizes in self.set_sizes.items()}
        holders = {party: torch.from_numpy(each.astype(np.int64)) for party, each in self.holders.items()}
        tensors |= {f"holders.{party}": each for party, each in holders.items()}
        if self.knowledge is not None:
            assert isinstance(self.knowledge.labels, Correlations | LabelCounts)
            tensors |= self.knowledge.labels.tensors()
        tensors |= {} if self.buckets is None else self.buckets.tensors(_BUCKETS)
        tensors |= {} if self.text is None else self.text.tensors()
        return tensors if self.ranking is None else tensors | self.ranking.tensors()

    def facts(self) -> dict[str, Any]:
        known, knowledge = self.knowledge, None
        if known is not None:
            assert isinstance(known.labels, Correlations | LabelCounts)
            knowledge = {
                **known.labels.facts(),
                "bytes_up": known.bytes_up,
                "bytes_down": known.bytes_down,
                "collection": known.collection,
                "noise_multiplier": known.noise_multiplier,
            }
        ranking = None if self.ranking is None else self.ranking.facts()
        facts = {"roster": self.roster.facts(), "share": self.share, "run": self.run}
        text = {} if self.text is None else {TEXT: self.text.facts()}
        return facts | {"knowledge": knowledge, "ranking": ranking} | searching(self.search) | text

    def save(self, run: Path) -> None:
        """Write it into a run folder, once, so that a resumed run need not ask again."""
        if not (run / CENSUS).exists():
            save_folder(run / CENSUS, self.tensors(), self.facts())

    @classmethod
    def load(cls, run: Path) -> Census | None:
        """Return the census of a run to resume, or None if the run was stopped before it."""
        if not (run / CENSUS).exists():
            if any((run / name).exists() for name in ("checkpoint", "checkpoint.old")):
                raise FedalcError(f"{run / CENSUS}: is missing; without it, rows cannot be matched to labels")
            return None
        tensors, facts = load_folder(run / CENSUS)
        try:
            return cls.restored(tensors, facts)
        except (KeyError, TypeError, ValueError) as error:
            raise FedalcError(f"{run / CENSUS}: damaged, its parts do not match: {error}") from None

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Census:
        roster = Roster.restored(tensors, facts["roster"])
        prefix = "set_sizes."
        sizes = {int(k.removeprefix(prefix)): v.numpy() for k, v in tensors.items() if k.startswith(prefix)}
        knowledge = None
        if facts["knowledge"] is not None:
            saved, labels = dict(facts["knowledge"]), None
            if "mean_set_size" in saved:
                labels = LabelCounts.restored(tensors, saved.pop("mean_set_size"))
            knowledge = LabelKnowledge(labels or Correlations.restored(tensors, saved.pop("instances")), **saved)
        ranking: AnyHeldOut | None = None
        if facts.get("ranking") is not None:
            by_sums = facts["ranking"].get("by") == "sums"
            held_out = (tensors, facts["ranking"])
            ranking = HeldOutBuckets.restored(*held_out, roster) if by_sums else HeldOutRecords.restored(*held_out)
        run, search = str(facts.get("run", "")), str(facts.get(SEARCH, ""))
        text = Agreement.restored(tensors, facts[TEXT]) if TEXT in facts else None
        buckets, holders = BucketSums.restored(tensors, _BUCKETS), restored_holders(tensors)
        return cls(roster, knowledge, sizes, facts["share"], run, ranking, search, holders, text, buckets)


def question(settings: Experiment, share: float, run: str, search: str = "") -> RecordDict:
    """Return the content of all messages before round 1: `query.hello`, `query.label_sets`, `query.held_out`."""
    search = search or (for_parties(settings) if settings.tuning.search else "")
    return RecordDict({"task": task(settings, run, share=share, **searching(search))})


def searching(search: str) -> dict[str, Any]:
    """Return the part of a question, or of the facts, that only a run with a search for settings has."""
    return {SEARCH: search} if search else {}


def who_is_in(roster: Roster) -> str:
    """Return one line for the log. Log noised counts only after the run is charged for them and they are saved."""
    instances = f"{int(roster.counts.sum())} instances{' (noised)' * roster.is_noised}"
    shared = int((np.bincount(roster.label_of) > 1).sum())
    several = f" ({shared} at several parties)" if shared else ""
    return f"{len(roster.parties)} parties with {roster.label_count} labels{several} and {instances}"
