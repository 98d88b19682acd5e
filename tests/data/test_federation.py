from __future__ import annotations

import tracemalloc

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Split
from fedalc.data.federation import form_clients

ROWS = csr_matrix(np.ones((4, 1), dtype=np.float32))


def test_users_are_numbered_in_the_order_of_their_names() -> None:
    federation = form_clients(Split(ROWS, ROWS, ("bob", "ähm", "Bob", "bob")), "users")
    assert federation.users is not None and federation.users.tolist() == [1, 2, 0, 1]
    assert federation.user_of.tolist() == [0, 1, 2] and federation.counts.tolist() == [1, 2, 1]


def test_one_long_name_does_not_cost_its_length_for_each_instance() -> None:
    rows = csr_matrix(np.ones((2000, 1), dtype=np.float32))
    split = Split(rows, rows, ("x" * 10_000, *map(str, range(1999))))
    tracemalloc.start()
    form_clients(split, "users")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e6, "2000 names of 10,000 characters would be 80 MB"
