"""Leaving out features that few parties have (`server.least_holders`), with real parties.

Before the sums of a one-round method, each party says which features its training records have, in zeros and ones. They
are masked, so that the server learns how many parties have each feature. It tells all parties, and each leaves out the
features of too few. Seals (`table_seals`) show false numbers: otherwise a server could say that every feature has
enough.
"""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from fedalc.deployment.flower.bucket_sums import SealedTables
from fedalc.deployment.flower.party_sums import masked_counts, member_count
from fedalc.deployment.flower.sum_messages import FEATURE_HOLDERS, FEATURES
from fedalc.deployment.flower.table_seals import SEALS, Sealing
from fedalc.deployment.flower.wire import BadMessage, pack, unpack
from fedalc.deployment.flower.work import Work

# --- at a party ---


def counted_features(work: Work) -> RecordDict:
    """Return one for each feature that a training record has, zero for others, and seals, masked."""
    has = (work.federation.features != 0).getnnz(axis=0) > 0
    sealing = _sealing(work, len(has))
    vector = np.concatenate([has, sealing.of_party(work.party.hasher, has)])
    about = (work.context, FEATURES.rpartition(".")[2], work.question["run"], work.party, work.limits)
    return masked_counts(work.message.content, *about, vector)


def leave_out_rare(work: Work) -> None:
    """Keep the features that enough parties have, as the server tells it."""
    count = work.federation.feature_count
    wanted = {"holders": ("uint64", (count, 1)), "holders seals": ("uint64", (SEALS + 1,))}
    told = SealedTables.of("holders", unpack(work.message.content, FEATURE_HOLDERS, wanted))
    sealing = _sealing(work, count)
    same = np.array_equal(sealing.of_sum(work.party.hasher, told.amounts), told.seals)
    if told.parties != sealing.parties or not same:
        raise BadMessage("sends other numbers of holders of features than the parties counted")
    work.federation = work.federation.with_features(told.amounts[:, 0] >= work.settings.server.least_holders)


def _sealing(work: Work, features: int) -> Sealing:
    members = member_count(work.message.content, work.context, work.question["run"], work.party, work.limits)
    return Sealing(work.question["run"], "features", False, (features, 1), members)


# --- at the server ---


def told_to_all(total: np.ndarray, parties: int) -> dict[str, ArrayRecord]:
    """Return what all parties get of the sum of their answers."""
    holders = SealedTables(total[:-SEALS].reshape(-1, 1), total[-SEALS:], parties)
    return {FEATURE_HOLDERS: pack(holders.arrays("holders"))}
