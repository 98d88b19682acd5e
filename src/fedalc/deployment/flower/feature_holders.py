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
from fedalc.deployment.flower.party_sums import masked_counts, sum_at_hand
from fedalc.deployment.flower.sum_messages import FEATURE_HOLDERS, FEATURES
from fedalc.deployment.flower.sum_parties import counted_by, note_counted
from fedalc.deployment.flower.table_seals import SEALED, SEALS, Sealing, SumOf
from fedalc.deployment.flower.wire import BadMessage, pack, unpack
from fedalc.deployment.flower.work import Work

# --- at a party ---


def counted_features(work: Work) -> RecordDict:
    """Return one for each feature that a training record has, zero for others, and seals, masked."""
    has, (of, names) = (work.federation.features != 0).getnnz(axis=0) > 0, _sum(work)
    note_counted(work.context, work.question["run"], of, names)
    vector = np.concatenate([has, _sealing(of, len(has)).of_party(work.party.hasher, has)])
    about = (work.context, FEATURES.rpartition(".")[2], work.question["run"], work.party, work.limits)
    return masked_counts(work.message.content, *about, vector)


def leave_out_rare(work: Work) -> None:
    """Keep the features that enough parties have, as the server tells it. Those who counted are those who answer now:
    of other parties' features the numbers say nothing."""
    count = work.federation.feature_count
    wanted = {"holders": ("uint64", (count, 1)), "holders seals": ("uint64", (SEALED,))}
    told = SealedTables.of("holders", unpack(work.message.content, FEATURE_HOLDERS, wanted))
    same_parties = counted_by(work.context, work.question["run"], told.secure_sum) == list(_sum(work)[1])
    sealed = np.array_equal(_sealing(told.secure_sum, count).of_sum(work.party.hasher, told.amounts), told.seals)
    if not (same_parties and sealed and told.amounts.max(initial=0) <= told.parties):
        raise BadMessage("sends other numbers of holders of features than the parties counted")
    work.federation = work.federation.with_features(told.amounts[:, 0] >= work.settings.server.least_holders)


def _sum(work: Work) -> tuple[SumOf, tuple[str, ...]]:
    return sum_at_hand(work.message.content, work.context, work.question["run"], work.party, work.limits)


def _sealing(of: SumOf, features: int) -> Sealing:
    return Sealing(of, "features", False, (features, 1))


# --- at the server ---


def told_to_all(total: np.ndarray, of: SumOf) -> dict[str, ArrayRecord]:
    """Return what all parties get of the sum of their answers."""
    holders = SealedTables(total[:-SEALS].reshape(-1, 1), total[-SEALS:], of)
    return {FEATURE_HOLDERS: pack(holders.arrays("holders"))}
