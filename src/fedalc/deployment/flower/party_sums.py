"""At a party: the steps of secure sums, and answers that are masked.

Each message may come to a new process. Seeds and received shares are kept in Flower's context of the run, which stays
at the party's node, and are deleted after the sum. Which steps were done, and what was unmasked, is in the party's
memory of the run (`party_memory`), under its lock: two messages at once cannot make a party do a step twice.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.own_part import check_own_part
from fedalc.deployment.flower.party import Party, party_collection
from fedalc.deployment.flower.party_memory import check_unchanged, remembered
from fedalc.deployment.flower.party_settings import check_same_records, check_same_settings
from fedalc.deployment.flower.sum_messages import MASKED, RECORD, question_of
from fedalc.deployment.flower.sum_parties import check_texts
from fedalc.deployment.flower.table_seals import SumOf
from fedalc.deployment.flower.wire import BadMessage, config, pack
from fedalc.engines.vectors import flattened
from fedalc.labels.collection.identity import make_hasher
from fedalc.secure_sums import Disclosures, Identity, PartySum, Question, Refused
from fedalc.secure_sums.party import STEPS

if TYPE_CHECKING:
    from fedalc.deployment.flower.work import Work

log = logging.getLogger("fedalc.party")
T = TypeVar("T")
_STATE, _NAME, _STEP = "fedalc-sum-", "fedalc-party-name", "sum-step "
_ALL_RUNS = "_sums"  # in place of a run's id: lists of parties are compared over all runs
_KEPT = 4  # sums whose steps are remembered; older ones are refused
_LARGEST = 1 << 62
# Of a party in a sum. Smaller ones are rounded away, with larger ones numbers are infinite, and a server could look for
# the party with which that begins. More than 1 is possible where the number of records has noise.
_WEIGHTS = 1e-7, 1e3
_KNOWN = {"agree", "survivors", "unmask", "agreements", "keys", "shares", "roster"}


def answer_step(content: RecordDict, context: Context, run: str, identity: Identity, limits: Limits) -> RecordDict:
    """Answer a message of kind `query.sum`: one step, or the last steps of a sum with the first ones of the next."""
    asked, reply = content.get(RECORD), ConfigRecord()
    if not isinstance(asked, ConfigRecord) or not set(asked) <= _KNOWN:
        raise BadMessage("there is no step of a sum, or an unknown one")
    sums = _Sums(context, run, identity, limits)
    if "agree" in asked:
        seq, survivors = _read(content, "agree", "survivors")
        reply["tag"] = sums.step(seq, "agree", lambda one, known: one.agree(survivors, known))
    if "unmask" in asked:
        seq, agreements = _read(content, "unmask", "agreements")
        reply["revealed"] = sums.step(seq, "unmask", lambda one, known: one.reveal(agreements, known))
    if "keys" in asked:
        seq = config(content, RECORD, {"keys": int})["keys"]
        reply["keys"] = sums.step(seq, "keys", lambda one, known: one.make_keys(known))
    if "shares" in asked:
        seq, roster = _read(content, "shares", "roster")
        try:
            reply["deal"] = sums.step(seq, "shares", lambda one, known: one.deal_shares(roster))
        except _Accusation as error:  # the server can begin again without that party
            log.error("refused the roster of a secure sum: %s", error)
            reply["accused"] = error.accused
    return RecordDict({RECORD: reply})


def _read(content: RecordDict, step: str, part: str) -> tuple[int, bytes]:
    said = config(content, RECORD, {step: int, part: bytes})
    return said[step], said[part]


class _Accusation(BadMessage):
    def __init__(self, problem: str, accused: str) -> None:
        super().__init__(problem)
        self.accused = accused


@dataclass
class _Sums:
    """The sums of a run that this party takes part in."""

    context: Context
    run: str
    identity: Identity
    limits: Limits

    def step(self, seq: int, step: str, do: Callable[[PartySum, Disclosures], T]) -> T:
        """Do one step, once. Its state is kept also if the step is refused."""
        with self._disclosures(seq, step) as disclosures:
            party = PartySum(self.identity, seq) if step == "keys" else self._restored(seq)
            try:
                return do(party, disclosures)
            except Refused as error:
                raise _Accusation(str(error), error.accused) if error.accused else BadMessage(str(error)) from None
            finally:
                if party.disagreeing:
                    log.warning(
                        "secure sum: the server told %s something else than this party, or they lie",
                        ", ".join(party.disagreeing),
                    )
                self._keep(seq, None if step == STEPS[-1] else party)

    def masked(self, seq: int, dealt: bytes, question: Question, vector: np.ndarray) -> RecordDict:
        """Return the masked answer to a question."""

        def mask(party: PartySum, known: Disclosures) -> tuple[np.ndarray, bytes]:
            answer = party.mask(dealt, question, vector, known)
            if party.not_finite:
                log.warning("numbers for a secure sum are not finite: it has no result")
            return answer

        numbers, bad = self.step(seq, "masked", mask)
        return RecordDict({MASKED: pack({"numbers": numbers}), RECORD: ConfigRecord({"complaints": bad})})

    @contextmanager
    def _disclosures(self, seq: int, step: str) -> Iterator[Disclosures]:
        """Claim the step in the party's memory, and yield what was unmasked before. What is added is kept."""
        place = STEPS.index(step)
        with remembered(self.context, self.run) as known:
            done = {int(key.removeprefix(_STEP)): int(known[key]) for key in known if key.startswith(_STEP)}
            if place == 0 and not max(done, default=-1) < seq < _LARGEST:
                raise BadMessage(f"begins sum {seq}, and the last one of this run was {max(done, default=-1)}")
            if place and done.get(seq) != place - 1:
                last = "none" if seq not in done else STEPS[done[seq]]
                raise BadMessage(f"asks for step {step!r} of sum {seq}, and the last step of it was {last!r}")
            known[f"{_STEP}{seq}"] = str(place)
            for old in sorted(done)[:-_KEPT]:
                del known[f"{_STEP}{old}"]
        with remembered(self.context, _ALL_RUNS) as known:
            lists = {key: json.loads(value) for key, value in known.items()}
            yield Disclosures(lists, int(self.limits.largest("sum_lists")))
            known |= {key: json.dumps(value) for key, value in lists.items()}

    def at_hand(self, seq: int) -> tuple[SumOf, tuple[str, ...]]:
        party = self._restored(seq)
        return SumOf(party.session, len(party.members)), party.members

    def _restored(self, seq: int) -> PartySum:
        record = self.context.state.get(f"{_STATE}{seq}")
        if not isinstance(record, ConfigRecord):
            raise BadMessage(f"goes on with sum {seq}, of which this party has no keys: it has restarted since")
        return PartySum.restored(self.identity, str(record["saved"]))

    def _keep(self, seq: int, party: PartySum | None) -> None:
        """Keep the sum's secrets for its next step, and delete those of older sums."""
        state, numbers = self.context.state, []
        if party is not None:
            state[f"{_STATE}{seq}"] = ConfigRecord({"saved": party.saved()})
        for name in list(state):
            if name.startswith(_STATE):
                numbers.append(int(name.removeprefix(_STATE)))
        for old in sorted(numbers)[:-_KEPT] + ([seq] if party is None else []):
            state.pop(f"{_STATE}{old}", None)


class Masking:
    """The answer to one question, which is masked. Checks the question before there is any work."""

    def __init__(self, work: Work, kind: str) -> None:
        self.work = work
        self.kind = kind
        said = config(work.message.content, RECORD, {"seq": int, "dealt": bytes, "divisor": float})
        self.seq, self.dealt, self.divisor = said["seq"], said["dealt"], said["divisor"]
        if not (math.isfinite(self.divisor) and self.divisor > 0):
            raise BadMessage("a divisor of weights that is not a positive number")
        identity = identity_of(work.context, work.question["run"], lambda: work.party)
        self.sums = _Sums(work.context, work.question["run"], identity, work.limits)
        names = self.sums.at_hand(self.seq)[1]
        check_texts(work.context, work.question["run"], names, kind == "rank")
        check_own_part(work, kind, names)
        if not _WEIGHTS[0] <= self.weight <= _WEIGHTS[1]:
            raise BadMessage("divides weights by a number that is not that of all records, or of all labels")
        divided = {f"divisor {work.settings.server.weights}": repr(self.divisor)}
        problem = "divides weights by another number than before in this run"
        check_unchanged(work.context, work.question["run"], divided, problem)
        if not work.settings.privacy.covers_records:  # noise bounds what runs show together
            client = work.settings.client  # power 0 is one too: all weights are 1
            power = client.label_power if client.loss == "square" else None
            check_same_settings(work.context, work.question, work.limits, power)
            check_same_records(work.context, work.party, work.limits)

    @property
    def weight(self) -> float:
        """The party's own weight: no server can make it count more than others."""
        by_instances = self.work.settings.server.weights == "samples"
        counts = self.work.federation.counts
        return float(counts.sum() if by_instances else (counts > 0).sum()) / self.divisor

    def question(self, length: int) -> Question:
        """Return what is asked, with this many numbers as an answer."""
        return question_of(self.kind, self.work.message.content, length, self.work.settings.secure_sums.bits)

    def reply(self, tensors: Iterable[Tensor], *numbers: float) -> RecordDict:
        return self.reply_with(flattened(tensors, *numbers))

    def reply_with(self, vector: np.ndarray) -> RecordDict:
        question = self.question(len(vector))
        return self.sums.masked(self.seq, self.dealt, question, vector)


def masked_counts(
    content: RecordDict, context: Context, kind: str, run: str, party: Party, limits: Limits, vector: np.ndarray
) -> RecordDict:
    """Return the masked answer to a question before round 1: whole numbers, negative ones modulo 2^64."""
    said, whole = config(content, RECORD, {"seq": int, "dealt": bytes}), vector.astype(np.uint64, copy=False)
    sums = _Sums(context, run, identity_of(context, run, lambda: party), limits)
    check_texts(context, run, sums.at_hand(said["seq"])[1])
    return sums.masked(said["seq"], said["dealt"], question_of(kind, content, len(vector), 0), whole)


def sum_at_hand(
    content: RecordDict, context: Context, run: str, party: Party, limits: Limits
) -> tuple[SumOf, tuple[str, ...]]:
    """Return the sum that a question is of, and the names of its parties."""
    seq = config(content, RECORD, {"seq": int})["seq"]
    return _Sums(context, run, identity_of(context, run, lambda: party), limits).at_hand(seq)


def masking(work: Work, kind: str) -> Masking | None:
    """Return how the answer is masked, or None in a run without secure sums."""
    return Masking(work, kind) if work.settings.secure_sums.on else None


def identity_of(context: Context, run: str, load: Callable[[], Party]) -> Identity:
    """Return who this party is in secure sums. `load` reads its data, which is needed once in a run, for its name."""
    record = context.state.get(_NAME)
    if not isinstance(record, ConfigRecord):
        record = context.state[_NAME] = ConfigRecord({"name": load().name})
    hasher = make_hasher(party_collection(context.node_config), run)
    return Identity(str(record["name"]), run, hasher.secret("secure sums"))
