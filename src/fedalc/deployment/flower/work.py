"""At a party: a message that asks for work on some of its labels, checked, and what is needed to do it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import encoder_facts
from fedalc.core.seeds import torch_generator
from fedalc.data.federation import Federation
from fedalc.deployment.flower.contributions import CarefulEngine, enough_measured
from fedalc.deployment.flower.limits import Limits, check_memory
from fedalc.deployment.flower.party import Party, instance_keys
from fedalc.deployment.flower.party_buckets import LookedUp, by_sums, lasting_digests
from fedalc.deployment.flower.party_memory import check_unchanged, fingerprint
from fedalc.deployment.flower.party_settings import check_same_labels
from fedalc.deployment.flower.questions import all_label_count, apart, check_all_labels, own_columns, read_question
from fedalc.deployment.flower.shared_labels import pairs_of_records, read_holders, record_counts
from fedalc.deployment.flower.wire import (
    HOLDERS,
    SEARCH,
    BadMessage,
    config,
    encoder_parts,
    encoder_tensors,
    is_packed,
    unpack,
    unpack_all_rows,
    unpack_encoder,
    unpack_parts,
    unpack_theta,
    unpacking,
)
from fedalc.engines.compression import Compression
from fedalc.labels.collection.join import distinct
from fedalc.labels.collection.secret_rows import turned
from fedalc.methods import METHODS, Method, Told, make_method
from fedalc.methods.losses import SET_LOSSES
from fedalc.models.encoders import Encoder, make_encoder, picture_bytes, scale_rows
from fedalc.models.model import Model

log = logging.getLogger("fedalc.party")


class NothingHeldOut(Exception):
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
    digests: np.ndarray  # of these records
    lasting: np.ndarray  # the same, if parties count records in buckets: digests that do not depend on the run
    to_train: tuple[np.ndarray, csr_matrix]  # of all records to train on: digests, and labels of the question
    features: np.ndarray | None  # of all records to train on; None if the server is not told

    @classmethod
    def read(cls, message: Message, context: Context, on_held_out: bool = False, **more: type) -> Work:
        """Check the message, and select the instances it is about: those to train on, or those held out. In a run with
        a private model all answers have noise, and their questions say `what` is asked for."""
        limits = Limits.from_node_config(context.node_config)  # its clock starts now
        party, settings, question = read_question(message, context, labels=(list, bytes), numbers=(list, int), **more)
        if settings.privacy.covers_records != ("what" in more):
            private = settings.privacy.covers_records
            asks = "numbers without noise, in a run with" if private else "numbers with noise, in a run without"
            raise BadMessage(f"asks for {asks} a private model (privacy.mechanism)")
        digests, out = apart(party, settings, question["share"])
        if settings.secure_sums.on:
            check_all_labels(party, question, out, on_held_out)
            if on_held_out:
                check_same_labels(context, party, own_columns(party, question), out, limits)
        labels = party.holding.split.labels[:, own_columns(party, question)]
        rows = np.flatnonzero((out == on_held_out) & (labels.getnnz(axis=1) > 0))
        if on_held_out and not len(rows):
            raise NothingHeldOut
        federation = Federation(
            scale_rows(party.holding.split.features[rows], settings.encoder.features),
            labels[rows],
            numbers=np.array(question["numbers"]),
            keys=instance_keys(party.hasher, digests[rows], settings.client.sample),
        )
        told, label_count, looked_up = None, len(question["labels"]), None
        lasting = (lasting_digests(party, settings) if by_sums(settings) else digests)[rows]
        if settings.tells_shares and by_sums(settings) and not on_held_out:
            asked = (message.content, context, party, settings, question, limits)
            looked_up = LookedUp(*asked, lasting, federation.labels)
        if settings.client.loss != "hinge" and not on_held_out:
            sizes = None if looked_up is None else looked_up.sizes
            told = _read_told(message, context, settings, question, limits, digests[rows], digests[~out], sizes)
        if looked_up is not None and looked_up.holders is not None:
            federation = replace(federation, parts=1 / looked_up.holders)
        elif settings.tells_shares and settings.clients == "parties" and not on_held_out:
            parts = _read_parts(message, context, party, question, limits, digests, out)
            federation = replace(federation, parts=parts[:, own_columns(party, question)][rows].data)
        if settings.client.loss in SET_LOSSES and not on_held_out:  # it is over the labels of all parties
            question |= config(message.content, "task", {"label-count": int})
            label_count = all_label_count(question, limits)
        method = make_method(settings, label_count, told=told)
        different, records = distinct(digests[rows])
        lasting, train = lasting[np.unique(records, return_index=True)[1]], (digests[~out], labels[~out])
        about = (message, context, party, settings, question, limits)
        features = None if context.node_config.get("all-rows") else _own_features(party, settings, out)
        return cls(*about, federation, method, records, different, lasting, train, features)

    @property
    def trained_numbers(self) -> list[int]:
        """Of the labels that the question is about, those with records to train on."""
        has = self.to_train[1].getnnz(axis=0) > 0
        return [number for number, some in zip(self.question["numbers"], has.tolist(), strict=True) if some]

    @property
    def trained_counts(self) -> np.ndarray:
        """How many different records of each label of the question the party trains on, whatever this message asks."""
        digests, labels = self.to_train
        return record_counts(distinct(digests)[1], labels)

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
        return all_label_count(self.question, self.limits)

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
        sent = self._sent_encoder(Model(encoder, torch.empty(0)))
        model = Model(encoder.to_empty(device=settings.device), self.turned(rows).to(settings.device))
        with torch.no_grad():
            for tensor, value in zip(encoder_tensors(model), sent, strict=True):
                tensor.copy_(value)
        return model

    def _sent_encoder(self, like: Model) -> list[Tensor]:
        """Return the encoder's tensors that were sent. Rows of θ that were not are zeros."""
        content = self.message.content
        if self.compression is None or not is_packed(content, "theta"):
            return unpack_encoder(content, like)
        parts = unpack_parts(content, "theta", len(like.theta))
        with unpacking("theta"):
            theta, rows = self.compression.read_theta(parts, like.encoder)
        needed = self.rows(like.encoder)
        if rows is not None and needed is not None and len(np.setdiff1d(needed, rows)):
            raise BadMessage("leaves out rows of θ that this party's features need")
        others = {name: tensors for name, tensors in encoder_parts(like).items() if name != "theta"}
        return theta + [value for name, part in others.items() for value in unpack_theta(content, name, part)]

    @cached_property
    def compression(self) -> Compression | None:
        return Compression.of(self.settings)

    def rows(self, encoder: Encoder) -> np.ndarray | None:
        """Return the rows of θ that this party says it needs. None: rows are not chosen."""
        return None if self.compression is None else self.compression.rows_of(encoder, self.features)

    @property
    def sender(self) -> int:
        """The number that the party draws by, as a simulation does."""
        return min(map(self.federation.number_of, self.federation.clients.tolist()))

    def outcome(self, loss: float) -> ConfigRecord:
        return ConfigRecord({"labels": self.question["labels"], "loss": float(loss)})


def _own_features(party: Party, settings: Experiment, out: np.ndarray) -> np.ndarray | None:
    if settings.compression.rows != "own":
        return None
    split = party.holding.split
    rows = np.flatnonzero(~out & (split.labels.getnnz(axis=1) > 0))
    return np.unique(split.features[rows].indices).astype(np.int64)


def _read_told(
    message: Message,
    context: Context,
    settings: Experiment,
    question: dict[str, Any],
    limits: Limits,
    own: np.ndarray,
    collected: np.ndarray,
    looked_up: np.ndarray | None = None,
) -> Told:
    """Return the label weights and set sizes that the server sent, checked.

    Exact set sizes come in the order of the `collected` digests; those of the digests `own` are returned. `looked_up`:
    the set sizes of `own`, if the party found them in sums; then the server sends none.
    """
    labels, set_size = question["labels"], settings.client.set_size
    exact = len(distinct(collected)[0]) if looked_up is None else 0
    sizes = {"exact": exact, "expected": len(labels), "ignored": 0}
    wanted = {"weights": ("float64", (len(labels),)), "shares": ("float64", (sizes[set_size],))}
    told = unpack(message.content, "told", wanted)
    weights, shares = told["weights"], told["shares"] if looked_up is None else 1 / looked_up
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
    if set_size == "exact" and looked_up is None:
        facts["shares"] = fingerprint(shares.tobytes())
    check_unchanged(context, question["run"], facts, "sends other shares or label weights than before in this run")
    if set_size == "exact" and looked_up is None:
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
