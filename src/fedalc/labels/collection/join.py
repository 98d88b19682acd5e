"""Server side: join messages with equal digests into one instance with a set of labels. Needs no key and no names.

The result depends only on the set of messages: not on their order, on how a client splits them into files, or on
repeated messages. Memory: about 80 bytes per message in addition to the messages (digests of 16 bytes), so 5.7 million
messages take under half a gigabyte.

The server does not trust the parties. It refuses a party that errs or cheats, with a note that says who and why, and
joins the messages of the others. This holds against single parties. Several parties that collude, or one under many
names, can still cause an honest client's label to be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.disputes import listed, settle
from fedalc.labels.collection.messages import Messages, Protocol, as_words, load_messages

MOST_LABELS_PER_INSTANCE = 1000  # of an instance: those with more are left out


@dataclass(frozen=True, eq=False)
class Joined:
    """`label_sets` is Y with float32 ones: row j is the instance `digests[j]` (ascending), column u `pseudonyms[u]`."""

    label_sets: csr_matrix
    digests: np.ndarray
    pseudonyms: np.ndarray
    protocol: Protocol
    notes: tuple[str, ...]
    clients: tuple[str, ...] = ()  # those whose messages were joined


def read_messages(
    paths: Sequence[Path], progress: Callable[[Path], None] | None = None
) -> tuple[list[Messages], list[str]]:
    """Return the messages in these files, and notes. A damaged file is refused, a repeated file is read once."""
    messages: list[Messages] = []
    notes: list[str] = []
    seen: dict[str, Path] = {}
    for path in paths:
        try:
            part, checksum = load_messages(path)
            if empty := len(part.labels_without_messages):
                notes.append(
                    f"{path}: client {part.client} claims {empty} labels without a message; these labels are ignored"
                )
                part = part.with_messages_only()
            if checksum in seen:
                notes.append(f"{path}: the same file as {seen[checksum]}, read once")
            else:
                seen[checksum] = path
                messages.append(part)
        except DataError as error:
            notes.append(str(error))
        if progress is not None:
            progress(path)
    return messages, notes


def join(
    messages: Iterable[Messages],
    *,
    max_labels: int = MOST_LABELS_PER_INSTANCE,
    shared_labels: bool = False,
    max_labels_per_client: int | None = None,
    say_counts: bool = True,
) -> Joined:
    """Join messages into label sets. `Joined.notes` says what was refused and why.

    An instance with more than `max_labels` labels is left out: its pairs could fill the memory. A client that alone
    puts more than `max_labels` labels on an instance is refused, and so is a client that claims more than
    `max_labels_per_client` labels. A label that several clients claim is contested, unless `shared_labels`. With
    `say_counts=False` notes do not say how many instances they concern.
    """
    protocol, parts, refused = _same_protocol(list(messages))
    if max_labels_per_client is not None:
        parts, more_notes = _few_enough_labels(parts, max_labels_per_client)
        refused += more_notes
        if not parts:
            raise _nothing_left(refused)
    notes = list(refused)
    clients = sorted({part.client for part in parts})
    claims = [part.pseudonyms for part in parts]
    pseudonyms, label = distinct(np.concatenate(claims))
    sizes = np.fromiter(map(len, claims), dtype=np.intp, count=len(claims))
    number_of = {name: number for number, name in enumerate(clients)}
    claimant = np.repeat([number_of[part.client] for part in parts], sizes)
    digests = np.concatenate([part.digests for part in parts])
    labels = _claims_of_messages([part.labels for part in parts], sizes)
    joined_clients = clients
    if not shared_labels:
        standing, more_notes = settle(label, claimant, pseudonyms, clients)
        notes += more_notes
        if not standing.all():
            accepted = standing[labels]
            labels = (np.cumsum(standing) - 1)[labels[accepted]]
            digests, label, claimant = digests[accepted], label[standing], claimant[standing]
            remaining, label = np.unique(label, return_inverse=True)
            pseudonyms = pseudonyms[remaining]
            joined_clients = [clients[number] for number in np.unique(claimant)]
    if len(labels) == 0:
        raise _nothing_left(notes)
    Y, instances = _label_sets(digests, label.astype(np.int32)[labels], len(pseudonyms))
    crowded = np.diff(Y.indptr) > max_labels
    if crowded.any():
        flooding = _flooding(digests, claimant[labels], label[labels], max_labels, clients)
        if flooding:
            refused.append(f"{_clients(flooding)} put more than {max_labels} labels on one instance: refused")
            honest = [part for part in parts if part.client not in flooding]
            if not honest:
                raise _nothing_left(refused)
            joined = join(honest, max_labels=max_labels, shared_labels=shared_labels, say_counts=say_counts)
            return replace(joined, notes=(*refused, *joined.notes))
        note = _crowded_note(Y[crowded], max_labels, label, claimant, clients)
        notes.append(note if say_counts else f"instances with more than {max_labels} labels left out")
        Y, instances = Y[~crowded], instances[~crowded]
        if Y.shape[0] == 0:
            raise _nothing_left(notes)
    return Joined(Y, instances, pseudonyms, protocol, tuple(notes), tuple(joined_clients))


def _few_enough_labels(parts: list[Messages], most: int) -> tuple[list[Messages], list[str]]:
    """Return the parts of clients that claim at most `most` labels over all their parts, and notes on the others."""
    claims: dict[str, set[bytes]] = {}
    for part in parts:
        claims.setdefault(part.client, set()).update(row.tobytes() for row in part.pseudonyms)
    greedy = {client: len(claimed) for client, claimed in claims.items() if len(claimed) > most}
    notes = [f"client {client} {too_many_labels(count, most)}" for client, count in sorted(greedy.items())]
    return [part for part in parts if part.client not in greedy], notes


def too_many_labels(count: int, most: int) -> str:
    """Return the reason for refusing a party with `count` labels."""
    return f"claims {count:,} labels, more than the {most:,} that one party may have (--max-labels-per-party)"


def set_sizes(joined: Joined, digests: np.ndarray) -> np.ndarray:
    """Return how many labels the instance of each digest has: the server's answer to a client.

    It is 1 for an instance that was left out of the join: its owner's own label.
    """
    every, which = distinct(np.concatenate([joined.digests, digests]))
    sizes = np.ones(len(every), dtype=np.int64)
    sizes[which[: len(joined.digests)]] = np.diff(joined.label_sets.indptr)
    return sizes[which[len(joined.digests) :]]


def holder_counts(record: np.ndarray, label: np.ndarray, party: np.ndarray) -> np.ndarray:
    """Return how many parties have each (record, label) pair. Arrays: one entry per pair of a party, repeats allowed.

    >>> holder_counts(np.array([7, 7, 7, 8]), np.array([0, 1, 0, 0]), np.array([0, 0, 1, 1])).tolist()
    [2, 1, 2, 1]
    """
    _, pair = np.unique(record * (label.max(initial=0) + 1) + label, return_inverse=True)
    parties = party.max(initial=0) + 1
    return np.bincount(np.unique(pair * parties + party) // parties)[pair]


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, sorted, and for each given row the number of its distinct row."""
    order, first = _grouped(rows)
    which = np.empty(len(rows), dtype=np.intp)
    which[order] = np.cumsum(first) - 1
    return rows[order[first]], which


def _claims_of_messages(labels: list[np.ndarray], claims: np.ndarray) -> np.ndarray:
    """Return the claim that each message belongs to. A claim is a pseudonym in a part, numbered over all parts."""
    sizes = np.fromiter(map(len, labels), dtype=np.intp, count=len(labels))
    return np.concatenate(labels) + np.repeat(np.cumsum(claims) - claims, sizes)


def _nothing_left(notes: list[str]) -> FedalcError:
    return FedalcError("\n".join((*notes, "nothing is left to join")))


def _same_protocol(messages: list[Messages]) -> tuple[Protocol, list[Messages], list[str]]:
    """Return the protocol that most clients used, the messages made with it, and notes on the others."""
    if not messages:
        raise FedalcError("there are no messages to join")
    users: dict[Protocol, set[str]] = {}
    for protocol, run in groupby(messages, key=attrgetter("protocol")):
        users.setdefault(protocol, set()).update(part.client for part in run)
    if len(users) == 1:
        return messages[0].protocol, messages, []
    ranked = sorted(users, key=lambda protocol: -len(users[protocol]))
    chosen = ranked[0]
    if len(users[ranked[1]]) == len(users[chosen]):
        sides = sorted(
            f"{listed(sorted(users[p]))} ({p.algorithm}, {p.identity}, {p.digest_bytes} bytes, "
            f"key {p.key_check or 'none'}, run {p.run or 'none'})"
            for p in ranked
            if len(users[p]) == len(users[chosen])
        )
        raise FedalcError(
            "the clients made their digests in different ways, and none is the most frequent: "
            f"{'; '.join(sides)}. Leave out the wrong files, or ask for correct ones"
        )
    notes = [f"{_clients(sorted(users[protocol]))} used {_difference(protocol, chosen)}" for protocol in ranked[1:]]
    return chosen, [part for part in messages if part.protocol == chosen], sorted(notes)


def _difference(protocol: Protocol, chosen: Protocol) -> str:
    if protocol.algorithm != chosen.algorithm:
        return f"another algorithm ({protocol.algorithm}, not {chosen.algorithm})"
    if protocol.identity != chosen.identity:
        return f"another identity ({protocol.identity}, not {chosen.identity})"
    if protocol.digest_bytes != chosen.digest_bytes:
        return f"digests of another length ({protocol.digest_bytes} bytes, not {chosen.digest_bytes})"
    if protocol.run != chosen.run:
        return f"another run id ({protocol.run or 'none'}, not {chosen.run or 'none'})"
    return "another key than most"


def _clients(names: list[str]) -> str:
    return f"client{'s' * (len(names) > 1)} {listed(names)}"


def _label_sets(digests: np.ndarray, labels: np.ndarray, label_count: int) -> tuple[csr_matrix, np.ndarray]:
    order, first = _grouped(digests)
    starts = np.flatnonzero(first)
    indptr = np.append(starts, len(order)).astype(np.int32 if len(order) < 1 << 31 else np.int64)
    Y = csr_matrix((np.ones(len(order), dtype=np.float32), labels[order], indptr), shape=(len(starts), label_count))
    Y.sum_duplicates()
    Y.data[:] = 1
    return Y, digests[order[starts]]


def _grouped(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order that sorts rows of bytes, and where in that order a new row begins.

    Digests are uniformly distributed, so a row's first bits sort it into a bucket of a few rows, and the next 30 bits
    sort it there. Rows equal in these bits are compared in full. The few that still differ are sorted by all their
    words. Rows that an attacker made similar take longer; the result is the same.
    """
    words = as_words(rows)
    head = words[:, 0]
    bits = min(max(len(rows).bit_length() - 2, 1), 30)
    bucket = (head >> np.uint64(64 - bits)).astype(np.int32)
    rest = (head << np.uint64(bits) >> np.uint64(34)).astype(np.int32)
    nothing = np.empty(len(rows), dtype=bool)
    # Sparse matrices sort in compiled code: `tocsc` by column (bucket), `sort_indices` within a row.
    by_bucket = csr_matrix((nothing, bucket, np.arange(len(rows) + 1)), shape=(len(rows), 1 << bits)).tocsc()
    buckets = csr_matrix((by_bucket.indices, rest[by_bucket.indices], by_bucket.indptr), shape=(1 << bits, 1 << 30))
    buckets.sort_indices()
    order = buckets.data
    ordered = words.take(order, axis=0)
    same = _equal(ordered[1:], ordered[:-1])
    prefix = ordered[:, 0] >> np.uint64(34 - bits)
    same_prefix = prefix[1:] == prefix[:-1]
    unsorted = same_prefix & ~same
    if unsorted.any():
        run = np.cumsum(np.append(True, ~same_prefix))
        at = np.flatnonzero(np.isin(run, run[1:][unsorted]))
        inside = order[at]
        order[at] = inside[np.lexsort(words[inside].T[::-1])]
        at = at[at > 0]
        same[at - 1] = _equal(words[order[at]], words[order[at - 1]])
    return order, np.append(True, ~same)


def _equal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return which rows are equal in all words."""
    equal = first[:, 0] == second[:, 0]
    for word in range(1, first.shape[1]):
        equal &= first[:, word] == second[:, word]
    return equal


def _flooding(
    digests: np.ndarray, client: np.ndarray, label: np.ndarray, max_labels: int, clients: list[str]
) -> list[str]:
    """Return the clients that alone put more than `max_labels` labels on an instance. Arrays: one entry per message."""
    _, instance = distinct(digests)
    triples = np.unique(np.stack([instance, client, label]), axis=1)
    starts = np.flatnonzero(np.r_[True, (triples[:2, 1:] != triples[:2, :-1]).any(axis=0)])
    label_counts = np.diff(np.r_[starts, triples.shape[1]])
    return [clients[number] for number in np.unique(triples[1, starts[label_counts > max_labels]])]


def _crowded_note(
    crowded: csr_matrix, max_labels: int, label: np.ndarray, claimant: np.ndarray, clients: list[str]
) -> str:
    """Return a note on the instances left out. It names the clients that hold most of their labels."""
    per_label = np.bincount(crowded.indices, minlength=crowded.shape[1])
    claims = np.unique(np.stack([label, claimant]), axis=1)  # a client may claim a label in several parts
    per_client = np.bincount(claims[1], weights=per_label[claims[0]], minlength=len(clients))
    most = np.argsort(-per_client, kind="stable")[:3]
    names = listed([clients[client] for client in most if per_client[client] > 0])
    count = f"{crowded.shape[0]} instances" if crowded.shape[0] > 1 else "1 instance"
    return f"{count} with more than {max_labels} labels left out; most of these labels are of {names}"
