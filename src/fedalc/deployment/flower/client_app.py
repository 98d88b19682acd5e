"""A party's answers. It runs engine `clients` on what it holds: its labels are the clients, and their rows all of W it
ever sees.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import wraps
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedalc.config.experiment import Experiment
from fedalc.data.federation import Federation
from fedalc.data.images.images import Images
from fedalc.deployment.flower.answers import sign_off
from fedalc.deployment.flower.contributions import CarefulEngine, enough_measured
from fedalc.deployment.flower.limits import Limits, check_memory, sample_problem
from fedalc.deployment.flower.party import SHARES, Party, held_out, instance_keys
from fedalc.deployment.flower.party_memory import check_same_run, check_unchanged, fingerprint
from fedalc.deployment.flower.wire import (
    BadMessage,
    encoder_tensors,
    pack,
    pack_theta,
    read_json,
    read_task,
    unpack,
    unpack_encoder,
)
from fedalc.errors import FedalcError
from fedalc.labels.collection.identity import SharedEncoder
from fedalc.labels.collection.join import distinct
from fedalc.labels.collection.keys import check_run_id
from fedalc.methods import METHODS, Told, make_method
from fedalc.models.encoders import Chance, encoder_size, make_batch, make_encoder, picture_bytes, scale_rows
from fedalc.models.model import Model
from fedalc.workflows.train import image_options

app = ClientApp()
log = logging.getLogger("fedalc.party")
Answer = Callable[[Message, Context], RecordDict]
PARTY_ERROR = 100  # an error code of ours, beyond Flower's own


def answers(function: Answer) -> Callable[[Message, Context], Message]:
    """What goes wrong here is for this party's log. The server is told that something did, and no file's name."""

    @wraps(function)
    def answer(message: Message, context: Context) -> Message:
        try:
            return Message(sign_off(function(message, context), message), reply_to=message)
        except BadMessage as error:
            log.error("the server's message was refused: %s", error)
            return Message(Error(PARTY_ERROR, f"refused the server's message: {error}"), reply_to=message)
        except FedalcError as error:
            log.error("%s", error)
            reason = "the party could not answer; its own log says why"
        except Exception as error:
            log.exception("could not answer")
            reason = f"the party could not answer ({type(error).__name__}); its own log says more"
        return Message(Error(PARTY_ERROR, reason), reply_to=message)

    return answer


@app.query("hello")
@answers
def hello(message: Message, context: Context) -> RecordDict:
    """Who this is: its labels' pseudonyms, and how many instances it has of each."""
    party, settings, said = _read(message, context)
    _, out = _apart(party, settings, said["share"])
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
    """The keyed digests of its instances, with the pseudonym of the label each is held under."""
    party, settings, said = _read(message, context)
    _, out = _apart(party, settings, said["share"])
    sent = party.messages(_encoder(settings), np.flatnonzero(~out))
    arrays = {"pseudonyms": sent.pseudonyms, "digests": sent.digests, "labels": sent.labels}
    who = ConfigRecord({"client": sent.client, "protocol": json.dumps(asdict(sent.protocol))})
    return RecordDict({"messages": pack(arrays), "sender": who})


@app.train()
@answers
def train(message: Message, context: Context) -> RecordDict:
    """One round's local work: the mean change of θ over its labels, and their rows."""
    work = _Work(message, context, round=int)
    t = work.said["round"]
    work.limits.check("round", t)
    work.limits.check_steps(work.settings, work.federation.counts)
    sample, fewest = work.settings.client.sample, work.limits.fewest
    if problem := sample_problem(work.federation.counts, sample, fewest, say_counts=False):
        raise BadMessage(problem)
    model = work.model()
    result = work.engine.run(model, work.federation.clients, Chance(work.settings, t, model.W), t)
    work.log_left_out()
    reply = RecordDict({"change": pack_theta(result.change), "outcome": work.outcome(result.loss)})
    if work.method.trains_rows:
        reply["rows"] = pack({"rows": result.put_into(model)})
    return reply


@app.train("sums")
@answers
def sums(message: Message, context: Context) -> RecordDict:
    """For methods of one round: Σ x xᵀ/m over its instances, half of it, and a_u Σ x for each of its labels."""
    work = _Work(message, context)
    if not work.method.one_round:
        raise BadMessage(f"asks for the sums of {work.settings.method}, which has none")
    check_memory(work.federation.feature_count**2 * (work.dtype.itemsize + 28))
    unit = torch.eye(work.labels, dtype=work.dtype, device=work.settings.device)
    found = work.engine.sums(unit, work.federation.clients)  # with unit rows, column u of the second is label u's own
    work.log_left_out()
    half = found.gram[torch.triu_indices(*found.gram.shape).unbind()]
    return RecordDict({"sums": pack({"gram": half, "cross": found.cross}), "outcome": work.outcome(found.constant)})


@app.evaluate()
@answers
def evaluate(message: Message, context: Context) -> RecordDict:
    """On what was kept out of training: the mean score g(x)ᵀw of a pair, and its mean hinge loss where that is used."""
    try:
        work = _Work(message, context, on_held_out=True)
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
            own = torch.full_like(batch.keys, client)
            pairs += len(instances)
            for part in work.method.parts:
                found = g[:, part] @ row[part]
                scores[:, instances] += torch.stack([found, found.abs()]).double().cpu().numpy()
                if hinge:
                    lost = work.method.loss(found, g[:, part].square().sum(1), own, batch.keys)
                    losses[instances] += lost.double().cpu().numpy()
    if not (work.enough_measured(scores[1]) and work.enough_measured(losses)):
        log.info("too few held-out records would have made up the answer: none was given")
        return RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    metrics = MetricRecord({"score": float(scores[0].sum()) / pairs, "num-examples": pairs})
    if hinge:
        metrics["loss"] = float(losses.sum()) / pairs
    return RecordDict({"metrics": metrics})


class _NothingHeldOut(Exception):
    """Nothing of the labels that were asked for is kept out of training."""


class _Work:
    """A message that asks for work on some of the party's labels, and what is needed to do it."""

    def __init__(self, message: Message, context: Context, on_held_out: bool = False, **more: type) -> None:
        self.content, self.context = message.content, context
        self.limits = Limits.from_node_config(context.node_config)
        self.party, self.settings, self.said = _read(
            message, context, labels=(list, bytes), numbers=(list, int), **more
        )
        self.dtype = getattr(torch, self.settings.dtype)
        self.labels = len(self.said["labels"])
        digests, out = _apart(self.party, self.settings, self.said["share"])
        labels = self.party.holding.split.labels[:, self._own_columns()]
        mine = np.flatnonzero((out == on_held_out) & (labels.getnnz(axis=1) > 0))
        if on_held_out and not len(mine):
            raise _NothingHeldOut
        features = self.party.holding.split.features[mine]
        self.federation = Federation(
            scale_rows(features, self.settings.encoder.features),
            labels[mine],
            numbers=np.array(self.said["numbers"]),
            keys=instance_keys(self.party.hasher, digests[mine], self.settings.client.sample),
        )
        square = self.settings.client.loss == "square" and not on_held_out
        told = self._told(digests[mine], digests[~out]) if square else None
        self.method = make_method(self.settings, self.labels, told=told)
        _, self.records = distinct(digests[mine])
        self.engine = CarefulEngine(self.federation, self.method, self.settings, self.limits, self.records)

    def enough_measured(self, influence: np.ndarray) -> bool:
        """Whether enough records make up a mean over what is held out. `influence`: of each row."""
        return enough_measured(np.bincount(self.records, influence), self.limits.fewest)

    def log_left_out(self) -> None:
        if self.engine.left_out:
            log.info(
                "%d of %d labels were left as they are: too few of their records would have contributed",
                self.engine.left_out,
                self.labels,
            )

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(label, some of its instances): as many as are encoded at a time."""
        for client in self.federation.clients.tolist():
            instances, rows = self.federation.instances_of(client), self.settings.block_rows
            for start in range(0, len(instances), rows):
                yield client, instances[start : start + rows]

    def _own_columns(self) -> list[int]:
        place = {pseudonym.tobytes(): column for column, pseudonym in enumerate(self.party.pseudonyms)}
        labels = self.said["labels"]
        if not labels or len(set(labels)) != len(labels) or len(self.said["numbers"]) != len(labels):
            raise BadMessage("no labels, the same one twice, or not one number for each")
        if any(label not in place for label in labels):
            raise BadMessage("asks for a label that is not this party's")
        return [place[label] for label in labels]

    def _told(self, mine: np.ndarray, collected: np.ndarray) -> Told:
        """The sizes of label sets come in the order of the digests that were collected."""
        sizes = {"exact": len(distinct(collected)[0]), "expected": self.labels, "ignored": 0}
        wanted = {
            "weights": ("float64", (self.labels,)),
            "shares": ("float64", (sizes[self.settings.client.set_size],)),
        }
        told = unpack(self.content, "told", wanted)
        shares = told["shares"]
        self.limits.check_told(self.settings, told["weights"], shares)
        self._check_told_before(told["weights"], shares)
        if self.settings.client.set_size == "exact":
            _, which = distinct(np.concatenate([collected, mine]))
            shares = shares[which[len(collected) :]]
        return Told(told["weights"], shares)

    def _check_told_before(self, weights: np.ndarray, shares: np.ndarray) -> None:
        """What the server knows of labels and instances does not change in a run. Told otherwise, two answers would
        differ by a single instance's part."""
        per_label = shares if self.settings.client.set_size == "expected" else np.zeros(self.labels)
        facts = {
            f"label {label.hex()}": fingerprint(weight.tobytes(), share.tobytes())
            for label, weight, share in zip(self.said["labels"], weights, per_label, strict=True)
        }
        if self.settings.client.set_size == "exact":
            facts["shares"] = fingerprint(shares.tobytes())
        what = "tells other shares or label weights than before in this run"
        check_unchanged(self.context, self.said["run"], facts, what)

    def model(self) -> Model:
        """θ as it was sent, if it is of the shape that the settings say, and the statistics of its normalisation, where
        it has some; rows for its own labels only."""
        settings, copies = self.settings, METHODS[self.settings.method].sub_models(self.settings)
        with torch.device("meta"):  # without memory: it is filled with what was sent, if that fits it
            encoder = make_encoder(self.federation.feature_count, settings.encoder, torch.Generator("cpu"), copies)
            encoder = encoder.to(self.dtype)
        at_once = min(settings.block_rows, int(self.federation.counts.max()))
        check_memory(at_once * picture_bytes(encoder, settings.images.size))
        sent = unpack_encoder(self.content, Model(encoder, torch.empty(0)))
        width = copies * settings.encoder.dim
        rows = unpack(self.content, "rows", {"rows": (settings.dtype, (self.labels, width))})["rows"]
        model = Model(encoder.to_empty(device=settings.device), torch.from_numpy(rows).to(settings.device))
        with torch.no_grad():
            for own, value in zip(encoder_tensors(model), sent, strict=True):
                own.copy_(value)
        return model

    def outcome(self, loss: float) -> ConfigRecord:
        return ConfigRecord({"labels": self.said["labels"], "loss": float(loss)})


def _read(
    message: Message, context: Context, **more: type | tuple[type, type]
) -> tuple[Party, Experiment, dict[str, Any]]:
    """What is asked, and the party. The settings come first: they say how pictures are read."""
    config = context.node_config
    settings, said = read_task(message.content, str(config.get("device", "cpu")), share=float, **more)
    Limits.from_node_config(config).check_settings(settings)
    _check_share(said["share"])
    _check_run(message, context, said)
    images = replace(image_options(settings), tell=log.warning)
    party = Party.from_node_config(config, images, said["run"])
    features, name, size = party.holding.split.features, settings.encoder.name, settings.images.size
    pictures = isinstance(features, Images)
    if pictures != settings.encoder.is_image:
        holds = "pictures: encoder.name should be a resnet" if pictures else "no pictures: use linear or mlp"
        raise BadMessage(f"its encoder is {name}, and this party holds {holds}")
    if pictures and size != features.size:
        raise BadMessage(
            f"asks for pictures of {size} pixels a side (images.size), and this party's are of {features.size} (--size)"
        )
    return party, settings, said


def _check_run(message: Message, context: Context, said: dict[str, Any]) -> None:
    """A run id is for one run, with one set of settings. So what a server can link under it is of one run only."""
    if message.metadata.run_id != context.run_id:
        raise BadMessage("belongs to another Flower run than the one it came with")
    run = said["run"]
    if run:
        try:
            check_run_id(run)
        except FedalcError as error:
            raise BadMessage(str(error)) from None
    elif not context.node_config.get("without-run-id"):
        raise BadMessage(
            "says no run id: its run began with an older fedalc. A party goes on with such a run if it is started with "
            "--without-run-id"
        )
    check_same_run(context, run)
    values = json.dumps(read_json(said["settings"], "the settings"), sort_keys=True)
    facts = {"settings": fingerprint(values.encode(), repr(said["share"]).encode())}
    what = f"run id {run!r} was used with other settings before; a new run needs a new run id (--run-id)"
    check_unchanged(context, run, facts, what)


def _encoder(settings: Experiment) -> SharedEncoder:
    return SharedEncoder(settings.encoder, settings.seed)


def _check_share(share: float) -> None:
    if share not in SHARES:
        raise BadMessage(f"a share of {share} of the instances, to be kept out of training, is none of {SHARES}")


def _apart(party: Party, settings: Experiment, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The digests of all instances, and which of these are kept out of training."""
    if party.collection.identity == "embedding":  # then the server's settings say how large an encoder is built
        check_memory(4 * encoder_size(party.holding.split.features.shape[1], settings.encoder))
    digests = party.digests(_encoder(settings))
    return digests, held_out(digests, share)
