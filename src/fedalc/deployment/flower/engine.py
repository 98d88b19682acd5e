"""One round over the network: θ to every party, to each its own rows; their changes combined as they arrive.

It has the shape of a Flower strategy (configure and aggregate), but not its loop, which holds all replies in memory and
cannot resume. To the rest of fedalc it is one more engine.

Memory: θ three times (the server's, as a message, the sum of changes in double precision) and the few replies that are
in hand, whatever the number of parties. The rules that compare changes hold all of them (`engines.aggregation`), and so
does `clip` in its first round: up to `memory_budget` in memory, the rest on disk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.answers import Repeats, exactly
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import RESUME, Parties, TooFew
from fedalc.deployment.flower.norm_screen import Change, NormScreen, bad_rows
from fedalc.deployment.flower.punctuality import TRAIN
from fedalc.deployment.flower.replies import Asked, Replies, well_formed
from fedalc.deployment.flower.wire import (
    BadMessage,
    Shape,
    config,
    encoder_tensors,
    pack,
    pack_encoder,
    task,
    unpack,
    unpack_theta,
)
from fedalc.engines import aggregation
from fedalc.engines.aggregation.lengths import Lengths, norm
from fedalc.engines.base import Engine, RoundResult, Sums, mean_rows, no_rows
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.methods import Method
from fedalc.models.encoders import Chance
from fedalc.models.model import Model
from fedalc.training.server_optimizers import needs_everyone

OUTCOME = ("labels", "loss")
ATTEMPTS = 3  # at a round to which too few have answered


class FlowerStrategy(Engine):
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
        self.repeats = Repeats()
        self.lengths = Lengths()
        self.screen = NormScreen(self.lengths, max_norm)
        self._capped: set[int] = set()  # parties of which the log says that they count less than they claim
        self._traffic = Ledger()  # of the round, in all its attempts
        self.loss = 0.0  # of the last round in which somebody was heard

    # --- the engine ---

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        """Chance is drawn by the parties, from the round's number."""
        counts = torch.from_numpy(self.roster.counts[participants]).to(model.W)
        weight = dict(zip(participants.tolist(), self.method.weights(counts, participants).tolist(), strict=True))
        self._traffic = Ledger()
        self.repeats.about(model.theta)
        for asked, last in self._attempts(participants, round_number):
            messages = self.configure_train(round_number, model, asked)
            replies = self._replies(messages, round_number)
            change, rows, loss, heard = self.aggregate_train(round_number, model, asked, replies, weight)
            if self._enough(asked, heard, round_number, last):
                self.lengths.note(heard)
                self.loss = loss if heard else self.loss
                return RoundResult(change, *rows, self.loss, self._traffic, bool(heard))
        raise self._too_few(round_number)

    def sums(self, W: Tensor, participants: np.ndarray) -> Sums:
        self._traffic = Ledger()
        for asked, last in self._attempts(participants, 1):
            contents = ((self._node(party), self._content(labels)) for party, labels in asked.items())
            sums, heard = self._add_sums(W, asked, self.parties.ask(contents, "train.sums", "1"))
            if heard and self._enough(asked, heard, 1, last):
                return sums
        raise self._too_few(1)

    def tensors(self) -> dict[str, Tensor]:
        return self.lengths.tensors() | self.repeats.tensors()

    def facts(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.loss = float(facts["loss"])
        self.lengths.restore(tensors)
        self.repeats.restore(tensors)
        if "usual_length" in facts:  # a checkpoint of an older version
            self.lengths.largest = float(facts["usual_length"])

    def _attempts(self, participants: np.ndarray, round_number: int) -> Iterator[tuple[Asked, bool]]:
        """For each attempt whom to ask, of those who are there then, and whether it is the last one."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self.parties.say(f"round {round_number}: too few answers; asking again")
            here = self.parties.present(self.roster, round_number, *self._needed(round_number))
            if not attempt and not self._everyone(round_number):
                here = self.parties.awake(self.roster, here, TRAIN, round_number, self._needed(round_number)[0])
            labels = {party: self.roster.labels_of(party, participants) for party in sorted(here)}
            yield {party: own for party, own in labels.items() if len(own)}, attempt == ATTEMPTS - 1

    def _replies(self, messages: Iterator[tuple[int, RecordDict]], round_number: int) -> Replies:
        if self._everyone(round_number):
            return self.parties.ask(messages, TRAIN, str(round_number))
        return self.parties.ask_punctual(self.roster, messages, TRAIN, round_number)

    def _everyone(self, round_number: int) -> bool:
        return bool(self._needed(round_number)[1])

    def _too_few(self, round_number: int) -> TooFew:
        needed, because = self._needed(round_number)
        return TooFew(
            f"round {round_number}: {ATTEMPTS} times over fewer than {needed} parties gave an answer that could be "
            f"used{because}; the log says who did not and why. {RESUME}"
        )

    def _needed(self, round_number: int) -> tuple[int, str]:
        """How many parties have to answer, and why so many."""
        if self.method.one_round or not needs_everyone(self.settings, round_number):
            return self.parties.patience.go_on_with, ""
        because = ' (server.optimizer = "cg" solves for one objective, so it needs every party in every round)'
        return len(self.roster.parties), because

    def _enough(self, asked: Asked, heard: Collection[int], round_number: int, last: bool) -> bool:
        """Where fewer of those drawn for the round are here than are needed (server.participation), whoever answers
        will do. Without any the round changes nothing: the next one draws others."""
        needed, everyone = self._needed(round_number)
        few_drawn = len(asked) < needed and not everyone
        enough = len(heard) >= min(needed, len(asked)) or (last and few_drawn)
        if enough and not heard:
            self.parties.say(f"round {round_number}: nobody drawn for it has answered; it changes nothing")
        return enough

    def _node(self, party: int) -> int:
        return self.parties.node_of[party]

    # --- train ---

    def configure_train(self, round_number: int, model: Model, asked: Asked) -> Iterator[tuple[int, RecordDict]]:
        """(node, content): the encoder, which is the same object in all of them, and the party's own rows."""
        encoder = pack_encoder(model)
        for party, labels in asked.items():
            content = self._content(labels, round=round_number)
            content.update(encoder)
            content["rows"] = pack({"rows": model.W[torch.from_numpy(labels)]})
            self._traffic.down += payload_bytes([*encoder_tensors(model), model.W[: len(labels)]])
            yield self._node(party), content

    def aggregate_train(
        self, round_number: int, model: Model, asked: Asked, replies: Replies, weight: dict[int, float]
    ) -> tuple[list[Tensor], tuple[Tensor, Tensor], float, dict[int, float]]:
        """The change that `server.aggregation` makes of those who answered, their labels and rows, their mean loss, and
        who they were with the length of each one's change."""
        weights = {party: sum(weight[label] for label in labels.tolist()) for party, labels in asked.items()}
        rule = aggregation.begin(model.theta, weights, self.lengths, self.settings)
        self._note_capped(round_number, weights, rule.weights)
        rows, loss, part = [no_rows(model.W)], 0.0, 0.0
        heard: dict[int, float] = {}
        read = self._read_changes(round_number, model, asked, replies)
        for change in self._credible(round_number, self.screen, read):
            labels, p = asked[change.party], weights[change.party]
            rule.add(change.party, change.tensors, change.norm)
            if change.rows is not None:
                rows.append((torch.from_numpy(labels).to(model.W.device), change.rows.to(model.W)))
            loss, part = loss + p * change.loss, part + p
            heard[change.party] = change.norm
        labels_heard, copies = (torch.cat(part) for part in zip(*rows, strict=True))
        mean_loss = loss / part if heard else 0.0
        return rule.result(), mean_rows(labels_heard, copies, torch.ones_like(copies[:, 0])), mean_loss, heard

    def _note_capped(self, round_number: int, weights: Mapping[int, float], counted: Mapping[int, float]) -> None:
        """Once a party: who says that it has very many instances does not count with all of them."""
        for party in sorted(party for party in weights if counted[party] < weights[party]):
            if party not in self._capped:
                self._capped.add(party)
                why = f"{weights[party] / counted[party]:.3g} times the most that one party may have"
                self.parties.note(round_number, self.roster.parties[party], "counts less than its instances", why)

    def _credible(self, round_number: int, screen: NormScreen, changes: Iterator[Change]) -> Iterator[Change]:
        for change in screen.sift(changes):
            if isinstance(change, Change):
                yield change
            else:
                party, why = change
                self.parties.leave_out(round_number, self.roster.parties[party], why)

    def _read_changes(self, round_number: int, model: Model, asked: Asked, replies: Replies) -> Iterator[Change]:
        def read(content: RecordDict, party: int) -> Change:
            return self._read_change(content, party, asked[party], model)

        for change in well_formed(self.parties, self.roster, round_number, replies, read):
            self._traffic.up += payload_bytes([*change.tensors, *([] if change.rows is None else [change.rows])])
            yield change

    def _read_change(self, content: RecordDict, party: int, labels: np.ndarray, model: Model) -> Change:
        exactly(content, {"outcome": OUTCOME, "change": None} | ({"rows": None} if self.method.trains_rows else {}))
        loss = self._outcome(content, labels)
        theta = unpack_theta(content, "change", model.theta)
        rows = None
        if self.method.trains_rows:
            wanted = {"rows": (self.settings.dtype, (len(labels), model.W.shape[1]))}
            rows = torch.from_numpy(unpack(content, "rows", wanted)["rows"])
            if bad_rows(rows):
                raise BadMessage("a row is not of length 1")
        self.repeats.check(party, theta, rows, loss)
        return Change(party, theta, rows, loss, norm(theta))

    def _content(self, labels: np.ndarray, **more: int) -> RecordDict:
        """What a party is to do, and for which of its labels. For the square loss, also what only the server knows."""
        pseudonyms = [self.roster.pseudonyms[label].tobytes() for label in labels]
        asked = {"labels": pseudonyms, "numbers": labels.tolist(), "share": self.census.share}
        said = task(self.settings, self.census.run, **asked, **more)
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

    def _add_sums(self, W: Tensor, asked: Asked, replies: Replies) -> tuple[Sums, set[int]]:
        size = self.roster.feature_count
        half = torch.zeros(size * (size + 1) // 2, dtype=torch.float64)
        cross = W.new_zeros(size, W.shape[1], dtype=torch.float64)
        constant, pairs, heard = 0.0, 0, set()

        def read(content: RecordDict, party: int) -> Change:
            labels, dtype = asked[party], self.settings.dtype
            wanted: dict[str, tuple[str, Shape]] = {
                "gram": (dtype, tuple(half.shape)),
                "cross": (dtype, (size, len(labels))),
            }
            exactly(content, {"outcome": OUTCOME, "sums": None})
            loss, found = self._outcome(content, labels), unpack(content, "sums", wanted)
            sums = [torch.from_numpy(found["gram"]), torch.from_numpy(found["cross"])]
            self._traffic.up += payload_bytes(sums)
            return Change(party, sums, None, loss, norm(sums) / max(int(self.roster.counts[labels].sum()), 1))

        changes = well_formed(self.parties, self.roster, 1, replies, read)
        for found in self._credible(1, NormScreen(Lengths()), changes):  # by their length per instance
            labels, (own_half, own_cross) = asked[found.party], found.tensors
            half += own_half
            cross += own_cross.to(W.device).double() @ W[torch.from_numpy(labels)].double()
            constant, pairs = constant + found.loss, pairs + int(self.roster.counts[labels].sum())
            heard.add(found.party)
        gram = torch.zeros(size, size, dtype=W.dtype)
        gram[torch.triu_indices(size, size).unbind()] = half.to(W.dtype)
        gram = (gram + gram.triu(1).T).to(W.device)
        return Sums(gram, cross.to(W), constant, pairs, self._traffic), heard
