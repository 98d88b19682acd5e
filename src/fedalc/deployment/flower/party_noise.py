"""At a party: whole numbers about its records, with its share of the noise, under a mask (docs/private-model.md).

The party trusts the server with the numbers of labels and holders of its records, and with nothing else: it works out
the noise by itself, counts the parties that share it in the list that its mask is bound to, and has it unmasked only
with all of them. It draws noise once for a question: the mean of several draws would be the number without noise.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from flwr.app import RecordDict
from scipy.sparse import csr_matrix

from fedalc.data.federation import Federation
from fedalc.deployment.flower.limits import check_memory
from fedalc.deployment.flower.party_budget import charged, noise_key, spend
from fedalc.deployment.flower.party_memory import check_asked, check_unchanged, fingerprint
from fedalc.deployment.flower.party_sums import Masking
from fedalc.deployment.flower.wire import BadMessage
from fedalc.deployment.flower.work import Work
from fedalc.engines.owned_records import OwnedRecords, each_once
from fedalc.engines.record_sums import COUNT, Layout, Moments, owners_answer
from fedalc.engines.record_updates import UPDATE, owners_update
from fedalc.errors import ConfigError
from fedalc.labels.privacy import NoiseShares, SecureGenerator
from fedalc.models.model import Model
from fedalc.secure_sums import Question, Refused
from fedalc.secure_sums.messages import Dealt
from fedalc.secure_sums.primitives import derived

SUM_BYTES, UPDATE_BYTES = 72, 128
"""Memory for each number of an answer: of sums (56 measured), and of an update (85 to 120)."""
_KEY = "noise key"  # in the party's memory of the run


def noised_reply(work: Work) -> RecordDict:
    """Answer a question of kind `train.noised`: the number of records, the sums of one round, or an update."""
    what, masked = work.question["what"], Masking(work, "noised")
    _check_what(work, what)
    _check_sizes(work)
    encoder, labels = work.encoder_shape(), work.all_label_count
    length = _length(work, what, encoder.width, labels)
    check_memory((UPDATE_BYTES if what == UPDATE else SUM_BYTES) * length + encoder.drawn * work.dtype.itemsize)
    question, federation = masked.question(length), _of_all_labels(each_once(work.federation, work.records), work)
    _check_once(work, what, question, federation)
    noise = _own_share(work, masked, question)
    model = work.model_of_all_labels() if what == UPDATE else Model(encoder, torch.empty(0))
    records = OwnedRecords(federation, work.method, work.settings, model.encoder, by_client=True)
    try:
        vector = owners_update(records, model, noise) if what == UPDATE else owners_answer(records, what, labels, noise)
    except ConfigError as error:  # shares that are too small
        raise BadMessage(f"cannot be answered: {error}") from None
    work.limits.check_time()
    return masked.reply_with(vector)


def _check_what(work: Work, what: str) -> None:
    privacy = work.settings.privacy
    of_sums = (COUNT, "diagonal", "full") if privacy.moments == "auto" else (COUNT, privacy.moments)
    known = of_sums if privacy.mechanism == "sums" else (UPDATE,)
    if what not in known:
        raise BadMessage(f"asks for {what[:20]!r} with noise, and its settings are for {' or '.join(known)}")


def _check_sizes(work: Work) -> None:
    """A record has at least the labels that this party knows of. Otherwise it would count for more than one."""
    assert work.method.told is not None
    labels = work.federation.labels
    pairs = np.unique(np.repeat(work.records, np.diff(labels.indptr)) * labels.shape[1] + labels.indices)
    own = np.bincount(pairs // labels.shape[1], minlength=int(work.records.max()) + 1)
    if (np.rint(1 / work.method.told.shares) < own[work.records]).any():
        raise BadMessage("says that a record has fewer labels than this party alone knows of")


def _length(work: Work, what: str, width: int, labels: int) -> int:
    if what in (COUNT, UPDATE):
        return 1 if what == COUNT else width * labels + 1
    moments: Moments = "full" if what == "full" else "diagonal"
    return Layout(width, labels, work.settings.privacy.labels_per_instance, moments).length


def _of_all_labels(federation: Federation, work: Work) -> Federation:
    """Return the party's records with a column for each label of all parties."""
    labels = federation.labels
    columns = np.array(work.question["numbers"], dtype=labels.indices.dtype)[labels.indices]
    wide = csr_matrix((labels.data, columns, labels.indptr), (labels.shape[0], work.all_label_count))
    return replace(federation, labels=wide, numbers=None)


def _check_once(work: Work, what: str, question: Question, federation: Federation) -> None:
    """The sums of a run are asked for once, an update once in a round, and always of the same records."""
    context, run, subject = work.context, work.question["run"], question.subject.hex()
    features, labels, told = federation.features, federation.labels, work.method.told
    assert told is not None
    parts = np.empty(0) if federation.parts is None else federation.parts
    arrays = (features.data, features.indices, features.indptr, labels.indices, labels.indptr, told.shares, parts)
    facts = {"noised records": fingerprint(*(array.tobytes() for array in arrays))}
    problem = "asks for noised numbers again, and this party's records have changed since: begin a new run"
    check_unchanged(context, run, facts, problem)
    if what == UPDATE:
        check_asked(context, run, "noised update", subject, partial(_check_rounds, work))
        return
    facts = {f"noised {'count' if what == COUNT else 'sums'}": subject}
    check_unchanged(context, run, facts, "asks for noised sums again, and in another way than before in this run")


def _check_rounds(work: Work, asked: int) -> None:
    if asked > work.settings.rounds:
        raise BadMessage(f"asks for noised update {asked} of a run of {work.settings.rounds} rounds")


def _own_share(work: Work, masked: Masking, question: Question) -> NoiseShares:
    """Charge the run, and return this party's share of the noise, which all parties that the mask is for add."""
    try:
        parties, dropouts = len(Dealt.from_bytes(masked.dealt).dealers), work.settings.privacy.noise_dropouts
    except Refused as error:
        raise BadMessage(str(error)) from None
    if dropouts >= parties:
        raise BadMessage(f"{parties} parties share the noise, and privacy.noise_dropouts = {dropouts} may lack theirs")
    source = generator(work, question, parties)
    charge = spend(work.context.node_config, work.settings, work.question["run"])
    assert charge.release is not None  # seeded noise is refused
    return NoiseShares(charge.release.noise, parties, dropouts, source, drawn=1)


def generator(work: Work, question: Question, parties: int) -> SecureGenerator:
    """Return the source of this party's noise: always the same for one question, whatever the round's number, and one
    number of parties."""
    run = work.question["run"]
    key = noise_key(work.context, run, _KEY, charged(work.context.node_config, run) is not None)
    return SecureGenerator(derived(key, "noise", question.subject, parties.to_bytes(4, "little")))
