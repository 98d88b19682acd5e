"""At a party: private set intersection with other parties (`collection.by = "psi"`), whose messages the server relays.

The server has no key of the parties, so it cannot ask with records of its own: what it relays has a tag under the
parties' key, over the run, its settings, both names, the labels and all points. A party asks and answers each pair of
labels once in a run. Its secrets follow from a seed in Flower's context of the run, which stays at the party's node, so
that a question that is asked again gets the same bytes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.intersections import ANSWER, PAIRS, POINTS, RECORD, read_points
from fedalc.deployment.flower.introductions import check_name
from fedalc.deployment.flower.limits import Limits, check_memory
from fedalc.deployment.flower.party import Party
from fedalc.deployment.flower.party_memory import check_asked, check_unchanged, fingerprint, remembered
from fedalc.deployment.flower.questions import apart, check_all_labels, own_columns, read_question
from fedalc.deployment.flower.wire import BadMessage, config, pack, read_json, unpack
from fedalc.errors import FedalcError
from fedalc.labels.collection import psi
from fedalc.labels.collection.held_pairs import Held, record_places
from fedalc.labels.collection.messages import PSEUDONYM_BYTES
from fedalc.secure_sums.primitives import add_mask, agreed_secret, derived, digest, is_tag, public_key, tag

_SEED = "fedalc-psi-seed"
_MASKS = "private set intersection"  # the purpose of a party's X25519 key
_REQUESTED = "psi requests"  # in the party's memory of the run: the tag of its request to each party
_ALL_RUNS = "_psi"  # in place of a run's id: lists of parties are compared over all runs


def check_intersects(party: Party, settings: Experiment) -> None:
    """Refuse a run with private set intersection that this party could not take part in."""
    if settings.collection.by != "psi":
        return
    if party.collection.key is None:
        raise BadMessage("collects by psi, and this party has no key that others could know it by")
    try:
        psi.library()
    except FedalcError as error:
        raise BadMessage(f"collects by psi, and on this party's machine {error}") from None


@dataclass(frozen=True)
class _Batch:
    """All pairs of labels of which one party asks another: the pseudonyms of its own labels, and of the other's."""

    asking: str
    answering: str
    own: np.ndarray
    other: np.ndarray

    @property
    def parts(self) -> tuple[bytes, ...]:
        return self.asking.encode(), self.answering.encode(), self.own.tobytes(), self.other.tobytes()

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return ((own.tobytes(), other.tobytes()) for own, other in zip(self.own, self.other, strict=True))


class Intersecting:
    """One message of the server, and this party's records of each of its labels."""

    def __init__(self, message: Message, context: Context) -> None:
        self.limits = Limits.from_node_config(context.node_config)
        asked = {"labels": (list, bytes), "numbers": (list, int)}
        self.party, settings, self.question = read_question(message, context, **asked)
        if settings.collection.by != "psi":
            raise BadMessage("asks for private set intersection, in a run that does not collect by it (collection.by)")
        check_intersects(self.party, settings)
        self.content, self.context, self.run = message.content, context, self.question["run"]
        self.secret = self.party.hasher.secret("private set intersection")
        said = json.dumps(read_json(self.question["settings"], "the settings"), sort_keys=True)
        self.about = fingerprint(self.run.encode(), said.encode(), repr(self.question["share"]).encode()).encode()
        self._unchanged("psi labels", *sorted(self.question["labels"]))
        digests, out = apart(self.party, settings, self.question["share"])
        check_all_labels(self.party, self.question, out)  # unions of some would show how many records have three
        labels = self.party.holding.split.labels[:, own_columns(self.party, self.question)][~out]
        if not labels.getnnz(axis=0).all():
            raise BadMessage("asks to intersect a label that this party has no record of to train on")
        self.held = Held.of(digests[~out], labels, None)
        names = [record.tobytes().hex() for record in self.held.digests]
        self.sets: dict[bytes, list[str]] = {label: [] for label in self.question["labels"]}
        for record, label in zip(self.held.record.tolist(), self.held.label.tolist(), strict=True):
            self.sets[self.question["labels"][label]].append(names[record])

    def requests(self) -> RecordDict:
        """Ask other parties: points for each pair of labels. Also send n and c of the party's own labels, and a key to
        mask with."""
        reply, tags, batches = RecordDict(), list[bytes](), self._batches(asks=True)
        self._unchanged("psi asked", *(part for batch in batches for part in batch.parts))  # before any work
        for number, batch in enumerate(batches):
            found = [psi.ask(self._secret_for(batch, pair), self.sets[pair[0]]) for pair in self._timely(batch)]
            sizes, points = np.array([len(part) for part in found], dtype=np.int64), np.concatenate(found)
            tags.append(self._tag("request", batch, sizes, points))
            reply[f"{POINTS}{number}"] = pack({"sizes": sizes, "points": points})
        requested = {batch.answering: request.hex() for batch, request in zip(batches, tags, strict=True)}
        self._unchanged(_REQUESTED, json.dumps(requested).encode())
        key, pairs = public_key(self._seed, _MASKS), len(self.held.label)
        self._unchanged("psi key", key)
        check_memory(8 * len(self.sets) ** 2)
        own = csr_matrix((np.ones_like(self.held.label), (self.held.record, self.held.label)))
        reply["counts"] = pack({"together": (own.T @ own).toarray().astype(np.int64)})
        key_tag = tag(self.secret, *self._key_parts(self.party.name, key, pairs))
        reply[RECORD] = ConfigRecord({"tags": tags, "key": key, "key-tag": key_tag, "pairs": pairs})
        return reply

    def answers(self) -> RecordDict:
        """Answer the points of other parties. Also send a masked bitmap of records, of which the server can see only
        how many buckets are empty at all parties together."""
        reply, tags = RecordDict(), []
        for number, (batch, claimed) in enumerate(self._tagged(asks=False)):
            sizes, points = read_points(self.content, f"{POINTS}{number}", len(batch.own))
            self.limits.check("points", len(points))
            if not compare_digest(claimed, self._tag("request", batch, sizes, points)):
                raise BadMessage(f"relays a request that {batch.asking[:40]} has not made in this run")
            self._unchanged(f"psi answered {batch.asking}", claimed)
            found = []
            for pair, part in zip(self._timely(batch), np.split(points, np.cumsum(sizes)[:-1]), strict=True):
                if len(np.unique(part, axis=0)) != len(part):
                    raise BadMessage(f"relays points of {batch.asking[:40]} of which two are the same")
                try:
                    found.append(psi.answer(self._secret_for(batch, pair), part, self.sets[pair[1]]))
                except ValueError:
                    raise BadMessage(f"relays what are no points, of {batch.asking[:40]}") from None
            lengths = np.array([len(own) for own, _ in found], dtype=np.int64)
            setup, answered = (np.concatenate(parts) for parts in zip(*found, strict=True))
            tags.append(self._tag("answer", batch, claimed, lengths, setup, answered))
            reply[f"{ANSWER}{number}"] = pack({"sizes": lengths, "own": setup, "points": answered})
        reply[RECORD] = ConfigRecord({"tags": tags})
        reply["bitmap"] = pack({"numbers": self._bitmap()})
        return reply

    def counts(self) -> RecordDict:
        """Say how many records each pair of labels shares."""
        reply = RecordDict()
        with remembered(self.context, self.run) as known:
            asked = json.loads(bytes.fromhex(known.get(_REQUESTED, b"{}".hex())))
        for number, (batch, claimed) in enumerate(self._tagged(asks=True)):
            ours = np.array([len(self.sets[own]) for own, _ in batch], dtype=np.int64)
            wanted = {"points": ("uint8", (int(ours.sum()), psi.POINT_BYTES))}
            lengths, setup, answered = read_points(self.content, f"{ANSWER}{number}", len(batch.own), "own", **wanted)
            self.limits.check("points", len(setup))
            request = bytes.fromhex(asked.get(batch.answering, ""))
            tag_of_it = self._tag("answer", batch, request, lengths, setup, answered)
            if not request or not compare_digest(claimed, tag_of_it):
                raise BadMessage(f"relays an answer that {batch.answering[:40]} has not given to this party's request")
            each = [np.split(a, np.cumsum(b)[:-1]) for a, b in ((setup, lengths), (answered, ours))]
            try:
                shared = [
                    psi.shared_count(self._secret_for(batch, pair), own, again)
                    for pair, own, again in zip(self._timely(batch), *each, strict=True)
                ]
            except ValueError:
                raise BadMessage(f"relays what are no points, of {batch.answering[:40]}") from None
            reply[f"shared {number}"] = pack({"counts": np.array(shared, dtype=np.int64)})
        return reply

    def _batches(self, asks: bool) -> list[_Batch]:
        """Return what the message is about: with each other party, pairs of its labels and this party's."""
        others = config(self.content, RECORD, {"parties": (list, str)})["parties"]
        if len(set(others)) != len(others) or self.party.name in others:
            raise BadMessage("names a party twice, or asks this party to intersect with itself")
        for other in others:
            check_name(other)
        batches, wanted = [], {name: ("uint8", (None, PSEUDONYM_BYTES)) for name in ("asking", "answering")}
        for number, other in enumerate(others):
            asking, answering = (self.party.name, other) if asks else (other, self.party.name)
            pairs = unpack(self.content, f"{PAIRS}{number}", wanted)
            if not len(pairs["asking"]) or len(pairs["asking"]) != len(pairs["answering"]):
                raise BadMessage("asks for no intersection with a party, or not for pairs of labels")
            batch = _Batch(asking, answering, pairs["asking"], pairs["answering"])
            own, theirs = zip(*(pair if asks else pair[::-1] for pair in batch), strict=True)
            if len(set(batch)) != len(batch.own) or set(own) - set(self.sets) or set(theirs) & set(self.sets):
                raise BadMessage("asks for a pair of labels twice, or not of this party's with another's")
            self.limits.check("points", sum(len(self.sets[label]) for label in own))
            batches.append(batch)
        self.limits.check("intersections", max(1, sum(len(batch.own) for batch in batches)))
        return batches

    def _tagged(self, asks: bool) -> list[tuple[_Batch, bytes]]:
        batches, tags = self._batches(asks), config(self.content, RECORD, {"tags": (list, bytes)})["tags"]
        if len(tags) != len(batches):
            raise BadMessage("has not one tag for each party")
        return list(zip(batches, tags, strict=True))

    def _timely(self, batch: _Batch) -> Iterator[tuple[bytes, bytes]]:
        for pair in batch:
            self.limits.check_time()
            yield pair

    def _tag(self, what: str, batch: _Batch, *parts: bytes | np.ndarray) -> bytes:
        """Return the tag of a request or an answer, which only holders of the parties' key can make."""
        written = (part if isinstance(part, bytes) else part.tobytes() for part in parts)
        return tag(self.secret, f"psi {what}", self.about, *batch.parts, *written)

    def _secret_for(self, batch: _Batch, pair: tuple[bytes, bytes]) -> bytes:
        """Return this party's secret for one pair of labels: with the same for several, points could be linked."""
        names = batch.asking.encode(), batch.answering.encode()
        return derived(self._seed, "psi secret", self.about, *names, *pair)

    @property
    def _seed(self) -> bytes:
        record = self.context.state.get(_SEED)
        if not isinstance(record, ConfigRecord):
            record = self.context.state[_SEED] = ConfigRecord({"seed": secrets.token_bytes(32)})
        return cast(bytes, record["seed"])

    def _key_parts(self, name: str, key: bytes, pairs: int) -> tuple[str, bytes, bytes, bytes, bytes]:
        """Return what the tag of a party's key is over. `pairs`: how many pairs of a record and a label it has, by
        which the size of the bitmap is worked out."""
        return "psi key", self.about, name.encode(), key, str(pairs).encode()

    def _unchanged(self, what: str, *parts: bytes) -> None:
        """Refuse what differs from what the run said before. A single part is kept as it is."""
        value = parts[0].hex() if len(parts) == 1 else fingerprint(*parts)
        problem = f"differs from an earlier message of this run ({what}), or this party has restarted since"
        check_unchanged(self.context, self.run, {what: value}, f"{problem}: private set intersection needs a new run")

    def _bitmap(self) -> np.ndarray:
        """Return a random number for each bucket that has a record, 0 for others, masked: the sum over all parties
        shows which buckets are empty at all of them, and nothing else."""
        wanted: dict[str, Any] = {
            "names": (list, str),
            "keys": (list, bytes),
            "key-tags": (list, bytes),
            "pairs": (list, int),
        }
        said = config(self.content, RECORD, wanted)
        names, keys, own = said["names"], said["keys"], self.party.name
        if len({len(part) for part in said.values()}) > 1 or len(set(names)) != len(names) or len(names) < 2:
            raise BadMessage("has not one key for each of several parties")
        for name, key, claimed, pairs in zip(names, keys, said["key-tags"], said["pairs"], strict=True):
            if not is_tag(claimed, self.secret, *self._key_parts(name, key, pairs)):
                raise BadMessage(f"has a key or a number of pairs that {name[:40]} has not sent in this run")
        if dict(zip(names, keys, strict=True)).get(own) != public_key(self._seed, _MASKS):
            raise BadMessage("has another key of this party than its own")
        tables = psi.bitmap_for(sum(said["pairs"]))  # by what the parties say, and not the server
        self.limits.check("collection.buckets", tables.size)
        check_memory(32 * tables.size)
        everyone = digest("psi list", *(name.encode() for name in names), *keys, str(tables.size).encode())
        self._unchanged("psi list", everyone)
        listed = fingerprint(*(name.encode() for name in sorted(names)))
        check_asked(self.context, _ALL_RUNS, "list", listed, partial(self.limits.check, "bitmap_lists"))
        numbers = np.zeros(tables.size, dtype=np.uint64)
        add_mask(numbers, derived(self._seed, "psi numbers", everyone))
        numbers[numbers == 0] = 1
        occupied = np.zeros(tables.size, dtype=bool)
        occupied[record_places(tables, self.party.hasher, self.held.digests)[np.unique(self.held.record)]] = True
        numbers[~occupied] = 0
        for name, key in zip(names, keys, strict=True):
            if name != own:
                mask = derived(agreed_secret(self._seed, _MASKS, key), "psi mask", everyone)
                add_mask(numbers, mask, 1 if own < name else -1)
        return numbers
