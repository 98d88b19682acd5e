"""A party's answers to the server's messages.

A party runs engine `clients` on its own data: its labels are the clients. It sees other rows of W only for a loss over
all labels, and to rank labels for its held-out records (`rank`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial, wraps

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedalc.config.facts import leaves_out_features
from fedalc.core.plugins import load_inherited_plugins
from fedalc.data.text.agreed import DocumentCounter, NotAgreed
from fedalc.deployment.flower.agreement import masks_counts
from fedalc.deployment.flower.answers import sign_off
from fedalc.deployment.flower.compared_rows import read_compared_rows
from fedalc.deployment.flower.feature_holders import counted_features, leave_out_rare
from fedalc.deployment.flower.introductions import TEXTS
from fedalc.deployment.flower.limits import check_memory, sample_problem
from fedalc.deployment.flower.party import hashed
from fedalc.deployment.flower.party_buckets import counted_buckets
from fedalc.deployment.flower.party_budget import check_documents
from fedalc.deployment.flower.party_intersections import Intersecting, check_intersects
from fedalc.deployment.flower.party_memory import check_asked, fingerprint
from fedalc.deployment.flower.party_noise import noised_reply
from fedalc.deployment.flower.party_ranking import pack_hits, ranked
from fedalc.deployment.flower.party_scores import SCORES, counted_scores
from fedalc.deployment.flower.party_settings import check_same_records, check_same_settings
from fedalc.deployment.flower.party_sums import answer_step, identity_of, masking
from fedalc.deployment.flower.party_texts import check_masked, check_own, counted_documents, summed_documents
from fedalc.deployment.flower.questions import apart, checked_task, party_of, read_question, shared_encoder
from fedalc.deployment.flower.wire import (
    BadMessage,
    pack,
    pack_parts,
    pack_theta,
    unpack_theta,
)
from fedalc.deployment.flower.work import NothingHeldOut, Work
from fedalc.engines.compression import Compression
from fedalc.engines.secure import cut
from fedalc.engines.sums import Sums
from fedalc.engines.vectors import half_of
from fedalc.errors import FedalcError
from fedalc.labels.collection.identity import Identity
from fedalc.models.encoders import Chance, Encoder, make_batch
from fedalc.models.model import Model

app = ClientApp()
load_inherited_plugins()  # Flower starts this process, not `fedalc`, which loads them for its commands
log = logging.getLogger("fedalc.party")
Answer = Callable[[Message, Context], RecordDict]
PARTY_ERROR = 100  # our own error code, above Flower's


def answers(function: Answer) -> Callable[[Message, Context], Message]:
    """Send errors to this party's log. The server learns that there was one, but no file name and no data."""

    @wraps(function)
    def answer(message: Message, context: Context) -> Message:
        try:
            return Message(sign_off(function(message, context), message), reply_to=message)
        except BadMessage as error:
            log.error("refused the server's message: %s", error)
            return Message(Error(PARTY_ERROR, f"refused the server's message: {error}"), reply_to=message)
        except FedalcError as error:
            log.error("%s", error)
            reason = "the party could not answer; see its own log"
        except Exception as error:
            log.exception("could not answer")
            reason = f"the party could not answer ({type(error).__name__}); see its own log"
        return Message(Error(PARTY_ERROR, reason), reply_to=message)

    return answer


@app.query("hello")
@answers
def hello(message: Message, context: Context) -> RecordDict:
    """Say who this party is: its labels' pseudonyms, and how many instances it has of each. With texts whose features
    parties have yet to agree on, only how many it has."""
    try:
        party, settings, question = read_question(message, context)
    except NotAgreed:
        return _texts(message, context)
    check_own(message.content, party, settings.text)
    _, out = apart(party, settings, question["share"])
    labels = party.holding.split.labels
    introduction = {
        "client": party.name,
        "labels": [pseudonym.tobytes() for pseudonym in party.pseudonyms],
        "counts": labels[~out].getnnz(axis=0).tolist(),
        "held-out": labels[out].getnnz(axis=0).tolist(),
        "features": party.holding.split.features.shape[1],
        "names": list(party.holding.names) if party.shares_names else [],
    }
    check_intersects(party, settings)
    if settings.collection.by != "join":  # with the join it comes with the digests
        kind = Identity(party.collection, shared_encoder(settings)).name(party.content)
        introduction["protocol"] = json.dumps(asdict(party.hasher.protocol(kind)))
    return RecordDict({"introduction": ConfigRecord(introduction)})


def _texts(message: Message, context: Context) -> RecordDict:
    """Say that this party has texts, and its name."""
    settings, question, _ = checked_task(message, context)
    check_masked(settings, context)
    party = party_of(context, settings, question, hashed)
    return RecordDict({TEXTS: ConfigRecord({"client": party.name})})


@app.query("document_counts")
@answers
def document_counts(message: Message, context: Context) -> RecordDict:
    """Send in how many of its documents each term is, as a keyed digest, or each bucket of a hash."""
    settings, question, limits = checked_task(message, context)
    check_documents(settings)
    check_masked(settings, context)
    counter = DocumentCounter(settings.text)
    party = party_of(context, settings, question, lambda hasher: counter)
    counts = counted_documents(party, counter, context, settings, question["run"])
    if masks_counts(settings):
        if not settings.privacy.covers_records:
            check_same_settings(context, question, limits)
            check_same_records(context, party, limits, "documents")
        return summed_documents(message.content, party, counts, context, question["run"], limits)
    return counts.records()


@app.query("bucket_counts")
@answers
def bucket_counts(message: Message, context: Context) -> RecordDict:
    """Send masked counts of its records in keyed buckets, which add up to the sizes of label sets."""
    return counted_buckets(message, context)


@app.query("psi_requests")
@answers
def psi_requests(message: Message, context: Context) -> RecordDict:
    """Send points of its records for other parties to intersect with theirs, and counts of its own labels."""
    return Intersecting(message, context).requests()


@app.query("psi_answers")
@answers
def psi_answers(message: Message, context: Context) -> RecordDict:
    """Answer other parties' points, and send a masked bitmap of its records."""
    return Intersecting(message, context).answers()


@app.query("psi_counts")
@answers
def psi_counts(message: Message, context: Context) -> RecordDict:
    """Send how many records its labels share with labels of others, from their answers."""
    return Intersecting(message, context).counts()


@app.query("label_sets")
@answers
def label_sets(message: Message, context: Context) -> RecordDict:
    """Send the keyed digests of its training instances, each with the pseudonym of its label."""
    return _digests(message, context, on_held_out=False)


@app.query("held_out")
@answers
def held_out_records(message: Message, context: Context) -> RecordDict:
    """Send the keyed digests of its held-out instances, each with the pseudonym of its label."""
    return _digests(message, context, on_held_out=True)


def _digests(message: Message, context: Context, on_held_out: bool) -> RecordDict:
    party, settings, question = read_question(message, context)
    if settings.collection.by != "join":
        raise BadMessage(f"asks for digests of instances, in a run that collects by {settings.collection.by}")
    if context.node_config.get("no-digests"):
        raise BadMessage(
            "asks for digests of instances, which this party does not send (--no-digests); use --collection psi or "
            "sums, and leave out --rank-held-out on"
        )
    _, out = apart(party, settings, question["share"])
    rows = np.flatnonzero(out == on_held_out)
    if not len(rows):
        raise BadMessage(
            f"asks for digests of instances to {'hold out' if on_held_out else 'train on'}; there are none"
        )
    sent = party.messages(shared_encoder(settings), rows)
    arrays = {"pseudonyms": sent.pseudonyms, "digests": sent.digests, "labels": sent.labels}
    who = ConfigRecord({"client": sent.client, "protocol": json.dumps(asdict(sent.protocol))})
    return RecordDict({"messages": pack(arrays), "sender": who})


@app.train()
@answers
def train(message: Message, context: Context) -> RecordDict:
    """Do one round of local training: send the mean change of θ over its labels, and their rows."""
    work = Work.read(message, context, round=int)
    t, masked = work.question["round"], masking(work, "train")
    work.limits.check("round", t)
    work.limits.check_steps(work.settings, work.federation.counts)
    sample, fewest = work.settings.client.sample, work.limits.fewest
    if problem := sample_problem(work.federation.counts, sample, fewest, say_counts=False):
        raise BadMessage(problem)
    model = work.model()
    if work.method.set_loss is not None:
        work.engine.compared = read_compared_rows(work, t)
    result = work.engine.run(model, work.federation.clients, Chance(work.settings, t, model.W), t)
    work.log_left_out()
    if masked is not None:
        change = cut(result.change, work.settings.secure_sums.norm)
        return masked.reply((masked.weight * part for part in change), masked.weight * result.loss, masked.weight)
    compression, encoder, changed = work.compression, model.encoder, result.change
    if compression is None:
        sent = pack_theta(changed)
    else:
        sent = pack_parts(compression.change(changed, encoder, work.rows(encoder), t, work.sender))
    reply = RecordDict({"change": sent, "outcome": work.outcome(result.loss)})
    if work.method.trains_rows:
        reply["rows"] = pack({"rows": result.put_into(model)})
    return reply


@app.train("curvature")
@answers
def curvature(message: Message, context: Context) -> RecordDict:
    """For Newton steps: send H p, the mean over its labels. p is a direction that the server chooses."""
    work = Work.read(message, context, round=int)
    t, client, masked = work.question["round"], work.settings.client, masking(work, "curvature")
    work.limits.check("round", t)
    if not work.is_convex or client.negatives is not None or client.sample < 1:
        raise BadMessage("asks for curvature, which needs a convex objective: a loss over all labels, a linear encoder")
    model = work.model()
    (direction,) = unpack_theta(message.content, "direction", model.theta)
    work.limits.check("direction", float(direction.double().norm()))
    work.engine.compared = read_compared_rows(work, t)
    asked = fingerprint(*(tensor.detach().cpu().numpy().tobytes() for tensor in (*model.theta, direction)))
    check_asked(context, work.question["run"], "direction", asked, partial(work.limits.check, "directions"))
    product, _ = work.engine.curvature(model, direction.to(work.settings.device), work.federation.clients)
    work.log_left_out()
    if masked is not None:
        return masked.reply([masked.weight * product], masked.weight)
    return RecordDict({"product": pack_theta([product]), "outcome": work.outcome(0.0)})


@app.train("feature_holders")
@answers
def feature_holders(message: Message, context: Context) -> RecordDict:
    """Send which features its training records have, masked."""
    work = Work.read(message, context)
    if not (leaves_out_features(work.settings) and masking(work, "feature_holders")):
        raise BadMessage("asks which features a party has, in a run that leaves out none, or without secure sums")
    return counted_features(work)


@app.train("sums")
@answers
def sums(message: Message, context: Context) -> RecordDict:
    """For one-round methods, and the first Newton step: send half of the symmetric Σ x xᵀ/m over its instances, and
    a_u Σ x for each label; if rows are secret, Σ_u a_u (Σ x) w_uᵀ.

    x is the encoder's design: the features, or more columns. θ is not needed."""
    work = Work.read(message, context)
    masked = masking(work, "sums")
    if leaves_out_features(work.settings):
        leave_out_rare(work)
    loss, secret = work.method.set_loss, work.settings.embeddings.secret
    first_step = work.is_convex and loss is not None and loss.separable and not secret  # that needs an axis per label
    if not (work.method.one_round or first_step):
        raise BadMessage(f"asks for the sums of {work.settings.method}, which does not use any")
    encoder = work.encoder_shape()
    gram = encoder.width**2 if work.method.sends_gram else 0
    cross_size = encoder.width * work.width if secret or masked else 0
    check_memory(gram * (work.dtype.itemsize + 28) + (encoder.drawn + 4 * cross_size) * work.dtype.itemsize)
    unit = torch.eye(work.label_count, dtype=work.dtype, device=work.settings.device)
    # With unit rows, column u of `cross` is label u's own sum.
    total = work.engine.sums(Model(encoder, unit), work.federation.clients)
    work.log_left_out()
    if work.compression is not None:
        return _packed_sums(work, work.compression, encoder, total)
    half, cross = half_of(total.gram), total.cross
    if secret or masked:  # the server does not have the rows, or no sum of this party's alone, to multiply with
        cross = (cross.double() @ work.turned(work.own_rows()).to(cross.device).double()).to(cross)
    if masked is not None:
        return masked.reply([half, cross], total.constant, total.pairs)
    return RecordDict({"sums": pack({"gram": half, "cross": cross}), "outcome": work.outcome(total.constant)})


def _packed_sums(work: Work, compression: Compression, encoder: Encoder, total: Sums) -> RecordDict:
    """Send the sums in fewer bytes."""
    chosen = work.rows(encoder)
    rows = np.arange(encoder.width) if chosen is None else chosen
    at = torch.from_numpy(rows)
    gram = total.gram[at.unsqueeze(1), at] if work.method.sends_gram else total.gram
    records = work.federation.labels.shape[0]
    packed = compression.sums(gram, total.cross[at], rows, encoder.width, records, work.sender)
    return RecordDict({"sums": pack_parts([packed]), "outcome": work.outcome(total.constant)})


@app.train("noised")
@answers
def noised(message: Message, context: Context) -> RecordDict:
    """For a private model: send whole numbers about its records, with its share of the noise, masked."""
    return noised_reply(Work.read(message, context, False, what=str, **{"label-count": int}))


@app.query("sum")
@answers
def sum_step(message: Message, context: Context) -> RecordDict:
    """Take a step of a secure sum: keys, shares, agreement, unmasking."""
    settings, question, limits = checked_task(message, context)
    if not settings.secure_sums.on:
        raise BadMessage("asks for a step of a secure sum, in a run without them")
    identity = identity_of(context, question["run"], lambda: party_of(context, settings, question, hashed))
    return answer_step(message.content, context, question["run"], identity, limits)


@app.evaluate()
@answers
def evaluate(message: Message, context: Context) -> RecordDict:
    """Send the mean score g(x)ᵀw over held-out pairs and, with the hinge loss, the mean loss."""
    try:
        work = Work.read(message, context, on_held_out=True)
        if work.settings.secure_sums.on:
            raise BadMessage("asks for means of this party alone, in a run with secure sums")
    except NothingHeldOut:
        return RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    model, federation = work.model(), work.federation
    hinge = work.settings.client.loss == "hinge"
    scores, losses, pairs = np.zeros((2, federation.labels.shape[0])), np.zeros(federation.labels.shape[0]), 0
    with torch.no_grad():
        for client, instances in work.blocks():
            work.limits.check_time()
            batch = make_batch(federation.features[instances], instances, work.dtype, work.settings.device)
            g, row = model.encoder(batch), model.W[client]
            labels = torch.full_like(batch.keys, client)
            pairs += len(instances)
            for part in work.method.parts:
                score = g[:, part] @ row[part]
                scores[:, instances] += torch.stack([score, score.abs()]).double().cpu().numpy()
                if hinge:
                    loss = work.method.loss(score, g[:, part].square().sum(1), labels, batch.keys)
                    losses[instances] += loss.double().cpu().numpy()
    if not (work.enough_measured(scores[1]) and work.enough_measured(losses)):
        log.info("no evaluation sent: too few held-out records would contribute to it")
        return RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    metrics = MetricRecord({"score": float(scores[0].sum()) / pairs, "num-examples": pairs})
    if hinge:
        metrics["loss"] = float(losses.sum()) / pairs
    return RecordDict({"metrics": metrics})


@app.evaluate("scores")
@answers
def scores(message: Message, context: Context) -> RecordDict:
    """Score all labels for its held-out records: send how many scores are in each bin, and how many of true labels."""
    try:
        work = Work.read(message, context, on_held_out=True, **{"label-count": int})
        if work.settings.secure_sums.on:
            raise BadMessage("asks for scores of this party alone, in a run with secure sums")
        counts = counted_scores(work)
    except NothingHeldOut:
        counts = None
    if counts is None:
        log.info("no scores counted: too few held-out records would contribute to them")
        return RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    return RecordDict({SCORES: counts})


@app.evaluate("rank")
@answers
def rank(message: Message, context: Context) -> RecordDict:
    """Rank all labels for its held-out records: send how often its own are among the top 1, 3, 5."""
    try:
        work = Work.read(message, context, on_held_out=True, **{"label-count": int})
        masked, hits = masking(work, "rank"), ranked(work)
    except NothingHeldOut:
        hits = None
    if hits is None:
        log.info("no hits sent: too few held-out records would contribute to them")
        return RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    if masked is not None:
        return masked.reply([torch.from_numpy(hits)])
    return RecordDict({"hits": pack_hits(work, hits)})
