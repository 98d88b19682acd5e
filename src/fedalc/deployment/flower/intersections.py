"""Before round 1, at the server: how often labels occur together, by private set intersection (collection.by psi).

Parties intersect their records of each two labels; the server relays their messages, three to each party, and gets the
counts. It has no digest of a record: what it relays are points that look random, other ones for each pair of labels.
How many records there are follows from a masked bitmap of all parties. All parties have to take part to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.bucket_census import Asking
from fedalc.deployment.flower.connections import Parties, TooFew, content_of
from fedalc.deployment.flower.wire import BadMessage, config, pack, record_bytes, task, unpack
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.disputes import listed
from fedalc.labels.collection.messages import Protocol
from fedalc.labels.collection.psi import POINT_BYTES, bitmap_for, estimated
from fedalc.labels.knowledge import LabelKnowledge

RECORD, PAIRS, POINTS, ANSWER = "psi", "pairs ", "points ", "answer "  # names of records; the last three by number
ATTEMPTS = 3
Read = Callable[[int, RecordDict], None]


def read_points(
    content: RecordDict, record: str, pairs: int, name: str = "points", **more: tuple[str, tuple[int | None, ...]]
) -> tuple[np.ndarray, ...]:
    """Return how many points there are for each pair of labels, at least one, these points, and other arrays."""
    wanted = {"sizes": ("int64", (pairs,)), name: ("uint8", (None, POINT_BYTES)), **more}
    arrays = unpack(content, record, wanted)
    sizes, points = arrays["sizes"], arrays[name]
    if sizes.min() < 1 or sizes.max() > len(points) or sizes.sum() != len(points):
        raise BadMessage(f"{record}: numbers of points that do not add up to {len(points)}")
    return tuple(arrays.values())


class PairCensus:
    """Asks the parties of a census to intersect their labels."""

    def __init__(self, parties: Parties, census: Asking, settings: Experiment) -> None:
        self.parties = parties
        self.census = census
        self.roster = census.roster
        self.settings = settings
        self.traffic = Ledger()
        self.pairs: dict[tuple[int, int], np.ndarray] = {}
        self.together = np.zeros((0, 0), dtype=np.int64)
        self.keys: dict[int, tuple[bytes, bytes, int]] = {}  # a key, its tag, and the party's number of pairs
        self.relayed: dict[tuple[int, int], tuple[ArrayRecord, bytes]] = {}  # (asking, answering) → points and tag
        self.bitmap = np.zeros(0, dtype=np.uint64)

    def knowledge(self, protocol: Protocol) -> LabelKnowledge:
        """Return n, c and an estimate of the number of records."""
        count, most = self.roster.label_count, self.settings.collection.most_labels
        if count > most:
            raise ConfigError(
                f"private set intersection is for few labels: {count} need {count * (count - 1) // 2} pairs, and at "
                f"most {most} labels are allowed (collection.most_labels). Use --collection join",
                "collection.by",
            )
        if len(self.roster.parties) < 2:
            raise TooFew("private set intersection needs two parties")
        self.pairs, self.together = self._shared_out(), np.zeros((count, count), dtype=np.int64)
        intersections = sum(len(pairs) for pairs in self.pairs.values())
        self.parties.say(f"asking {len(self.roster.parties)} parties to intersect {intersections} pairs of labels")
        self._ask("query.psi_requests", self._peers(0), {}, self._read_requests)
        n = self.together.diagonal().copy()
        tables = bitmap_for(int(n.sum()))
        self.bitmap, keys = np.zeros(tables.size, dtype=np.uint64), [self.keys[party] for party in sorted(self.keys)]
        told: dict[str, Any] = {"names": list(self.roster.parties), "pairs": [pairs for _, _, pairs in keys]}
        told |= {"keys": [key for key, _, _ in keys], "key-tags": [key_tag for _, key_tag, _ in keys]}
        self._ask("query.psi_answers", self._peers(1), told, self._read_answers)
        self._ask("query.psi_counts", self._peers(0), {}, self._read_counts)
        if not (self.bitmap == 0).any():
            raise FedalcError("the masks of the parties' bitmaps do not cancel: a party has followed another protocol")
        np.fill_diagonal(self.together, 0)
        known = estimated(tables.records(self.bitmap), n, csr_matrix(self.together))
        facts: dict[str, Any] = {"by": "psi", "algorithm": protocol.algorithm, "identity": protocol.identity}
        facts |= {"digest_bytes": protocol.digest_bytes, "parties": len(self.roster.parties)}
        facts |= {"intersections": intersections, "records": known.instances}
        return LabelKnowledge(known, bytes_up=self.traffic.up, bytes_down=self.traffic.down, collection=facts)

    def _shared_out(self) -> dict[tuple[int, int], np.ndarray]:
        """Return the pairs of labels of different parties, by who asks whom. The label with fewer records asks."""
        owner, count = self.roster.owner, self.roster.counts
        pairs = np.stack(np.triu_indices(self.roster.label_count, 1), axis=1)
        pairs = pairs[owner[pairs[:, 0]] != owner[pairs[:, 1]]]
        pairs = np.where((count[pairs[:, 0]] > count[pairs[:, 1]])[:, None], pairs[:, ::-1], pairs)
        batch = owner[pairs[:, 0]] * len(self.roster.parties) + owner[pairs[:, 1]]
        order = np.argsort(batch, kind="stable")
        batches, starts = np.unique(batch[order], return_index=True)
        found = np.split(pairs[order], starts[1:])
        return {divmod(int(one), len(self.roster.parties)): part for one, part in zip(batches, found, strict=True)}

    def _peers(self, side: int) -> dict[int, list[tuple[int, int]]]:
        """Return the batches of each party: those in which it asks (side 0), or answers (1)."""
        every = range(len(self.roster.parties))
        return {party: [batch for batch in self.pairs if batch[side] == party] for party in every}

    def _content(self, party: int, batches: list[tuple[int, int]], told: Mapping[str, Any], part: str) -> RecordDict:
        """Return a message. `part`: the name of the points that it relays, if any."""
        others = [self.roster.parties[a if b == party else b] for a, b in batches]
        said: dict[str, Any] = {"parties": others, **told}
        content = RecordDict()
        for number, batch in enumerate(batches):
            asking, answering = (self.roster.pseudonyms[column] for column in self.pairs[batch].T)
            content[f"{PAIRS}{number}"] = pack({"asking": asking, "answering": answering})
            if part:
                content[f"{part}{number}"] = self.relayed[batch][0]
        if part:
            said["tags"] = [self.relayed[batch][1] for batch in batches]
        about = self.census.about(np.flatnonzero(self.roster.owner == party))
        content["task"], content[RECORD] = task(self.settings, self.census.run, **about), ConfigRecord(said)
        return content

    def _ask(self, kind: str, batches: dict[int, list[tuple[int, int]]], told: Mapping[str, Any], read: Read) -> None:
        """Ask all parties, those that do not answer again. A question that is asked again gets the same answer."""
        part = {"query.psi_answers": POINTS, "query.psi_counts": ANSWER}.get(kind, "")
        missing, why = set(batches), ""
        for _ in range(ATTEMPTS):
            nodes = self.parties.present(self.roster, 0, len(self.roster.parties), " (all of them intersect)")
            exchange = self.parties.exchange(kind, 0)
            for party in sorted(missing):
                question = self._content(party, batches[party], told, part)
                self.traffic.down += _size(question)
                exchange.send(nodes[party], question)
            for reply in exchange.replies():
                party = self.parties.party_of[reply.node]
                try:
                    content = content_of(reply)
                    read(party, content)
                    self.traffic.up += _size(content)
                    missing.discard(party)
                except BadMessage as error:
                    why = str(error)
                    self.parties.note(0, self.roster.parties[party], "has not intersected its labels", why)
            if not missing:
                return
        names = listed([self.roster.parties[party] for party in sorted(missing)])
        raise TooFew(f"private set intersection needs all parties, and {names} did not take part: {why}")

    def _read_requests(self, party: int, content: RecordDict) -> None:
        batches, labels = self._peers(0)[party], np.flatnonzero(self.roster.owner == party)
        names = [f"{POINTS}{number}" for number in range(len(batches))]
        exactly(content, {**dict.fromkeys([*names, "counts"]), RECORD: ("tags", "key", "key-tag", "pairs")})
        said = config(content, RECORD, {"tags": (list, bytes), "key": bytes, "key-tag": bytes, "pairs": int})
        own = unpack(content, "counts", {"together": ("int64", (len(labels), len(labels)))})["together"]
        n = own.diagonal()
        most = np.minimum.outer(n, n)
        if n.min() < 1 or (own != own.T).any() or ((own < 0) | (own > most)).any() or said["pairs"] != n.sum():
            raise BadMessage("counts of its own labels that cannot be")
        if len(said["tags"]) != len(batches):
            raise BadMessage("not one tag for each party")
        for name, batch in zip(names, batches, strict=True):
            sizes, _ = read_points(content, name, len(self.pairs[batch]))
            if (sizes != n[np.searchsorted(labels, self.pairs[batch][:, 0])]).any():
                raise BadMessage("other numbers of points than of records")
        for name, batch, tag in zip(names, batches, said["tags"], strict=True):
            self.relayed[batch] = content.array_records[name], tag
        self.keys[party], self.together[np.ix_(labels, labels)] = (said["key"], said["key-tag"], said["pairs"]), own

    def _read_answers(self, party: int, content: RecordDict) -> None:
        batches, n = self._peers(1)[party], self.together.diagonal()
        names = [f"{ANSWER}{number}" for number in range(len(batches))]
        exactly(content, {**dict.fromkeys([*names, "bitmap"]), RECORD: ("tags",)})
        tags = config(content, RECORD, {"tags": (list, bytes)})["tags"]
        if len(tags) != len(batches):
            raise BadMessage("not one tag for each party")
        numbers = unpack(content, "bitmap", {"numbers": ("uint64", self.bitmap.shape)})["numbers"]
        for name, batch in zip(names, batches, strict=True):
            asking, answering = self.pairs[batch].T
            wanted = {"points": ("uint8", (int(n[asking].sum()), POINT_BYTES))}
            if (read_points(content, name, len(asking), "own", **wanted)[0] != n[answering]).any():
                raise BadMessage("other numbers of points than of records")
        for name, batch, tag in zip(names, batches, tags, strict=True):
            self.relayed[batch] = content.array_records[name], tag
        self.bitmap += numbers

    def _read_counts(self, party: int, content: RecordDict) -> None:
        batches, n = self._peers(0)[party], self.together.diagonal()
        names = [f"shared {number}" for number in range(len(batches))]
        exactly(content, dict.fromkeys(names))
        found = {}
        for name, batch in zip(names, batches, strict=True):
            asking, answering = self.pairs[batch].T
            found[batch] = unpack(content, name, {"counts": ("int64", asking.shape)})["counts"]
            if ((found[batch] < 0) | (found[batch] > np.minimum(n[asking], n[answering]))).any():
                raise BadMessage("counts of shared records that cannot be")
        for batch, counts in found.items():
            asking, answering = self.pairs[batch].T
            self.together[asking, answering] = self.together[answering, asking] = counts


def _size(content: Mapping[str, Any]) -> int:
    return sum(record_bytes(record) for record in content.values() if isinstance(record, ArrayRecord))
