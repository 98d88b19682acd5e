"""The least work of a round with local epochs and batches: operations, and bytes that must move.

`lockstep` reads θ once per step for all clients of a group (counted: one group), forward and backward. For each visit
of a record it reads a row of the first product and changes a row of C_u; for each dense layer it writes the inputs and
slopes, and reads them again for the sum of changes. At the end it adds to the sum of changes. Corrections of later
steps are left out, so the bound is lower than what any grouping can reach.

A loop over clients copies θ to each client, adds it to the average, and at each step reads the dense layers twice,
writes all gradients, reads them, and reads and writes θ.
"""

from __future__ import annotations

import numpy as np

from peers.job import Job

NUMBER = 4  # bytes


def bounds(job: Job) -> dict[str, float]:
    """Return the operations of a round in GFLOP, and the GB that lockstep and a loop over clients have to move."""
    first, dense = job.theta[0], job.theta[1::2]
    counts = job.counts
    steps = job.epochs * (np.ceil(counts / job.batch) if job.batch else np.ones(len(counts)))
    visits = job.epochs * counts.sum()
    one_step = steps.max() == 1  # then clients share the products of a record
    multiplied = job.labels.shape[0] if one_step else visits
    values = job.features.size if isinstance(job.features, np.ndarray) else job.features.nnz
    matrices = sum(matrix.size for matrix in dense)
    rows = 3 * first.shape[1] + 2 * sum(sum(matrix.shape) for matrix in dense)
    ours = visits * rows + steps.max() * 2 * matrices + 3 * job.parameters + values
    loop = len(counts) * 5 * job.parameters + steps.sum() * (4 * job.parameters + 2 * matrices)
    return {
        "gflop": float(6 * multiplied * matrices + 4 * values * first.shape[1]) / 1e9,
        "gb": float(ours) * NUMBER / 1e9,
        "gb_of_a_loop": float(loop) * NUMBER / 1e9,
    }
