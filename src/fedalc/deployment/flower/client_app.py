"""A party's answers to the server's messages.

A party runs engine `clients` on its own data: its labels are the clients. It sees other rows of W only for a loss over
all labels, and to rank labels for its held-out records (`rank`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import encoder_facts
from fedalc.core.plugins import load_inherited_plugins
from fedalc.core.seeds import torch_generator
from fedalc.data.federation import Federation
from fedalc.data.images.images import Images
from fedalc.deployment.flower.answers import sign_off
from fedalc.deployment.flower.compared_rows import read_compared_rows
from fedalc.deployment.flower.contributions import CarefulEngine, enough_measured
from fedalc.deployment.flower.limits import Limits, check_memory, sample_problem
from fedalc.deployment.flower.party import SHARES, Party, held_out, instance_keys
from fedalc.deployment.flower.party_memory import check_asked, check_same_run, check_unchanged, fingerprint
from fedalc.deployment.flower.party_ranking import pack_hits, ranked
from fedalc.deployment.flower.party_sums import answer_step, identity_of, masking
from fedalc.deployment.flower.party_trials import check_trial
from fedalc.deployment.flower.shared_labels import pairs_of_records, read_holders
from fedalc.deployment.flower.wire import (
    HOLDERS,
    SEARCH,
    BadMessage,
    config,
    encoder_tensors,
    pack,
    pack_theta,
    read_json,
    read_task,
    unpack,
    unpack_all_rows,
    unpack_encoder,
    unpack_theta,
)
from fedalc.engines.secure import cut
from fedalc.engines.vectors import half_of
from fedalc.errors import FedalcError
from fedalc.labels.collection.identity import SharedEncoder
from fedalc.labels.collection.join import distinct
from fedalc.labels.collection.keys import check_run_id
from fedalc.labels.collection.secret_rows import turned
from fedalc.methods import METHODS, Method, Told, make_method
from fedalc.methods.losses import SET_LOSSES
from fedalc.models.encoders import Chance, Encoder, encoder_shape, make_batch, make_encoder, picture_bytes, scale_rows
from fedalc.models.model import Model
from fedalc.workflows.train import image_options

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
    """Say who this party is: its labels' pseudonyms, and how many instances it has of each."""
    party, settings, question = _read(message, context)
    _, out = _apart(party, settings, question["share"])
    labels = party.holding.split.labels
    introduction = {
        "client": party.name,
        "labels": [pseudonym.tobytes() for pseudonym in party.pseudonyms],
        "counts": labels[~out].getnnz(axis=0).tolist(),
        "held-out": labels[out].getnnz(axis=0).tolist(),
        "features": party.holding.split.features.shape[1],
        "names": list(party.holding.names) if party.shares_names else [],
    }
    return RecordDict({"introduction": ConfigRecord(introduction)})


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
    party, settings, question = _read(message, context)
    _, out = _apart(party, settings, question["share"])
    rows = np.flatnonzero(out == on_held_out)
    if not len(rows):
        raise BadMessage(
            f"asks for digests of instances to {'hold out' if on_held_out else 'train on'}; there are none"
        )
    sent = party.messages(_encoder(settings), rows)
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
    reply = RecordDict({"change": pack_theta(result.change), "outcome": work.outcome(result.loss)})
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


@app.train("sums")
@answers
def sums(message: Message, context: Context) -> RecordDict:
    """For one-round methods, and the first Newton step: send half of the symmetric Σ x xᵀ/m over its instances, and
    a_u Σ x for each label; if rows are secret, Σ_u a_u (Σ x) w_uᵀ.

    x is the encoder's design: the features, or more columns. θ is not needed."""
    work = Work.read(message, context)
    masked = masking(work, "sums")
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
    half, cross = half_of(total.gram), total.cross
    if secret or masked:  # the server does not have the rows, or no sum of this party's alone, to multiply with
        cross = (cross.double() @ work.turned(work.own_rows()).to(cross.device).double()).to(cross)
    if masked is not None:
        return masked.reply([half, cross], total.constant, total.pairs)
    return RecordDict({"sums": pack({"gram": half, "cross": cross}), "outcome": work.outcome(total.constant)})


@app.query("sum")
@answers
def sum_step(message: Message, context: Context) -> RecordDict:
    """Take a step of a secure sum: keys, shares, agreement, unmasking."""
    settings, question = read_task(message.content, "cpu", share=float)
    limits = Limits.from_node_config(context.node_config)
    _check_share(question["share"])
    _check_run(message, context, question, limits)
    if not settings.secure_sums.on:
        raise BadMessage("asks for a step of a secure sum, in a run without them")
    identity = identity_of(context, question["run"], lambda: _read(message, context)[0])
    return answer_step(message.content, context, question["run"], identity, limits)


@app.evaluate()
@answers
def evaluate(message: Message, context: Context) -> RecordDict:
    """Send the mean score g(x)ᵀw over held-out pairs and, with the hinge loss, the mean loss."""
    try:
        work = Work.read(message, context, on_held_out=True)
        if work.settings.secure_sums.on:
            raise BadMessage("asks for means of this party alone, in a run with secure sums")
    except _NothingHeldOut:
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


@app.evaluate("rank")
@answers
def rank(message: Message, context: Context) -> RecordDict:
    """Rank all labels for its held-out records: send how often its own are among the top 1, 3, 5."""
    try:
        work = Work.read(message, context, on_held_out=True, **{"label-count": int})
        masked, hits = masking(work, "rank"), ranked(work)
    except _NothingHeldOut:
        hits = None
    if hits is None:
        log.info("no hits sent: too few held-out records would contribute to them")
        return RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    if masked is not None:
        return masked.reply([torch.from_numpy(hits)])
    return RecordDict({"hits": pack_hits(work, hits)})


class _NothingHeldOut(Exception):
    """The labels of the question have no held-out instances."""


@dataclass
class Work:
    """A message that asks for work on some of the party's labels, and what is needed to do it."""

    message: Message
    context: Context
    party: Party
    settings: Experiment
    question: dict[str, Any]
    limits: Limits
    federation: Federation
    method: Method
    records: np.ndarray  # which rows of the federation are the same record

    @classmethod
    def read(cls, message: Message, context: Context, on_held_out: bool = False, **more: type) -> Work:
        """Check the message, and select the instances it is about: those to train on, or those held out."""
        limits = Limits.from_node_config(context.node_config)  # its clock starts now
        party, settings, question = _read(message, context, labels=(list, bytes), numbers=(list, int), **more)
        digests, out = _apart(party, settings, question["share"])
        labels = party.holding.split.labels[:, _own_columns(party, question)]
        rows = np.flatnonzero((out == on_held_out) & (labels.getnnz(axis=1) > 0))
        if on_held_out and not len(rows):
            raise _NothingHeldOut
        federation = Federation(
            scale_rows(party.holding.split.features[rows], settings.encoder.features),
            labels[rows],
            numbers=np.array(question["numbers"]),
            keys=instance_keys(party.hasher, digests[rows], settings.client.sample),
        )
        told, label_count = None, len(question["labels"])
        if settings.client.loss != "hinge" and not on_held_out:
            told = _read_told(message, context, settings, question, limits, digests[rows], digests[~out])
        if settings.tells_shares and settings.clients == "parties" and not on_held_out:
            parts = _read_parts(message, context, party, question, limits, digests, out)
            federation = replace(federation, parts=parts[:, _own_columns(party, question)][rows].data)
        if settings.client.loss in SET_LOSSES and not on_held_out:  # it is over the labels of all parties
            question |= config(message.content, "task", {"label-count": int})
            label_count = _all_label_count(question, limits)
        method = make_method(settings, label_count, told=told)
        _, records = distinct(digests[rows])
        return cls(message, context, party, settings, question, limits, federation, method, records)

    @cached_property
    def engine(self) -> CarefulEngine:
        return CarefulEngine(self.federation, self.method, self.settings, self.limits, self.records)

    @property
    def dtype(self) -> torch.dtype:
        return cast(torch.dtype, getattr(torch, self.settings.dtype))

    @property
    def label_count(self) -> int:
        return len(self.question["labels"])

    @property
    def is_convex(self) -> bool:
        """Whether the objective is one that Newton steps solve: a loss over all labels of one matrix."""
        encoder = self.settings.encoder
        linear = encoder_facts(encoder.name).linear and encoder.output == "raw"
        return linear and self.method.set_loss is not None

    def enough_measured(self, influence: np.ndarray) -> bool:
        """Return whether enough records contribute to a mean over held-out rows. `influence`: of each row."""
        return enough_measured(np.bincount(self.records, influence), self.limits.fewest)

    def log_left_out(self) -> None:
        if self.engine.left_out:
            log.info(
                "%d of %d labels left unchanged: too few of their records would contribute",
                self.engine.left_out,
                self.label_count,
            )

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (label, a block of its instances), `block_rows` at most."""
        for client in self.federation.clients.tolist():
            instances, rows = self.federation.instances_of(client), self.settings.block_rows
            for start in range(0, len(instances), rows):
                yield client, instances[start : start + rows]

    def encoder_shape(self, copies: int = 1) -> Encoder:
        """Return the encoder on the meta device: θ takes no memory. What it draws follows from the run's seed."""
        generator = torch_generator(self.settings.seed, "encoder")
        with torch.device("meta"):
            encoder = make_encoder(self.federation.feature_count, self.settings.encoder, generator, copies)
            return encoder.to(self.dtype)

    def model(self) -> Model:
        """Return the model that was sent, if its shapes match the settings. It has rows for the party's labels only."""
        return self._model(self.own_rows(), int(self.federation.counts.max()))

    def own_rows(self) -> Tensor:
        shape = (self.label_count, self.width)
        return torch.from_numpy(unpack(self.message.content, "rows", {"rows": (self.settings.dtype, shape)})["rows"])

    def turned(self, rows: Tensor) -> Tensor:
        """Return rows of W as the parties use them: secret ones are turned under their key."""
        if not self.settings.embeddings.secret:
            return rows
        check_memory(8 * (4 * self.width**2 + 3 * rows.numel()))
        return turned(rows, self.party.hasher)

    def model_of_all_labels(self) -> Model:
        """Return the model that was sent, with the rows of all labels."""
        count = self.all_label_count
        check_memory(2 * count * self.width * self.dtype.itemsize)
        rows = unpack_all_rows(self.message.content, "all-rows", self.settings.dtype, count, self.width)
        return self._model(rows, len(self.records))

    @property
    def all_label_count(self) -> int:
        return _all_label_count(self.question, self.limits)

    @property
    def width(self) -> int:
        """The columns of W."""
        return METHODS[self.settings.method].sub_models(self.settings) * self.settings.encoder.dim

    def _model(self, rows: Tensor, instances: int) -> Model:
        """Return the encoder that was sent with these rows of W. `instances`: as many are encoded, in blocks."""
        settings, copies = self.settings, METHODS[self.settings.method].sub_models(self.settings)
        encoder = self.encoder_shape(copies)  # it is filled below, if what was sent fits
        at_once = min(settings.block_rows, instances)
        check_memory(at_once * picture_bytes(encoder, settings.images.size) + encoder.drawn * self.dtype.itemsize)
        sent = unpack_encoder(self.message.content, Model(encoder, torch.empty(0)))
        model = Model(encoder.to_empty(device=settings.device), self.turned(rows).to(settings.device))
        with torch.no_grad():
            for tensor, value in zip(encoder_tensors(model), sent, strict=True):
                tensor.copy_(value)
        return model

    def outcome(self, loss: float) -> ConfigRecord:
        return ConfigRecord({"labels": self.question["labels"], "loss": float(loss)})


def _all_label_count(question: dict[str, Any], limits: Limits) -> int:
    """Return the number of labels of all parties, as the server states it."""
    count, numbers = int(question["label-count"]), question["numbers"]
    limits.check("labels", count)
    if len(set(numbers)) != len(numbers) or not all(0 <= number < count for number in numbers):
        raise BadMessage(f"numbers of labels that are not different ones of {count}")
    return count


def _own_columns(party: Party, question: dict[str, Any]) -> list[int]:
    """Return the columns of the party's labels that the question is about, in the question's order."""
    column = {pseudonym.tobytes(): number for number, pseudonym in enumerate(party.pseudonyms)}
    labels = question["labels"]
    if not labels or len(set(labels)) != len(labels) or len(question["numbers"]) != len(labels):
        raise BadMessage("no labels, a label twice, or not one number per label")
    if any(label not in column for label in labels):
        raise BadMessage("asks for a label that is not this party's")
    return [column[label] for label in labels]


def _read_told(
    message: Message,
    context: Context,
    settings: Experiment,
    question: dict[str, Any],
    limits: Limits,
    own: np.ndarray,
    collected: np.ndarray,
) -> Told:
    """Return the label weights and set sizes that the server sent, checked.

    Exact set sizes come in the order of the `collected` digests; those of the digests `own` are returned.
    """
    labels, set_size = question["labels"], settings.client.set_size
    sizes = {"exact": len(distinct(collected)[0]), "expected": len(labels), "ignored": 0}
    wanted = {"weights": ("float64", (len(labels),)), "shares": ("float64", (sizes[set_size],))}
    told = unpack(message.content, "told", wanted)
    weights, shares = told["weights"], told["shares"]
    limits.check_told(settings, weights, shares)
    # They may not change during a run. Otherwise two answers could differ by a single instance's part.
    per_label = shares if set_size == "expected" else np.zeros(len(labels))
    facts = {}
    for label, weight, share in zip(labels, weights, per_label, strict=True):
        if question[SEARCH]:  # it chooses the label power, and so the weights
            facts[f"power {settings.client.label_power!r} {label.hex()}"] = fingerprint(weight.tobytes())
            facts[f"label {label.hex()}"] = fingerprint(share.tobytes())
        else:
            facts[f"label {label.hex()}"] = fingerprint(weight.tobytes(), share.tobytes())
    if set_size == "exact":
        facts["shares"] = fingerprint(shares.tobytes())
    check_unchanged(context, question["run"], facts, "sends other shares or label weights than before in this run")
    if set_size == "exact":
        _, which = distinct(np.concatenate([collected, own]))
        shares = shares[which[len(collected) :]]
    return Told(weights, shares)


def _read_parts(
    message: Message,
    context: Context,
    party: Party,
    question: dict[str, Any],
    limits: Limits,
    digests: np.ndarray,
    out: np.ndarray,
) -> csr_matrix:
    """Return the part that counts of each pair of a training record and its label: 1/h if h parties have the pair.

    The matrix is that of the party's labels, with these parts in place of ones. The server may not change them during a
    run.
    """
    labels = party.holding.split.labels
    _, record = distinct(digests[~out])
    count, place = pairs_of_records(record, labels[~out])
    holders = read_holders(message.content, count)
    limits.check_holders(holders)
    facts = {HOLDERS: fingerprint(holders.tobytes())}
    check_unchanged(context, question["run"], facts, "sends other numbers of holders than before in this run")
    data = np.ones(labels.nnz)
    data[np.repeat(~out, np.diff(labels.indptr))] = 1 / holders[place]
    return csr_matrix((data, labels.indices, labels.indptr), labels.shape)


def _read(
    message: Message, context: Context, **more: type | tuple[type, type]
) -> tuple[Party, Experiment, dict[str, Any]]:
    """Return the party, the settings and the question. The settings come first: they say how pictures are read."""
    node_config = context.node_config
    settings, question = read_task(message.content, str(node_config.get("device", "cpu")), share=float, **more)
    limits = Limits.from_node_config(node_config)
    limits.check_settings(settings)
    _check_share(question["share"])
    _check_run(message, context, question, limits)
    images = replace(image_options(settings), tell=log.warning)
    if settings.text.encoder is not None:  # never read a folder that the server names
        raise BadMessage("asks for features of a sentence encoder; parties hash texts (text.kind)")
    party = Party.from_node_config(node_config, images, question["run"], settings.text)
    if context.node_config.get("require-secure-sums") and not settings.secure_sums.on:
        raise BadMessage("is a run without secure sums, and this party answers no other (--require-secure-sums)")
    if settings.secure_sums.on and party.collection.key is None:
        raise BadMessage("has secure sums, and this party has no key that others could know it by")
    if settings.embeddings.secret and party.collection.key is None:
        raise BadMessage("has secret rows (embeddings.secret), and this party has no key to turn them with")
    if question[SEARCH] and party.collection.identity == "embedding":  # a trial's encoder would change the digests
        raise BadMessage("is a search for settings, and this party recognises instances by embedding (--identity)")
    features, name, size = party.holding.split.features, settings.encoder.name, settings.images.size
    pictures = isinstance(features, Images)
    if pictures != settings.encoder.is_image:
        holds = "pictures: encoder.name should be a resnet" if pictures else "no pictures: use linear or mlp"
        raise BadMessage(f"its encoder is {name}, and this party has {holds}")
    if pictures and size != features.size:
        raise BadMessage(
            f"asks for pictures of {size} pixels a side (images.size), and this party's have {features.size} (--size)"
        )
    return party, settings, question


def _check_run(message: Message, context: Context, question: dict[str, Any], limits: Limits) -> None:
    """Bind a run id to one run with one set of settings, so that a server can link answers of one run only. A search
    may change a few of them."""
    if message.metadata.run_id != context.run_id:
        raise BadMessage("belongs to another Flower run than the one it came with")
    run = question["run"]
    if run:
        try:
            check_run_id(run)
        except FedalcError as error:
            raise BadMessage(str(error)) from None
    elif not context.node_config.get("without-run-id"):
        raise BadMessage(
            "has no run id: the run began with an older fedalc. To continue such a run, start the party with "
            "--without-run-id"
        )
    check_same_run(context, run)
    now, search = read_json(question["settings"], "the settings"), question[SEARCH]
    began = read_json(search, "the settings of the search") if search else now
    facts = {"settings": fingerprint(_written(began), repr(question["share"]).encode(), *[b"search"] * bool(search))}
    problem = f"run id {run!r} was used with other settings before; a new run needs a new run id (--run-id)"
    check_unchanged(context, run, facts, problem)
    if search:
        limits.check("trials", 1)  # a party that refuses searches says so at once
        check_trial(began, now)
        if now != began:
            check_asked(context, run, "trial", fingerprint(_written(now)), partial(limits.check, "trials"))


def _written(settings: Any) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()


def _encoder(settings: Experiment) -> SharedEncoder:
    return SharedEncoder(settings.encoder, settings.seed)


def _check_share(share: float) -> None:
    if share not in SHARES:
        raise BadMessage(f"{share} is not a valid share of instances to hold out; valid are {SHARES}")


def _apart(party: Party, settings: Experiment, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the digests of all instances, and which of them are held out."""
    if party.collection.identity == "embedding":  # then the server's settings determine the size of an encoder
        shape = encoder_shape(party.holding.split.features.shape[1], settings.encoder)
        check_memory(4 * (shape.drawn + sum(parameter.numel() for parameter in shape.parameters())))
    digests = party.digests(_encoder(settings))
    return digests, held_out(digests, share)
