"""One round over the network: θ to every party, to each its own rows; their changes added up as they arrive.

It has the shape of a Flower strategy (configure and aggregate, for train and evaluate), but not its loop, which holds
all replies in memory and cannot resume. To the rest of fedalc it is one more engine.

Memory: θ three times (the server's, as a message, the sum of changes in double precision) and the few replies that are
in hand, whatever the number of parties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Message, MetricRecord, RecordDict
from torch import Tensor

from fedalc.config import Experiment
from fedalc.encoders import Dropout
from fedalc.engines.base import RoundResult, Sums
from fedalc.engines.flower.collecting import Census
from fedalc.engines.flower.parties import Parties, TooFew
from fedalc.engines.flower.records import BadMessage, Shape, config, pack, pack_theta, task, unpack, unpack_theta
from fedalc.engines.flower.screening import Change, NormScreen, bad_rows, norm
from fedalc.ledger import Ledger, payload_bytes
from fedalc.methods import Method
from fedalc.model import Model

ATTEMPTS = 3  # at a round to which too few have answered
T = TypeVar("T")
Replies = Iterable[tuple[int, Message | str]]


class FlowerStrategy:
    """`max_norm`: the longest change of θ that is taken; without one, a hundred times the usual."""

    clients_keep_rows = False  # a party may be restarted at any time, so its rows come with every message

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
        self.screen = NormScreen(max_norm)
        self._traffic = Ledger()

    # --- the engine ---

    def run(self, model: Model, participants: np.ndarray, dropout: Dropout | None, round_number: int) -> RoundResult:
        """Dropout is drawn by the parties, from the round's number."""
        counts = torch.from_numpy(self.roster.counts[participants]).to(model.W)
        weight = dict(zip(participants.tolist(), self.method.weights(counts).tolist(), strict=True))
        for _ in range(ATTEMPTS):
            asked = self._asked(participants, round_number)
            self._traffic = Ledger()
            messages = self.configure_train(round_number, model, asked)
            replies = self.parties.ask(messages, "train", str(round_number))
            change, rows, loss, heard = self.aggregate_train(round_number, model, asked, replies, weight)
            if self._enough(asked, heard, round_number):
                return RoundResult(change, rows, loss, self._traffic)
        raise TooFew(f"round {round_number}: too few parties answered, {ATTEMPTS} times over")

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        for _ in range(ATTEMPTS):
            asked = self._asked(participants, 1)
            self._traffic = Ledger()
            contents = ((self._node(party), self._content(labels)) for party, labels in asked.items())
            sums, heard = self._add_sums(model, asked, self.parties.ask(contents, "train.sums", "1"))
            if self._enough(asked, heard, 1):
                return sums
        raise TooFew(f"too few parties answered, {ATTEMPTS} times over")

    def _asked(self, participants: np.ndarray, round_number: int) -> dict[int, np.ndarray]:
        """Party → its labels that take part, of the parties that are there."""
        here = self.parties.present(self.roster, round_number, self._needed)
        labels = {party: self.roster.labels_of(party, participants) for party in sorted(here)}
        return {party: own for party, own in labels.items() if len(own)}

    @property
    def _needed(self) -> int:
        """Conjugate gradients need the same objective in every round, and so everyone."""
        everyone = self.settings.server.optimizer == "cg" and not self.method.one_round
        return len(self.roster.parties) if everyone else self.parties.patience.go_on_with

    def _enough(self, asked: dict[int, np.ndarray], heard: set[int], round_number: int) -> bool:
        if len(heard) >= min(self._needed, len(asked)) and heard:
            return True
        self.parties.say(f"round {round_number}: {len(heard)} of {len(asked)} answers are too few; asking again")
        return False

    def _node(self, party: int) -> int:
        return self.parties.node_of[party]

    # --- train ---

    def configure_train(
        self, round_number: int, model: Model, asked: dict[int, np.ndarray]
    ) -> Iterator[tuple[int, RecordDict]]:
        """(node, content): θ, which is the same object in all of them, and the party's own rows."""
        theta = pack_theta(model.theta)
        for party, labels in asked.items():
            content = self._content(labels, round=round_number)
            content["theta"] = theta
            content["rows"] = pack({"rows": model.W[torch.from_numpy(labels)]})
            self._traffic.down += payload_bytes([*model.theta, model.W[: len(labels)]])
            yield self._node(party), content

    def aggregate_train(
        self, round_number: int, model: Model, asked: dict[int, np.ndarray], replies: Replies, weight: dict[int, float]
    ) -> tuple[list[Tensor], Tensor, float, set[int]]:
        """The mean change of those who answered, W with their rows, their mean loss, and who they were."""
        totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in model.theta]
        rows, loss, part = model.W.clone(), 0.0, 0.0
        heard: set[int] = set()
        read = self._read_changes(round_number, model, asked, replies)
        for change in self.screen.sift(read):
            if not isinstance(change, Change):
                party, why = change
                self.parties.leave_out(round_number, self.roster.parties[party], why)
                continue
            labels = asked[change.party]
            p = sum(weight[label] for label in labels.tolist())
            for total, theta in zip(totals, change.theta, strict=True):
                total.add_(theta.to(total), alpha=p)  # in double precision, so that the order of arrival hardly shows
            if change.rows is not None:
                rows[torch.from_numpy(labels)] = change.rows.to(rows)
            loss, part = loss + p * change.loss, part + p
            heard.add(change.party)
        scale = 1 / part if heard else 0.0
        mean = [total.mul_(scale).to(parameter) for total, parameter in zip(totals, model.theta, strict=True)]
        return mean, rows, loss * scale, heard

    def _read_changes(
        self, round_number: int, model: Model, asked: dict[int, np.ndarray], replies: Replies
    ) -> Iterator[Change]:
        def read(content: RecordDict, party: int) -> Change:
            return self._read_change(content, party, asked[party], model)

        for _, change in self._well_formed(round_number, asked, replies, read):
            self._traffic.up += payload_bytes([*change.theta, *([] if change.rows is None else [change.rows])])
            yield change

    def _well_formed(
        self,
        round_number: int,
        asked: dict[int, np.ndarray],
        replies: Replies,
        read: Callable[[RecordDict, int], T],
    ) -> Iterator[tuple[int, T]]:
        """(party, what was read) of the replies that are in order; the other parties are left out of the round."""
        party_of = {self._node(party): party for party in asked}
        for node, reply in replies:
            party = party_of[node]
            try:
                if isinstance(reply, str):
                    raise BadMessage(reply)
                value = read(reply.content, party)
            except BadMessage as error:
                self.parties.leave_out(round_number, self.roster.parties[party], str(error))
            else:
                yield party, value

    def _read_change(self, content: RecordDict, party: int, labels: np.ndarray, model: Model) -> Change:
        loss = self._outcome(content, labels)
        theta = unpack_theta(content, "change", model.theta)
        rows = None
        if self.method.trains_rows:
            wanted = {"rows": (self.settings.dtype, (len(labels), model.W.shape[1]))}
            rows = torch.from_numpy(unpack(content, "rows", wanted)["rows"])
            if bad_rows(rows):
                raise BadMessage("a row is not of length 1")
        return Change(party, theta, rows, loss, norm(theta))

    def _content(self, labels: np.ndarray, **more: int) -> RecordDict:
        """What a party is to do, and for which of its labels. For the square loss, also what only the server knows."""
        pseudonyms = [self.roster.pseudonyms[label].tobytes() for label in labels]
        said = task(self.settings, labels=pseudonyms, numbers=labels.tolist(), share=self.census.share, **more)
        content = RecordDict({"task": said})
        if self.settings.client.loss == "square":
            told = self.method.tell(labels, self.census.set_sizes.get(int(self.roster.owner[labels[0]])))
            content["told"] = pack({"weights": told.label_weights, "shares": told.shares})
            self._traffic.down += told.label_weights.nbytes + told.shares.nbytes
        return content

    def _outcome(self, content: RecordDict, labels: np.ndarray) -> float:
        said = config(content, "outcome", {"labels": (list, bytes), "loss": float})
        if said["labels"] != [self.roster.pseudonyms[label].tobytes() for label in labels]:
            raise BadMessage("answers for labels that it was not asked for")
        if not math.isfinite(said["loss"]):
            raise BadMessage("its loss is not a finite number")
        return float(said["loss"])

    # --- methods of one round ---

    def _add_sums(self, model: Model, asked: dict[int, np.ndarray], replies: Replies) -> tuple[Sums, set[int]]:
        size, W = self.roster.feature_count, model.W
        half = torch.zeros(size * (size + 1) // 2, dtype=torch.float64)
        cross = W.new_zeros(size, W.shape[1], dtype=torch.float64)
        constant, pairs, heard = 0.0, 0, set()

        def read(content: RecordDict, party: int) -> tuple[float, dict[str, np.ndarray]]:
            loss, dtype = self._outcome(content, asked[party]), self.settings.dtype
            wanted: dict[str, tuple[str, Shape]] = {
                "gram": (dtype, tuple(half.shape)),
                "cross": (dtype, (size, len(asked[party]))),
            }
            return loss, unpack(content, "sums", wanted)

        for party, (loss, found) in self._well_formed(1, asked, replies, read):
            labels = asked[party]
            half += torch.from_numpy(found["gram"])
            own = W[torch.from_numpy(labels)]
            cross += torch.from_numpy(found["cross"]).to(W.device).double() @ own.double()
            constant, pairs = constant + loss, pairs + int(self.roster.counts[labels].sum())
            self._traffic.up += sum(array.nbytes for array in found.values())
            heard.add(party)
        gram = torch.zeros(size, size, dtype=W.dtype)
        gram[torch.triu_indices(size, size).unbind()] = half.to(W.dtype)
        gram = (gram + gram.triu(1).T).to(W.device)
        return Sums(gram, cross.to(W), constant, pairs, self._traffic), heard

    # --- evaluate ---

    def evaluate(self, model: Model, round_number: int) -> dict[str, float]:
        """At the parties, on what they keep out of training: means over all of it. Empty, where nobody has any."""
        here = self.parties.present(self.roster, round_number, 1)
        measuring = np.flatnonzero(self.roster.held_out)
        labels = {party: self.roster.labels_of(party, measuring) for party in sorted(here)}
        asked = {party: own for party, own in labels.items() if len(own)}
        self._traffic = Ledger()
        contents = self.configure_evaluate(model, asked)
        return self.aggregate_evaluate(round_number, asked, self.parties.ask(contents, "evaluate", str(round_number)))

    def configure_evaluate(self, model: Model, asked: dict[int, np.ndarray]) -> Iterator[tuple[int, RecordDict]]:
        theta = pack_theta(model.theta)
        for party, labels in asked.items():
            pseudonyms = [self.roster.pseudonyms[label].tobytes() for label in labels]
            said = task(self.settings, labels=pseudonyms, numbers=labels.tolist(), share=self.census.share)
            rows = pack({"rows": model.W[torch.from_numpy(labels)]})
            self._traffic.down += payload_bytes([*model.theta, model.W[: len(labels)]])
            yield self._node(party), RecordDict({"task": said, "theta": theta, "rows": rows})

    def aggregate_evaluate(self, round_number: int, asked: dict[int, np.ndarray], replies: Replies) -> dict[str, float]:
        """Weighted by how many instances each party said at the start that it keeps: not by what it says now."""
        names = ("score", "loss") if self.settings.client.loss == "hinge" else ("score",)
        totals, weights = dict.fromkeys(names, 0.0), 0
        read = self._well_formed(round_number, asked, replies, lambda content, _: _metrics(content, names))
        for party, metrics in read:
            weight = int(self.roster.held_out[asked[party]].sum())
            totals = {name: total + weight * metrics[name] for name, total in totals.items()}
            weights += weight
        return {f"party {name}": total / weights for name, total in totals.items()} if weights else {}


def _metrics(content: RecordDict, names: tuple[str, ...]) -> dict[str, float]:
    said = content.get("metrics")
    values = {name: said.get(name) for name in names} if isinstance(said, MetricRecord) else {}
    if not values or not all(isinstance(v, float) and math.isfinite(v) for v in values.values()):
        raise BadMessage("no metrics, or none that are finite numbers")
    return {name: float(value) for name, value in values.items() if isinstance(value, float)}


def hello(settings: Experiment, share: float) -> RecordDict:
    """The question to a node that is new here."""
    return RecordDict({"task": task(settings, share=share)})
