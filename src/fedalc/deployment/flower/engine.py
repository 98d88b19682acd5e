"""One training round over the network.

The server chooses the parties to ask, sends each of them θ and the rows of its own labels (for a loss over all labels,
all rows), and then reads, checks and adds up the replies as they arrive. Flower's own `Strategy.start` is not used: it
keeps all replies in memory and cannot resume. To the rest of fedalc this is one more engine.

Memory: θ three times (the server's, as a message, and the sum of changes in double precision) plus the few replies at
hand, whatever the number of parties. The aggregation rules that compare changes hold all of them
(`engines.aggregation`), and so does `clip` in its first round: up to `memory_budget` in memory, the rest on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.answers import Repeats, exactly
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.compared_rows import RECORD as ALL_ROWS
from fedalc.deployment.flower.connections import RESUME, Parties, TooFew
from fedalc.deployment.flower.exchange import Exchange, Reply
from fedalc.deployment.flower.norm_screen import Change, NormScreen, Verdict, bad_rows
from fedalc.deployment.flower.punctuality import TRAIN
from fedalc.deployment.flower.sum_messages import BUCKET_SUMS
from fedalc.deployment.flower.totals import ChangeTotal, LabelsOf, SumsTotal
from fedalc.deployment.flower.wire import (
    HOLDERS,
    BadMessage,
    Shape,
    config,
    pack,
    pack_all_rows,
    pack_encoder,
    pack_parts,
    pack_theta,
    record_bytes,
    task,
    unpack,
    unpack_parts,
    unpack_theta,
    unpacking,
)
from fedalc.engines import aggregation
from fedalc.engines.aggregation.lengths import Lengths, norm
from fedalc.engines.base import Engine, RoundResult
from fedalc.engines.compression import Compression, KnownRows, Outgoing
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.methods import Method
from fedalc.models.encoders import Chance
from fedalc.models.model import Model
from fedalc.training.server_optimizers import needs_everyone

OUTCOME = ("labels", "loss")
CURVATURE = "train.curvature"
ATTEMPTS = 3  # at a round to which too few parties have answered


class FlowerEngine(Engine):
    """`max_norm`: refuse longer changes of θ (default: 100 times the usual length)."""

    clients_keep_rows = False  # a party may restart at any time, so each message brings its rows

    def __init__(
        self,
        parties: Parties,
        census: Census,
        method: Method,
        settings: Experiment,
        max_norm: float | None = None,
    ) -> None:
        self.parties = parties
        self.census = census
        self.roster = census.roster
        self.method = method
        self.settings = settings
        self.max_norm = max_norm
        self.repeats = Repeats(self.roster.are_alike)
        self.lengths = Lengths()
        self.compression, self.known_rows = Compression.of(settings), KnownRows()
        self.loss = 0.0  # of the last round to which a party answered
        self._capped: set[int] = set()  # parties that the log already names for claiming too much weight
        self._traffic = Ledger()  # of this round, all attempts together
        self._bucket_sums = None if census.buckets is None else census.buckets.record()  # one object for all messages

    # --- the questions ---

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        """Run one round. `chance` is unused: parties draw from the round's number."""
        weight_of = self._client_weights(model, participants)
        self._traffic = Ledger()
        self.repeats.about(model.theta)
        outgoing = None if self.compression is None else self.compression.outgoing(model, round_number)
        for attempt in range(ATTEMPTS):
            labels_of = self._choose(participants, round_number, attempt)
            exchange = self._send_model(model, labels_of, round_number, outgoing=outgoing)
            total = self._begin_total(model, labels_of, weight_of, round_number)
            screen = NormScreen(self.lengths, self.max_norm)
            read = partial(self._read_change, labels_of, model)
            for reply in self._replies(exchange):
                change = self._read(reply, round_number, read)
                if change is not None:
                    self._add(total, screen.judge(change), round_number)
            self._add(total, screen.judge_waiting(), round_number)
            result = total.result(self.loss, self._traffic)
            if self._enough(labels_of, total.norms, round_number, attempt):
                self.lengths.note(total.norms)
                self.loss = result.loss
                return result if outgoing is None else replace(result, at=outgoing.received())
        raise self._too_few(round_number)

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        """Collect the parties' products H p for a Newton step. Every party is needed."""
        weight_of = self._client_weights(model, participants)
        self._traffic = Ledger()
        self.repeats.about([*model.theta, direction])
        for attempt in range(ATTEMPTS):
            labels_of = self._choose(participants, round_number, attempt)
            exchange = self._send_model(model, labels_of, round_number, direction)
            total = self._begin_total(model, labels_of, weight_of, round_number)
            screen = NormScreen(Lengths())  # products are not as long as changes of θ
            read = partial(self._read_product, labels_of, model)
            for reply in exchange.replies():
                product = self._read(reply, round_number, read)
                if product is not None:
                    self._add(total, screen.judge(product), round_number)
            self._add(total, screen.judge_waiting(), round_number)
            if self._enough(labels_of, total.norms, round_number, attempt):
                (mean,) = total.result(0.0, self._traffic).change
                return mean, self._traffic
        raise self._too_few(round_number)

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        """Collect the sums that a one-round method, or the first Newton step, needs."""
        self._traffic = Ledger()
        for attempt in range(ATTEMPTS):
            labels_of = self._choose(participants, 1, attempt)
            exchange = self.parties.exchange("train.sums", 1)
            for party, labels in labels_of.items():
                content = self._content(party, labels)
                if self.method.secret_dim is not None:  # the party multiplies its sums by its rows, turned
                    content["rows"] = self._own_rows(model, labels)
                exchange.send(self.parties.node_of[party], content)
            total = SumsTotal(model, labels_of, self.roster, self.method.sends_gram, self.method.secret_dim is not None)
            screen = NormScreen(Lengths())  # by length per instance
            read = partial(self._read_sums, labels_of, model.encoder.width)
            for reply in exchange.replies():
                change = self._read(reply, 1, read)
                if change is not None:
                    self._add(total, screen.judge(change), 1)
            self._add(total, screen.judge_waiting(), 1)
            if total.parties and self._enough(labels_of, total.parties, 1, attempt):
                return total.result(self._traffic)
        raise self._too_few(1)

    def tensors(self) -> dict[str, Tensor]:
        return self.lengths.tensors() | self.repeats.tensors() | self.known_rows.tensors()

    def facts(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.loss = float(facts["loss"])
        self.lengths.restore(tensors)
        self.repeats.restore(tensors)
        self.known_rows.restore(tensors)
        if "usual_length" in facts:  # a checkpoint of an older version
            self.lengths.largest = float(facts["usual_length"])

    # --- whom to ask, and how many have to answer ---

    def _choose(self, participants: np.ndarray, round_number: int, attempt: int) -> LabelsOf:
        """Return the connected parties that own a participant, with these labels. Waits until enough are connected."""
        if attempt:
            self.parties.say(f"round {round_number}: too few answers; asking again")
        least, because = self._needed(round_number)
        here: Collection[int] = self.parties.present(self.roster, round_number, least, because)
        if not attempt and not self._needs_everyone(round_number):
            here = self.parties.awake(self.roster, here, TRAIN, round_number, least)
        labels_of = {party: self.roster.labels_of(party, participants) for party in sorted(here)}
        return {party: labels for party, labels in labels_of.items() if len(labels)}

    def _needs_everyone(self, round_number: int) -> bool:
        return not self.method.one_round and needs_everyone(self.settings, round_number)

    def _needed(self, round_number: int) -> tuple[int, str]:
        """Return how many parties have to answer, and the reason if that is all of them."""
        if not self._needs_everyone(round_number):
            return self.parties.patience.go_on_with, ""
        optimizer = self.settings.server.optimizer
        because = (
            f' (server.optimizer = "{optimizer}" solves for one objective, so it needs every party in every round)'
        )
        return len(self.roster.parties), because

    def _enough(self, labels_of: LabelsOf, heard: Collection[int], round_number: int, attempt: int) -> bool:
        """Return whether enough parties answered.

        If fewer parties than needed own a label drawn for the round (server.participation), those are enough; after the
        last attempt, even none. A round without answers changes nothing, and the next one draws other labels.
        """
        needed, _ = self._needed(round_number)
        few_drawn = len(labels_of) < needed and not self._needs_everyone(round_number)
        enough = len(heard) >= min(needed, len(labels_of)) or (attempt == ATTEMPTS - 1 and few_drawn)
        if enough and not heard:
            self.parties.say(f"round {round_number}: no party drawn for it answered; it changes nothing")
        return enough

    def _too_few(self, round_number: int) -> TooFew:
        needed, because = self._needed(round_number)
        return TooFew(
            f"round {round_number}: in {ATTEMPTS} attempts, fewer than {needed} parties gave a usable answer{because}; "
            f"the log says which did not, and why. {RESUME}"
        )

    # --- send ---

    def _send_model(
        self,
        model: Model,
        labels_of: LabelsOf,
        round_number: int,
        direction: Tensor | None = None,
        outgoing: Outgoing | None = None,
    ) -> Exchange:
        """Send each party the encoder, the compared rows and the direction of a Newton step, one object each for all
        messages, and its own rows. `outgoing`: θ in fewer bytes."""
        encoder, compared = pack_encoder(model), self._compared_rows(model, round_number)
        if direction is not None:
            compared["direction"] = pack_theta([direction])
        exchange = self.parties.exchange(TRAIN if direction is None else CURVATURE, round_number)
        for party, labels in labels_of.items():
            content = self._content(party, labels, round=round_number)
            sent = encoder | compared
            if outgoing is not None:
                sent["theta"] = pack_parts(outgoing.arrays(self.known_rows.of.get(party)))
            content.update(sent)
            content["rows"] = self._own_rows(model, labels)
            self._traffic.down += sum(map(record_bytes, sent.values()))
            exchange.send(self.parties.node_of[party], content)
        return exchange

    def _own_rows(self, model: Model, labels: np.ndarray) -> ArrayRecord:
        self._traffic.down += payload_bytes([model.W[: len(labels)]])
        return pack({"rows": model.W[torch.from_numpy(labels)]})

    def _content(self, party: int, labels: np.ndarray, **more: int | float | str) -> RecordDict:
        """Return a message for the party about these labels of it. For all losses but hinge it says what only the
        server knows."""
        if self.method.set_loss is not None:
            more["label-count"] = self.roster.label_count
        content = RecordDict({"task": task(self.settings, self.census.run, **self.census.about(labels), **more)})
        if self.settings.client.loss != "hinge":
            told = self.method.tell(labels, self.census.set_sizes.get(party))
            content["told"] = pack({"weights": told.label_weights, "shares": told.shares})
            self._traffic.down += told.label_weights.nbytes + told.shares.nbytes
        if (holders := self.census.holders.get(party)) is not None:
            content[HOLDERS] = pack({HOLDERS: holders})
            self._traffic.down += holders.nbytes
        if self._bucket_sums is not None:
            content[BUCKET_SUMS] = self._bucket_sums
            self._traffic.down += record_bytes(self._bucket_sums)
        return content

    def _compared_rows(self, model: Model, round_number: int) -> dict[str, ArrayRecord]:
        """Return the rows of W that a loss over all labels compares with: all of them, or those of a sample."""
        if self.method.set_loss is None:
            return {}
        labels, _ = self.method.compared_labels(round_number)
        return {ALL_ROWS: pack_all_rows(model.W if labels is None else model.W[labels])}

    # --- receive ---

    def _replies(self, exchange: Exchange) -> Iterator[Reply]:
        if self._needs_everyone(exchange.round_number):
            return exchange.replies()
        return self.parties.punctual_replies(self.roster, exchange)

    def _read(self, reply: Reply, round_number: int, read: Callable[[int, RecordDict], Change]) -> Change | None:
        """Return the change in a reply, or None: then the party is left out of this round."""
        party = self.parties.party_of[reply.node]
        change = self.parties.read(reply, round_number, self.roster.parties[party], partial(read, party))
        if change is None:
            self.known_rows.forget(party)
        elif reply.content is not None:
            arrays = [record for record in reply.content.values() if isinstance(record, ArrayRecord)]
            self._traffic.up += sum(map(record_bytes, arrays))
        return change

    def _add(self, total: ChangeTotal | SumsTotal, verdicts: Iterable[Verdict], round_number: int) -> None:
        """Add the accepted changes. Parties whose change is refused are left out of this round."""
        for change, problem in verdicts:
            if problem:
                self.parties.leave_out(round_number, self.roster.parties[change.party], problem)
            else:
                total.add(change)

    def _read_change(self, labels_of: LabelsOf, model: Model, party: int, content: RecordDict) -> Change:
        labels = labels_of[party]
        exactly(content, {"outcome": OUTCOME, "change": None} | ({"rows": None} if self.method.trains_rows else {}))
        loss = self._read_outcome(content, labels)
        theta = self._read_theta(model, party, content)
        rows = None
        if self.method.trains_rows:
            wanted = {"rows": (self.settings.dtype, (len(labels), model.W.shape[1]))}
            rows = torch.from_numpy(unpack(content, "rows", wanted)["rows"])
            if bad_rows(rows):
                raise BadMessage("a row is not of length 1")
        self.repeats.check(party, theta, rows, loss)
        return Change(party, theta, rows, loss, norm(theta))

    def _read_theta(self, model: Model, party: int, content: RecordDict) -> list[Tensor]:
        """Return a change of θ. With fewer bytes, the party says with it which rows of θ it needs from now on."""
        if self.compression is None:
            return unpack_theta(content, "change", model.theta)
        parts = unpack_parts(content, "change", len(model.theta))
        with unpacking("change"):
            theta, told = self.compression.read_change(parts, model.encoder)
        self.known_rows.note(party, told)
        return theta

    def _read_product(self, labels_of: LabelsOf, model: Model, party: int, content: RecordDict) -> Change:
        exactly(content, {"outcome": OUTCOME, "product": None})
        loss = self._read_outcome(content, labels_of[party])
        product = unpack_theta(content, "product", model.theta)
        self.repeats.check(party, product, None, loss)
        return Change(party, product, None, loss, norm(product))

    def _read_sums(self, labels_of: LabelsOf, size: int, party: int, content: RecordDict) -> Change:
        labels, dtype = labels_of[party], self.settings.dtype
        wanted: dict[str, tuple[str, Shape]] = {
            "gram": (dtype, (size * (size + 1) // 2 if self.method.sends_gram else 0,)),
            "cross": (dtype, (size, self.method.secret_dim or len(labels))),
        }
        exactly(content, {"outcome": OUTCOME, "sums": None})
        loss = self._read_outcome(content, labels)
        if self.compression is not None:
            (parts,) = unpack_parts(content, "sums", 1)
            with unpacking("sums"):
                found = self.compression.read_sums(parts, size, len(labels), getattr(torch, dtype))
            sums = list(found.whole(self.method.sends_gram))
        else:
            arrays = unpack(content, "sums", wanted)
            sums = [torch.from_numpy(arrays["gram"]), torch.from_numpy(arrays["cross"])]
        instances = int(self.roster.counts[self.roster.clients_of(party, labels)].sum())
        return Change(party, sums, None, loss, norm(sums) / max(instances, 1))

    def _read_outcome(self, content: RecordDict, labels: np.ndarray) -> float:
        """Return the loss, after a check that the answer is about `labels`."""
        outcome = config(content, "outcome", {"labels": (list, bytes), "loss": float})
        if outcome["labels"] != self.roster.pseudonyms_of(labels):
            raise BadMessage("answers for labels that it was not asked for")
        if not math.isfinite(outcome["loss"]):
            raise BadMessage("its loss is not a finite number")
        return float(outcome["loss"])

    # --- weights ---

    def _client_weights(self, model: Model, participants: np.ndarray) -> dict[int, float]:
        counts = torch.from_numpy(self.roster.counts[participants]).to(model.W)
        weights = self.method.weights(counts, self.roster.label_of[participants])
        return dict(zip(participants.tolist(), weights.tolist(), strict=True))

    def _begin_total(
        self, model: Model, labels_of: LabelsOf, weight_of: Mapping[int, float], round_number: int
    ) -> ChangeTotal:
        row_weights = {
            party: np.array([weight_of[client] for client in self.roster.clients_of(party, labels).tolist()])
            for party, labels in labels_of.items()
        }
        weights = {party: float(of_labels.sum()) for party, of_labels in row_weights.items()}
        rule = aggregation.begin(model.theta, weights, self.lengths, self.settings)
        self._note_capped(round_number, weights, rule.weights)
        return ChangeTotal(model, labels_of, row_weights, rule)

    def _note_capped(self, round_number: int, weights: Mapping[int, float], used: Mapping[int, float]) -> None:
        """Log, once per party, that it claims too many instances to count with all of them."""
        for party in sorted(party for party in weights if used[party] < weights[party]):
            if party not in self._capped:
                self._capped.add(party)
                why = f"{weights[party] / used[party]:.3g} times the most that one party may have"
                self.parties.note(round_number, self.roster.parties[party], "counts less than its instances", why)
