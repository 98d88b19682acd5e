"""At a party: count the scores of its held-out records in bins, for probabilities and thresholds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord

from fedalc.deployment.flower.contributions import enough_measured
from fedalc.deployment.flower.limits import check_memory
from fedalc.deployment.flower.party_memory import check_asked, check_unchanged, fingerprint
from fedalc.deployment.flower.party_ranking import counted_parts, distinct_records, model_digest, own_influence, told
from fedalc.deployment.flower.wire import BadMessage, pack, unpack
from fedalc.evaluation.metrics import DEEPEST
from fedalc.evaluation.owner_scores import BINS, owner_scores
from fedalc.models.scoring import Scorer

if TYPE_CHECKING:
    from fedalc.deployment.flower.work import Work

SCORES, SIZES = "scores", "set-sizes"  # the records
MOST_LABELS = 4096
"""A party counts C × bins numbers; more labels would take too much to send."""


def counted_scores(work: Work) -> ArrayRecord | None:
    """Return the counts to send, or None if too few held-out records contribute to them."""
    work.limits.check("rankings", 1)  # a party that refuses to rank does not do this either
    if work.all_label_count > MOST_LABELS:
        raise BadMessage(f"asks for the scores of {work.all_label_count} labels, more than {MOST_LABELS}")
    first, own = distinct_records(work)
    least, held = told(work, own)
    sizes = _sizes(work, own.getnnz(axis=1), least)
    if work.settings.clients == "parties":
        own = counted_parts(work, own)
    check_memory(8 * work.all_label_count * (4 * BINS + 4 * work.settings.block_rows))
    model = work.model_of_all_labels()
    check_asked(
        work.context, work.question["run"], "calibrated", model_digest(work), partial(work.limits.check, "calibrations")
    )
    every, hits = np.zeros((2, work.all_label_count, BINS))
    influence = np.zeros(len(first))
    for start in range(0, len(first), work.settings.block_rows):
        work.limits.check_time()
        rows = slice(start, start + work.settings.block_rows)
        scorer = Scorer(model, work.federation.features[first[rows]], held)
        found = scorer.of_instances(slice(0, len(first[rows]))).double().cpu().numpy()
        for total, part in zip((every, hits), owner_scores(found, own[rows], sizes[rows]), strict=True):
            total += part
        influence[rows] = own_influence(scorer, own[rows])
    if not enough_measured(influence, work.limits.fewest):
        return None
    every[~held] = 0
    hits[~held] = 0
    return pack({name: part for of, total in (("every", every), ("hits", hits)) for name, part in _sparse(of, total)})


def _sparse(name: str, counts: np.ndarray) -> list[tuple[str, np.ndarray]]:
    places = np.flatnonzero(counts)
    return [(f"{name}-places", places.astype(np.int64)), (name, counts.ravel()[places])]


def _sizes(work: Work, own: np.ndarray, least: np.ndarray | None) -> np.ndarray:
    """Return how many labels each held-out record has. The server may not change it during a run."""
    if least is None:
        raise BadMessage("asks for counts of scores, for which parties need set sizes (client.set_size)")
    sizes = unpack(work.message.content, SIZES, {SIZES: ("uint32", (len(own),))})[SIZES].astype(np.int64)
    if (sizes < own).any() or (np.minimum(sizes, DEEPEST) != least).any():
        raise BadMessage("a record with fewer labels than this party's own, or other set sizes than for ranking")
    work.limits.check("set_size", int(sizes.max()))
    facts = {f"held-out {SIZES}": fingerprint(sizes.tobytes())}
    check_unchanged(work.context, work.question["run"], facts, "sends other set sizes than before in this run")
    return sizes
