"""Pair counts by private set intersection: the server learns |S_u ∩ S_v| and no digest (docs/set-sizes.md).

For each pair of labels at different parties, one party learns from the other how many instances they share, and nothing
about which (openmined-psi: elliptic-curve Diffie-Hellman, cardinality only), and tells the server. The server passes
their messages on. Each pair of labels has fresh keys, so that messages about different pairs cannot be linked.

`intersect` simulates it. Real parties (`deployment.flower.party_intersections`) take the steps one by one: `ask`,
`answer`, `shared_count`.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import CollectionSettings
from fedalc.core.progress_events import watched
from fedalc.errors import FedalcError
from fedalc.labels.collection.buckets import FEWEST_BUCKETS, Tables
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.held_pairs import record_places
from fedalc.labels.collection.identity import SharedEncoder
from fedalc.labels.collection.simulate import hashed
from fedalc.labels.collection.sums import Exchange, Held, added, simulated_hasher
from fedalc.labels.correlations import Correlations, count_type

SECONDS_PER_POINT, SECONDS_PER_PAIR = 1e-4, 8e-3
"""About how long one core takes for one instance in one of the four steps of an intersection, and for new keys."""
_LONG = 3600.0
POINT_BYTES = 33
INSTALL = "pip install 'fedalc[psi]'"

Sets = dict[int, dict[int, frozenset[str]]]
"""The digests of each party's instances with each label: label → party → digests."""


@dataclass
class Traffic:
    """What parties sent each other through the server."""

    intersections: int = 0
    bytes: int = 0


def intersect(
    settings: CollectionSettings,
    features: csr_matrix,
    labels: csr_matrix,
    encoder: SharedEncoder,
    senders: np.ndarray | None = None,
    hasher: Hasher | None = None,
) -> tuple[Correlations, int, dict[str, Any]]:
    """Return N (estimated by a sum, as with `by = "sums"`), n and c, the bytes that parties sent, and facts.

    `senders`: the party of each instance. Without it each label is a party of its own. `hasher`: that of real parties,
    on which the estimate of N depends.
    """
    hasher = hasher or simulated_hasher(settings, encoder.seed)
    digests, kind = hashed(settings, hasher, features, encoder)
    held = Held.of(digests, labels, senders)
    names, sets = [digest.tobytes().hex() for digest in held.digests], defaultdict[int, dict[int, set[str]]](dict)
    owners = held.label if senders is None else held.sender
    for record, label, owner in zip(held.record, held.label.tolist(), owners.tolist(), strict=True):
        sets[label].setdefault(owner, set()).add(names[record])
    frozen = {u: {owner: frozenset(own) for owner, own in owners_of.items()} for u, owners_of in sets.items()}
    counts, together, traffic = pair_counts(frozen, labels.shape[1])
    exchange, tables = Exchange(), bitmap_for(len(held.label))
    places = record_places(tables, hasher, held.digests)[held.record]
    records = tables.records(added(tables, places, np.ones(len(places), dtype=np.uint64), 1, held, exchange))
    known = estimated(records, counts, together)
    facts = {"by": "psi", "algorithm": settings.algorithm, "identity": kind, "digest_bytes": settings.digest_bytes}
    facts |= {"intersections": traffic.intersections, "records": known.instances}
    parties = len(np.unique(owners))
    return known, traffic.bytes + 8 * exchange.sent * parties, facts


def bitmap_for(pairs: int) -> Tables:
    """Return the one table from whose empty buckets N is estimated. `pairs`: of a record and a label."""
    return Tables(1, max(pairs, FEWEST_BUCKETS))


def estimated(records: float, counts: np.ndarray, together: csr_matrix) -> Correlations:
    """Return the correlations with an estimated number of records, which is at least that of the commonest label."""
    instances = max(round(records), int(counts.max(initial=0)))
    return Correlations(instances, counts, together.astype(count_type(instances)))


def pair_counts(sets: Sets, label_count: int) -> tuple[np.ndarray, csr_matrix, Traffic]:
    """Return n, c and the traffic. Labels of one party are counted there. Of a label that several parties have, each
    instance is left to the first party that has it."""
    traffic = Traffic()
    owned = {label: _each_once(parts, traffic) for label, parts in sets.items()}
    _note_if_long(owned)
    counts = np.zeros(label_count, dtype=np.int64)
    for label, parts in owned.items():
        counts[label] = sum(map(len, parts.values()))
    row, column, value = [], [], []
    pairs = list(combinations(sorted(owned), 2))
    for u, v in watched("pairs of labels intersected", pairs, len(pairs)):
        if size := _together(owned[u], owned[v], traffic):
            row += [u, v]
            column += [v, u]
            value += [size, size]
    together = csr_matrix((np.array(value, dtype=np.int64), (row, column)), shape=(label_count, label_count))
    return counts, together, traffic


def intersection_size(ours: frozenset[str], theirs: frozenset[str], traffic: Traffic) -> int:
    """Return how many elements two parties share. The party with fewer asks; the other learns only their number."""
    asking, answering = sorted((ours, theirs), key=len)
    return len(_run(asking, answering, False, traffic))


def _each_once(parts: dict[int, frozenset[str]], traffic: Traffic) -> dict[int, frozenset[str]]:
    """Return the parties' instances of one label without those that an earlier party has too. A later party learns
    which of its own these are."""
    owned: dict[int, frozenset[str]] = {}
    for party in sorted(parts):
        own = parts[party]
        for earlier in sorted(owned):
            own -= {sorted(parts[party])[place] for place in _run(parts[party], parts[earlier], True, traffic)}
        owned[party] = own
    return owned


def _together(first: dict[int, frozenset[str]], second: dict[int, frozenset[str]], traffic: Traffic) -> int:
    total = 0
    for (party, ours), (other, theirs) in product(first.items(), second.items()):
        total += len(ours & theirs) if party == other else intersection_size(ours, theirs, traffic)
    return total


def _run(asking: frozenset[str], answering: frozenset[str], reveal: bool, traffic: Traffic) -> range | list[int]:
    """Intersect two sets with keys made for this. Return as many numbers as they share: with `reveal`, the places in
    the sorted `asking`.

    Elements go in sorted, by digests under the parties' key, so their order says nothing. `Raw` has no false positives.
    """
    if not asking or not answering:
        return []
    psi = library()
    client, server = psi.client.CreateWithNewKey(reveal), psi.server.CreateWithNewKey(reveal)
    request = client.CreateRequest(sorted(asking))
    setup = server.CreateSetupMessage(1e-9, len(asking), sorted(answering), psi.DataStructure.RAW)
    response = server.ProcessRequest(request)
    traffic.intersections += 1
    traffic.bytes += sum(len(message.SerializeToString()) for message in (request, setup, response))
    if reveal:
        return list(client.GetIntersection(setup, response))
    return range(client.GetIntersectionSize(setup, response))


def ask(secret: bytes, elements: Sequence[str]) -> np.ndarray:
    """Return the asking party's points, one for each element, sorted. The same secret gives the same points. In the
    order of elements, the points of one record would be in the same place for every other label."""
    request = library().client.CreateFromKey(_scalar(secret), False).CreateRequest(list(elements))
    return _matrix(sorted(request.encrypted_elements))


def answer(secret: bytes, asked: np.ndarray, elements: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the answering party's own points, and the asking party's multiplied once more; both sorted. ValueError for
    what are no points of the curve."""
    psi = library()
    server = psi.server.CreateFromKey(_scalar(secret), False)
    request = psi.Request(reveal_intersection=False, encrypted_elements=_list(asked))
    try:
        answered = server.ProcessRequest(request).encrypted_elements
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    setup = server.CreateSetupMessage(1e-9, len(asked), list(elements), psi.DataStructure.RAW)
    return _matrix(sorted(setup.raw.encrypted_elements)), _matrix(sorted(answered))


def shared_count(secret: bytes, own: np.ndarray, answered: np.ndarray) -> int:
    """At the asking party: return how many elements both have. `own`, `answered`: as `answer` returns them."""
    psi = library()
    setup, response = psi.ServerSetup(), psi.Response(encrypted_elements=_list(answered))
    setup.raw.encrypted_elements.extend(_list(own))
    try:
        return int(psi.client.CreateFromKey(_scalar(secret), False).GetIntersectionSize(setup, response))
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def _scalar(secret: bytes) -> bytes:
    """Return 32 random bytes as a number below the order of the curve, which is a little below 2^256."""
    return bytes([secret[0] & 0x7F]) + secret[1:]


def _matrix(points: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, POINT_BYTES)


def _list(points: np.ndarray) -> list[bytes]:
    return [point.tobytes() for point in points]


def library() -> Any:
    try:
        import private_set_intersection.python as psi
    except ImportError:
        raise FedalcError(f"private set intersection needs openmined-psi: {INSTALL}") from None
    return psi


def _note_if_long(owned: Sets) -> None:
    pairs = len(owned) * (len(owned) - 1) // 2
    seconds = SECONDS_PER_POINT * sum(_points(owned)) + SECONDS_PER_PAIR * pairs
    if seconds > _LONG:
        warnings.warn(
            f"private set intersection of {len(owned):,} labels takes about {seconds / 3600:.0f} hours of one core; "
            "it is meant for few labels (docs/set-sizes.md)",
            stacklevel=2,
        )


def _points(owned: Sets) -> Iterator[int]:
    """Yield the points of each label's intersections with later ones: the smaller set thrice, the larger once."""
    sizes = np.sort([sum(map(len, parts.values())) for parts in owned.values()])
    larger = np.cumsum(sizes[::-1])[::-1] - sizes
    for rank, size in enumerate(sizes.tolist()):
        yield 3 * size * (len(sizes) - 1 - rank) + int(larger[rank])
