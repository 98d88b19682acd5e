"""What a server may ask of a party: memory, time, and the fewest instances behind an answer."""

from __future__ import annotations

import difflib
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.wire import BadMessage
from fedalc.errors import ConfigError

FEWEST = 8
"""A sample has to draw, and leave out, this many instances of a label on average; as many contribute to an answer."""


@dataclass(frozen=True)
class Bound:
    """The range of a value that a server may ask for, and the reason for it."""

    least: float
    most: float
    why: str


BOUNDS = {
    "client.epochs": Bound(1, 100, "one round is not a whole training"),
    "steps": Bound(0, 1_000_000, "client.epochs × batches of one answer: an answer has to end"),
    "client.learning_rate": Bound(0, 1_000, "a huge rate blows single gradients up"),
    "client.row_learning_rate": Bound(0, 1_000, "the same, of rows"),
    "client.weight_decay": Bound(0, 10, "it shrinks what steps have made"),
    "rate × decay": Bound(0, 0.1, "more, and a step erases those before it: the last records would stand alone"),
    "client.margin": Bound(0, 1, "a hinge margin below 0 leaves only the worst instances active"),
    "encoder.dim": Bound(1, 65_536, "memory"),
    "encoder.embedding": Bound(1, 65_536, "memory"),
    "encoder.hidden": Bound(1, 65_536, "memory, for each layer"),
    "encoder.random_features": Bound(1, 65_536, "memory"),
    "hashing.tables": Bound(1, 256, "memory: an encoder for each table"),
    "hashing.buckets": Bound(1, 10_000_000, "memory"),
    "text.buckets": Bound(1, 10_000_000, "memory: features of hashed texts"),
    "text.most_terms": Bound(1, 10_000_000, "memory: terms of a vocabulary that parties agree on"),
    "labels": Bound(1, 10_000_000, "memory: rows of W, where a party compares all labels"),
    "collection.buckets": Bound(1, 100_000_000, "memory: buckets of all tables in which parties count records"),
    "intersections": Bound(1, 100_000, "time: pairs of labels in one message of private set intersection"),
    "points": Bound(1, 20_000_000, "time: points for one other party in a step of private set intersection"),
    "bitmap_lists": Bound(1, 1, "lists of parties, over all runs, that private set intersection counts records of"),
    "trials": Bound(1, 8, "settings that a search may try, apart from penalties and rounds (secure sums: in all runs)"),
    "label_powers": Bound(1, 2, "with --require-secure-sums: label powers, over all runs"),
    "rankings": Bound(1, 1_000, "models of one run that a party ranks labels with: each answer reveals a little"),
    "calibrations": Bound(1, 1, "models of one run for which a party counts scores in bins: more than hits reveal"),
    "directions": Bound(1, 1_000, "directions of one run along which a party computes curvature (Newton steps)"),
    "sum_lists": Bound(1, 1, "lists of parties of secure sums, over all runs, of which two show single parties' parts"),
    "sum_settings": Bound(1, 1, "with --require-secure-sums: different settings of secure sums, over all runs"),
    "sum_records": Bound(1, 1, "with --require-secure-sums: different records in secure sums, over all runs"),
    "bucket_tables": Bound(1, 1, "with --require-secure-sums: different sizes of tables of counts, over all runs"),
    "held_out_labels": Bound(1, 1, "with --require-secure-sums: choices of labels that are held out, over all runs"),
    "held_out_shares": Bound(1, 1, "with --require-secure-sums: different shares of held-out records, over all runs"),
    "draws": Bound(0, 0, "with --require-secure-sums: random draws make rounds sums of different records"),
    "secure_sums.norm": Bound(0, 0, "with --require-secure-sums: a server can see whose change is cut first"),
    "direction": Bound(0, 1e9, "the length of such a direction: products must stay finite"),
    "privacy.epsilon": Bound(0, 10, "of a private model, and of its numbers of documents: a larger ε promises little"),
    "privacy.delta": Bound(0, 1e-5, "the same: the chance that ε does not hold"),
    "block_rows": Bound(1, 1_048_576, "memory: instances encoded at a time"),
    "round": Bound(1, 1_000_000, "no training has more (the server states the number)"),
    "set_size": Bound(1, 1_000, "labels of one instance: the join leaves out instances with more"),
    "holders": Bound(1, 10_000, "parties that have one record with one label"),
    "label_weight": Bound(1e-9, 1, "a_u is a share of the largest weight"),
    "seconds": Bound(0, 3_600, "for one answer: the last resort"),
}
"""Every setting that costs a party time or memory, or could single out an instance. `--allow NAME=NUMBER` sets
`most`. docs/deployment.md lists them too; a test compares. The size of pictures is not here: the party chooses it
(`--size`). For a limit over a whole run, see party_memory.py: it remembers what a run said before."""

RETIRED = {"overflows"}  # names that `--allow` takes and that act no more


@dataclass
class Limits:
    """A party's own bounds. The clock for one answer starts with the object."""

    most: Mapping[str, float] = field(default_factory=dict)  # where they differ from BOUNDS
    fewest: int = FEWEST
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def from_node_config(cls, node_config: Mapping[str, Any]) -> Limits:
        """Read `allow` ("client.epochs=500;seconds=7200") and `fewest`."""
        fewest = node_config.get("fewest", FEWEST)
        if type(fewest) is not int or fewest < 1:
            raise ConfigError(f"should be a whole number of at least 1, and is {fewest!r}", "fewest")
        return cls(_allowed(str(node_config.get("allow", ""))), fewest)

    def check(self, name: str, value: float, setting: str = "") -> None:
        """Refuse a value outside the bound `name`. `setting`: the value's own name, if it is another."""
        bound, most = BOUNDS[name], self.largest(name)
        if not bound.least <= value <= most:
            raise BadMessage(
                f"{setting or name} = {_short(value)} is outside {bound.least:g} to {most:g}, the range this party "
                f"accepts: {bound.why}"
            )

    def largest(self, name: str) -> float:
        return self.most.get(name, BOUNDS[name].most)

    def check_settings(self, settings: Experiment) -> None:
        """Call it before anything is read or computed."""
        client, encoder = settings.client, settings.encoder
        for name in ("epochs", "learning_rate", "weight_decay", "margin"):
            self.check(f"client.{name}", getattr(client, name))
        self.check("client.row_learning_rate", client.row_rate)
        self.check("rate × decay", client.learning_rate * client.weight_decay)
        if client.batch_size is not None and client.batch_size < self.fewest:
            raise BadMessage(
                f"client.batch_size = {client.batch_size} is below {self.fewest}, the fewest records that this party "
                "accepts in a step (--fewest)"
            )
        for name in ("dim", "embedding", "random_features"):
            self.check(f"encoder.{name}", getattr(encoder, name))
        for width in encoder.hidden:
            self.check("encoder.hidden", width)
        self.check("hashing.tables", settings.hashing.tables)
        self.check("hashing.buckets", settings.hashing.buckets)
        self.check("text.buckets", settings.text.buckets)
        self.check("text.most_terms", settings.text.most_terms)
        self.check("block_rows", settings.block_rows)
        if settings.privacy.covers_records:
            self.check("privacy.epsilon", settings.privacy.epsilon)
            self.check("privacy.delta", settings.privacy.delta)
            if settings.text.epsilon is not None:  # it is part of what the run promises
                self.check("privacy.epsilon", settings.text.epsilon, "text.epsilon")
                self.check("privacy.delta", settings.text.delta, "text.delta")

    def check_steps(self, settings: Experiment, counts: np.ndarray) -> None:
        size = settings.client.batch_size
        batches = int((counts > 0).sum()) if size is None else int(np.ceil(counts / min(size, 1 << 40)).sum())
        self.check("steps", settings.client.epochs * batches)

    def check_time(self) -> None:
        most = self.most.get("seconds", BOUNDS["seconds"].most)
        if time.monotonic() - self._began > most:
            raise BadMessage(f"asks for work that takes longer than {most:g} seconds, this party's limit for an answer")

    def check_told(self, settings: Experiment, weights: np.ndarray, shares: np.ndarray) -> None:
        """Check the label weights and set sizes: an honest join can give each of them."""
        for weight in weights[(weights < BOUNDS["label_weight"].least) | (weights > BOUNDS["label_weight"].most)][:1]:
            self.check("label_weight", float(weight))
        if not settings.weighs_labels and (weights != 1).any():
            raise BadMessage(
                "label weights other than 1, although client.label_power is 0 or does not act on this loss"
            )
        most = self.most.get("set_size", BOUNDS["set_size"].most)
        for share in shares[~((shares >= 1 / most) & (shares <= 1))][:1]:
            raise BadMessage(f"a share of {_short(share)}: shares are 1/m, and m is 1 to {most:g} labels (set_size)")
        if settings.client.set_size == "exact":
            wrong = shares != 1 / np.round(1 / shares)
            for share in shares[wrong][:1]:
                raise BadMessage(f"a share of {_short(share)} is not 1/m for a whole number m of labels")

    def check_holders(self, holders: np.ndarray) -> None:
        """Check how many parties have each of the party's pairs."""
        for number in (holders.min(initial=1), holders.max(initial=1)):
            self.check("holders", int(number))


def _allowed(text: str) -> dict[str, float]:
    most: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, value = part.partition("=")
        try:
            most[name.strip()] = float(value)
            if math.isnan(most[name.strip()]):
                raise ValueError
        except ValueError:
            raise ConfigError(f"expected NAME=NUMBER, found {part!r}", "allow") from None
    unknown = set(most) - set(BOUNDS) - RETIRED
    for name in sorted(set(most) & RETIRED):
        warnings.warn(f"allow: {name} has no effect any more", stacklevel=2)
    if unknown:
        near = difflib.get_close_matches(sorted(unknown)[0], BOUNDS, 3)
        known = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(BOUNDS)}"
        raise ConfigError(f"unknown bound {sorted(unknown)[0]!r}; {known}", "allow")
    return most


def _short(value: float) -> str:
    return f"{value:.6g}" if abs(value) < 1e300 else "a number of hundreds of digits"


def sample_problem(counts: np.ndarray, sample: float, fewest: int = FEWEST, say_counts: bool = True) -> str:
    """Return why parties refuse this sample of labels with these numbers of instances; "" if they accept it.

    The gradient of a few instances reveals too much about each, and two answers differ by what a sample leaves out.
    `fewest`: the party's own. `say_counts`: whether the message may contain the counts.

    >>> sample_problem(np.array([320, 0, 500]), 0.025)
    ''
    """
    few = int(counts[counts > 0].min(initial=np.iinfo(np.int64).max))
    if sample == 1 or min(sample, 1 - sample) * few >= fewest:
        return ""
    if not say_counts:
        return (
            f"client.sample = {sample:g} draws, or leaves out, fewer than {fewest} of a label's instances on average, "
            "which is too few for a party to answer; use 1"
        )
    least = math.ceil(1000 * fewest / few) / 1000
    instead = f"{least:g} to {1 - least:g}, or 1" if least <= 0.5 else "1"
    return (
        f"client.sample = {sample:g} draws, or leaves out, fewer than {fewest} of a label's {few} instances on "
        f"average, which is too few for a party to answer; use {instead}"
    )


def check_memory(needed: int) -> None:
    """Refuse work that needs more than half of the machine's memory."""
    if 2 * needed > psutil.virtual_memory().total:
        raise BadMessage(f"asks for work that takes {needed / 1e9:.3g} GB, more than half of this machine's memory")
