"""At a party: rank all labels for its held-out records, and count how often its own are among the best."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import ArrayRecord
from scipy.sparse import csr_matrix

from fedalc.deployment.flower.contributions import enough_measured
from fedalc.deployment.flower.party_buckets import LookedUp, by_sums
from fedalc.deployment.flower.party_memory import check_asked, check_unchanged, fingerprint
from fedalc.deployment.flower.shared_labels import read_holders
from fedalc.deployment.flower.sum_messages import WEIGHTS
from fedalc.deployment.flower.wire import HOLDERS, SEARCH, BadMessage, pack, unpack
from fedalc.evaluation.metrics import CUTS, DEEPEST
from fedalc.evaluation.owner_hits import RANKED_BY, count_hits
from fedalc.models.scoring import Scorer

if TYPE_CHECKING:
    from fedalc.deployment.flower.work import Work

MOST_WEIGHTINGS = 16  # in one message; a search sends one for each label power


def ranked(work: Work) -> np.ndarray | None:
    """Return the hits to send, or None if too few held-out records contribute to them."""
    first, own = distinct_records(work)
    looked_up = _looked_up(work, own)
    sizes, held = told(work, own, looked_up)
    if work.settings.clients == "parties":
        own = counted_parts(work, own, looked_up)
    model, weights = work.model_of_all_labels(), _weights(work)
    _check_rankings(work, weights)
    weightings = [None] if weights is None else list(weights)
    hits = np.zeros((len(weightings), len(RANKED_BY) if sizes is not None else len(CUTS)))
    influence = np.zeros((len(weightings), len(first)))
    for start in range(0, len(first), work.settings.block_rows):
        rows = slice(start, start + work.settings.block_rows)
        scorer = Scorer(model, work.federation.features[first[rows]], held)
        assert len(scorer.encoded)  # kept for all weightings
        for number, weight in enumerate(weightings):
            work.limits.check_time()
            scorer.W = model.W if weight is None else model.W * torch.from_numpy(weight).to(model.W)[:, None]
            top = scorer.top(DEEPEST)[0].numpy()
            hits[number] += count_hits(top, own[rows], None if sizes is None else sizes[rows])
            influence[number, rows] = own_influence(scorer, own[rows])
    if not all(enough_measured(each, work.limits.fewest) for each in influence):
        return None
    if looked_up is not None:  # its part of the number of records, which the server does not know
        return np.append(hits, (np.asarray(own.sum(axis=1)).ravel() / looked_up.sizes).sum())
    return hits[0] if weights is None else hits


def pack_hits(work: Work, hits: np.ndarray) -> ArrayRecord:
    counts, gains = np.split(hits, [len(CUTS)], axis=-1)
    if work.settings.clients != "parties":  # there a hit that several parties count is a part of one
        counts = counts.astype(np.int64)
    return pack({"counts": counts} | ({"gains": gains} if gains.size else {}))


def _weights(work: Work) -> np.ndarray | None:
    """Return the weights of the labels' scores, several for each label: a search compares label powers by them."""
    if WEIGHTS not in work.message.content:
        return None
    if not work.question[SEARCH]:
        raise BadMessage("weights of labels, which only a search may send")
    wanted = {WEIGHTS: ("float64", (None, work.all_label_count))}
    weights = unpack(work.message.content, WEIGHTS, wanted)[WEIGHTS]
    if not 0 < len(weights) <= MOST_WEIGHTINGS:
        raise BadMessage(f"{len(weights)} weights of each label; 1 to {MOST_WEIGHTINGS} are allowed")
    for weight in (weights.min(), weights.max()):
        work.limits.check("label_weight", float(weight))
    return weights


def distinct_records(work: Work) -> tuple[np.ndarray, csr_matrix]:
    """Return the first row of each record, in the order of digests, and records × all labels with ones at the party's
    own. Rows with one digest are one record, as at the server."""
    _, first = np.unique(work.records, return_index=True)
    pairs, numbers = work.federation.labels.tocoo(), np.array(work.question["numbers"])
    shape = (len(first), work.all_label_count)
    own = csr_matrix((np.ones(pairs.nnz), (work.records[pairs.row], numbers[pairs.col])), shape)
    own.data[:] = 1  # summed where a record has several rows
    return first, own


def _looked_up(work: Work, own: csr_matrix) -> LookedUp | None:
    """Return set sizes and holders of the held-out records, if the party has to find them in sums."""
    settings = work.settings
    if not by_sums(settings) or settings.client.set_size != "exact":
        return None
    about = (work.message.content, work.context, work.party, settings, work.question, work.limits)
    return LookedUp(*about, work.lasting, own[:, work.question["numbers"]], on_held_out=True)


def told(work: Work, own: csr_matrix, looked_up: LookedUp | None = None) -> tuple[np.ndarray | None, np.ndarray]:
    """Return how many labels, at most 5, each held-out record has, if the server tells parties; and which labels have
    a client: only these are ranked. Both, and the labels that the question is about, may not change during a run: two
    answers could differ by one record's part."""
    content, held = work.message.content, np.ones(work.all_label_count, dtype=bool)
    absent = unpack(content, "absent", {"labels": ("int32", (None,))})["labels"]
    if len(absent) and not (absent.min() >= 0 and absent.max() < len(held)):
        raise BadMessage(f"labels without a client that are not among the {len(held)} labels")
    held[absent] = False
    if not held[work.trained_numbers].all():
        raise BadMessage("says that nobody has a label that this party trains on")
    sizes = None
    if looked_up is not None:
        sizes = looked_up.sizes
    elif work.settings.client.set_size == "exact":
        sizes = unpack(content, "sizes", {"sizes": ("uint8", (own.shape[0],))})["sizes"]
        if (sizes < np.minimum(own.getnnz(axis=1), DEEPEST)).any() or (sizes > DEEPEST).any():
            raise BadMessage(f"a record with fewer labels than this party's own, or more than {DEEPEST}")
    facts = [b"".join(work.question["labels"]), np.array(work.question["numbers"]).tobytes(), held.tobytes()]
    facts.append(b"" if sizes is None else sizes.tobytes())
    problem = "asks to rank other labels, or sends other set sizes, than before in this run"
    check_unchanged(work.context, work.question["run"], {"ranking": fingerprint(*facts)}, problem)
    return sizes, held


def counted_parts(work: Work, own: csr_matrix, looked_up: LookedUp | None = None) -> csr_matrix:
    """Return `own` with the part of each hit that the party counts: 1/h if h parties have the record with the label."""
    own.sort_indices()
    if looked_up is not None and looked_up.holders is not None:
        pairs, numbers = own[:, work.question["numbers"]].tocoo(), np.array(work.question["numbers"])
        return csr_matrix((1 / looked_up.holders, (pairs.row, numbers[pairs.col])), own.shape)
    holders = read_holders(work.message.content, own.nnz)
    work.limits.check_holders(holders)
    facts = {f"held-out {HOLDERS}": fingerprint(holders.tobytes())}
    problem = "sends other numbers of holders than before in this run"
    check_unchanged(work.context, work.question["run"], facts, problem)
    return csr_matrix((1 / holders, own.indices, own.indptr), own.shape)


def _check_rankings(work: Work, weights: np.ndarray | None) -> None:
    """Limit the models that a run has the party rank labels with. The same one may be sent again. Each weighting of
    the labels makes another model."""
    model = model_digest(work)
    models = [model] if weights is None else [fingerprint(model.encode(), weight.tobytes()) for weight in weights]
    for each in models:
        check_asked(work.context, work.question["run"], "ranked", each, partial(work.limits.check, "rankings"))


def model_digest(work: Work) -> str:
    """Return a digest of the model that the message brings."""
    records = (work.message.content.get(name) for name in ("theta", "statistics", "all-rows"))
    arrays = (array for record in records if isinstance(record, ArrayRecord) for array in record.values())
    return fingerprint(*(array.data for array in arrays))


def own_influence(scorer: Scorer, own: csr_matrix) -> np.ndarray:
    """Return Σ |g(x)ᵀw_u| over the party's labels of each record: how much the record contributes."""
    pairs, labels = own.tocoo(), np.unique(own.indices)
    with torch.no_grad():
        scores = (scorer.encoded @ scorer.W[torch.from_numpy(labels).long()].T).double().abs().cpu().numpy()
    of_pairs = pairs.data * scores[pairs.row, np.searchsorted(labels, pairs.col)]
    return np.bincount(pairs.row, of_pairs, minlength=own.shape[0])
