"""At a party: count its records in keyed buckets, masked, and look up their set sizes in the sums over all parties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.bucket_sums import PAIRS, QUESTION, Counting, read_counting, read_tables
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.own_part import check_list
from fedalc.deployment.flower.party import Party
from fedalc.deployment.flower.party_memory import check_numbers, check_unchanged, fingerprint
from fedalc.deployment.flower.party_settings import (
    check_same_labels,
    check_same_records,
    check_same_settings,
    check_same_tables,
)
from fedalc.deployment.flower.party_sums import masked_counts, sum_at_hand
from fedalc.deployment.flower.questions import (
    all_label_count,
    apart,
    check_all_labels,
    own_columns,
    read_question,
    shared_encoder,
)
from fedalc.deployment.flower.sum_parties import check_counted, note_counted
from fedalc.deployment.flower.table_seals import SumOf
from fedalc.deployment.flower.wire import BadMessage
from fedalc.labels.collection.buckets import Tables, totals
from fedalc.labels.collection.held_pairs import Held, pair_places, record_places, whole_parts


def counted_buckets(message: Message, context: Context) -> RecordDict:
    """Answer a message of kind `query.bucket_counts`: masked counts of the party's training or held-out records."""
    limits, asked = Limits.from_node_config(context.node_config), {"labels": (list, bytes), "numbers": (list, int)}
    party, settings, question = read_question(message, context, **asked, **{"label-count": int})
    if not (by_sums(settings) and settings.secure_sums.on):
        raise BadMessage("asks for counts in buckets, in a run that does not collect by secure sums (collection.by)")
    counting, columns = read_counting(message.content, settings, limits), own_columns(party, question)
    facts = {"bucket labels": fingerprint(*sorted(question["labels"]))}
    check_unchanged(context, question["run"], facts, "asks about other labels than before in this run")
    digests, (_, out) = lasting_digests(party, settings), apart(party, settings, question["share"])
    check_all_labels(party, question, out, counting.on_held_out)
    if counting.on_held_out:
        check_same_labels(context, party, columns, out, limits)
    rows = np.flatnonzero(out == counting.on_held_out)
    labels = party.holding.split.labels[:, columns][rows]
    counted = _Counted(party, columns, digests[rows], labels)
    numbers, count, run = np.array(question["numbers"]), all_label_count(question, limits), question["run"]
    if settings.clients == "parties":
        check_list(message.content, question, count)
    holders = None
    if counting.parties > 1:
        sealed, same = (party.hasher, counting.on_held_out), _checked(message.content, context, party, run, limits)
        told = read_tables(message.content, ("holders",), limits, *sealed, parts=True, check=same)["holders"]
        facts = {f"holders {counting.on_held_out}": fingerprint(told.tobytes())}
        check_unchanged(context, question["run"], facts, "sends other numbers of holders than before in this run")
        holders = counted.holders(told)
        limits.check_holders(holders)
    check_numbers(context, question, count)
    of, names = sum_at_hand(message.content, context, run, party, limits)
    if counting.parties not in (1, of.parties):
        raise BadMessage(f"asks for parts of {counting.parties} parties in a sum over {of.parties}")
    if not settings.privacy.covers_records:
        check_same_settings(context, question, limits)
    check_same_records(context, party, limits)
    check_same_tables(context, question, counting, names, limits)
    note_counted(context, run, of, names)
    vector = counting.vector(party.hasher, of, *counted.counts(counting, holders, numbers, count))
    kind = QUESTION.rpartition(".")[2]
    return masked_counts(message.content, context, kind, run, party, limits, vector)


def _checked(
    content: RecordDict, context: Context, party: Party, run: str, limits: Limits, ranks: bool = False
) -> Callable[[SumOf], None]:
    """Return what refuses a sum of other parties than those of the sum that the message is of."""

    def check(of: SumOf) -> None:
        check_counted(context, run, of, sum_at_hand(content, context, run, party, limits)[1], ranks)

    return check


def by_sums(settings: Experiment) -> bool:
    return settings.collection.by == "sums"


class _Counted:
    """Some records of a party with its labels, and their places in tables: in every run the same, so that no choice of
    a run changes which records share a bucket. `columns`: the party's labels that `labels` has."""

    def __init__(self, party: Party, columns: list[int], digests: np.ndarray, labels: csr_matrix) -> None:
        self.hasher = party.same_hasher
        self.pseudonyms = self.hasher.labels([party.holding.names[column] for column in columns])
        self.held = Held.of(digests, labels, None) if labels.nnz else None  # there may be no held-out records

    def counts(
        self, counting: Counting, holders: np.ndarray | None, numbers: np.ndarray, label_count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return n of each label, and what each bucket gets. `holders`: of the entries of the label matrix, if pairs
        count in parts. `numbers`: those of the party's labels among all `label_count`."""
        tables, held = counting.tables, self.held
        n = np.zeros(0 if counting.what == PAIRS else label_count, dtype=np.uint64)
        if held is None:
            return n, np.zeros(tables.size, dtype=np.uint64)
        if counting.what == PAIRS:
            return n, tables.vector(self._pair_places(tables))
        amounts = np.ones(len(held.label), dtype=np.uint64)
        if holders is not None:
            of_pair = np.ones(len(held.label), dtype=np.int64)
            of_pair[held.entry] = holders
            amounts = whole_parts(of_pair, counting.unit)
        places = record_places(tables, self.hasher, held.digests)[held.record]
        return totals(numbers[held.label], amounts, label_count), tables.vector(places, amounts)

    def sizes(self, told: np.ndarray) -> np.ndarray:
        """Return m of each row of the label matrix that has a label, 1 of others."""
        if self.held is None:
            return np.ones(0, dtype=np.int64)
        held, tables = self.held, _tables(told)
        found = tables.smallest(told.ravel(), record_places(tables, self.hasher, held.digests)).astype(np.int64)
        return np.maximum(found, np.bincount(held.record, minlength=len(found)))[held.row_record]

    def holders(self, told: np.ndarray) -> np.ndarray:
        """Return how many parties have each entry of the label matrix."""
        if self.held is None:
            return np.ones(0, dtype=np.int64)
        tables = _tables(told)
        found = tables.smallest(told.ravel(), self._pair_places(tables)).astype(np.int64)
        return np.maximum(found, 1)[self.held.entry]

    def _pair_places(self, tables: Tables) -> np.ndarray:
        assert self.held is not None
        return pair_places(tables, self.hasher, self.held.digests[self.held.record], self.pseudonyms[self.held.label])


def _tables(told: np.ndarray) -> Tables:
    return Tables(*told.shape)


def lasting_digests(party: Party, settings: Experiment) -> np.ndarray:
    return party.digests(shared_encoder(settings), lasting=True)


class LookedUp:
    """What a party finds in the sums that come with a question. They may not change during a run, or two answers could
    differ by a single record's part. `digests`: lasting ones. `sizes`: m of each row; `holders`: of each entry of the
    label matrix."""

    def __init__(
        self,
        content: RecordDict,
        context: Context,
        party: Party,
        settings: Experiment,
        question: dict[str, Any],
        limits: Limits,
        digests: np.ndarray,
        labels: csr_matrix,
        on_held_out: bool = False,
    ) -> None:
        shared, run = settings.clients == "parties", question["run"]
        tables = ("sizes", "holders") if shared else ("sizes",)
        same = _checked(content, context, party, run, limits, on_held_out)
        told = read_tables(content, tables, limits, party.hasher, on_held_out, parts=shared, check=same)
        of = "held-out" if on_held_out else "training"
        facts = {f"bucket sums {of}": fingerprint(*(table.tobytes() for table in told.values()))}
        problem = "sends other sums of bucket counts than before in this run"
        check_unchanged(context, run, facts, problem)
        counted = _Counted(party, own_columns(party, question), digests, labels)
        self.sizes = counted.sizes(told["sizes"])
        self.holders = counted.holders(told["holders"]) if shared else None
        if self.holders is not None:
            limits.check_holders(self.holders)
