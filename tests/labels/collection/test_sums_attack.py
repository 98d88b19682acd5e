"""Who sees the clients' own counts can join them; who sees sums cannot; who has the key can look records up."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.labels.collection.buckets import Tables
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.sums_attack import attack_sums, label_sets, sets_from_clients, sets_from_sums, shared
from tests.labels.collection.problems import KEY
from tests.problems import random_split

SPLIT = random_split(400, 30, 12, seed=3)
NAMES = [f"label {u}" for u in range(12)]


def number(text: str) -> tuple[int, int]:
    found, total = text.split(" of ")
    return int(found.replace(",", "")), int(total.replace(",", ""))


def test_the_audit_of_sums() -> None:
    parties, guess, stranger, keyed, pairs = attack_sums(SPLIT, NAMES)
    joined, total = number(parties.label_sets)
    assert joined > 0.95 * total  # plain counts of each client are a join
    by_chance, _ = number(guess.label_sets)
    assert by_chance < 0.2 * total
    rightly, candidates = number(stranger.instances)
    assert abs(rightly - candidates / 2) < 3 * np.sqrt(candidates) / 2  # no better than a coin
    assert number(keyed.instances)[0] >= candidates - 2
    assert number(pairs.label_sets)[0] >= 0.99 * total


def test_label_sets_by_hand() -> None:
    Y = csr_matrix([[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    truth = label_sets(Y)
    assert truth == {np.array([0, 1]).tobytes(): 2, np.array([2]).tobytes(): 1}
    tables = Tables(4, 1 << 12)
    places = tables.places(Hasher("hmac-sha256", KEY), "records", [b"a", b"b", b"c"])
    assert sets_from_clients(tables, places, Y[:3]) == truth
    # Sums say 2, 1 and 2; the commonest labels are 0 and 1.
    guessed = sets_from_sums(tables, tables.vector(places, np.array([2, 1, 2])), np.array([2, 2, 1, 0]))
    assert guessed == {np.array([0, 1]).tobytes(): 2, np.array([0]).tobytes(): 1}
    assert shared(guessed, truth) == 2


def test_other_label_sets_of_the_same_sizes_give_the_server_the_same_sums() -> None:
    """So sums say nothing about which labels share a record, beyond set sizes and label counts."""
    one, other = csr_matrix([[1, 1, 0, 0], [0, 0, 1, 1]]), csr_matrix([[1, 0, 1, 0], [0, 1, 0, 1]])
    tables = Tables(3, 50)
    places = tables.places(Hasher("hmac-sha256", KEY), "records", [b"a", b"b"])
    sums = [tables.vector(places[Y.tocoo().row]) for Y in (one, other)]
    np.testing.assert_array_equal(*sums)
    np.testing.assert_array_equal(one.getnnz(axis=0), other.getnnz(axis=0))
    assert sets_from_clients(tables, places, one) != sets_from_clients(tables, places, other)
