"""What a server may ask of a party: of its machine, of its time, and of how few instances."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.wire import BadMessage
from fedalc.errors import ConfigError

FEWEST = 8
"""Instances of a label that a sample draws, and leaves out, on average; and that have to contribute to an answer."""


@dataclass(frozen=True)
class Bound:
    """The range of something that a server may ask for, and why it has one."""

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
    "hashing.tables": Bound(1, 256, "memory: an encoder for each table"),
    "hashing.buckets": Bound(1, 10_000_000, "memory"),
    "block_rows": Bound(1, 1_048_576, "memory: instances encoded at a time"),
    "round": Bound(1, 1_000_000, "no training has more"),
    "set_size": Bound(1, 1_000, "labels of one instance: the join leaves out instances with more"),
    "label_weight": Bound(1e-9, 1, "a_u is a share of the largest weight"),
    "seconds": Bound(0, 3_600, "for one answer: the last resort"),
}
"""Every setting that costs a party something or that could single an instance out. `--allow NAME=NUMBER` raises `most`.
Pictures have no bound here: their size is the party's own (`--size`)."""


@dataclass
class Limits:
    """A party's own bounds, and when its present answer has to be ready."""

    most: Mapping[str, float] = field(default_factory=dict)  # where they differ from BOUNDS
    fewest: int = FEWEST
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def from_node_config(cls, said: Mapping[str, Any]) -> Limits:
        """From `allow` ("client.epochs=500;seconds=7200") and `fewest`."""
        fewest = said.get("fewest", FEWEST)
        if type(fewest) is not int or fewest < 1:
            raise ConfigError(f"a whole number from 1 on, and is {fewest!r}", "fewest")
        return cls(_allowed(str(said.get("allow", ""))), fewest)

    def check(self, name: str, value: float) -> None:
        bound = BOUNDS[name]
        most = self.most.get(name, bound.most)
        if not bound.least <= value <= most:
            raise BadMessage(
                f"{name} = {_short(value)} is outside {bound.least:g} to {most:g}, the range this party accepts: "
                f"{bound.why}"
            )

    def check_settings(self, settings: Experiment) -> None:
        """Before anything is read or computed."""
        client, encoder = settings.client, settings.encoder
        for name in ("epochs", "learning_rate", "weight_decay", "margin"):
            self.check(f"client.{name}", getattr(client, name))
        self.check("client.row_learning_rate", client.row_rate)
        self.check("rate × decay", client.learning_rate * client.weight_decay)
        if client.batch_size is not None and client.batch_size < self.fewest:
            raise BadMessage(
                f"client.batch_size = {client.batch_size} is below {self.fewest}, the fewest records that this party "
                "takes a step on (--fewest)"
            )
        for name in ("dim", "embedding"):
            self.check(f"encoder.{name}", getattr(encoder, name))
        for width in encoder.hidden:
            self.check("encoder.hidden", width)
        self.check("hashing.tables", settings.hashing.tables)
        self.check("hashing.buckets", settings.hashing.buckets)
        self.check("block_rows", settings.block_rows)

    def check_steps(self, settings: Experiment, counts: np.ndarray) -> None:
        size = settings.client.batch_size
        batches = int((counts > 0).sum()) if size is None else int(np.ceil(counts / min(size, 1 << 40)).sum())
        self.check("steps", settings.client.epochs * batches)

    def check_time(self) -> None:
        most = self.most.get("seconds", BOUNDS["seconds"].most)
        if time.monotonic() - self._began > most:
            raise BadMessage(f"asks for work that takes longer than the {most:g} seconds this party gives to an answer")

    def check_told(self, settings: Experiment, weights: np.ndarray, shares: np.ndarray) -> None:
        """Label weights and set sizes, as the square loss uses them: each what an honest join can give."""
        for weight in weights[(weights < BOUNDS["label_weight"].least) | (weights > BOUNDS["label_weight"].most)][:1]:
            self.check("label_weight", float(weight))
        if settings.client.label_power == 0 and (weights != 1).any():
            raise BadMessage("label weights other than 1, though client.label_power is 0")
        most = self.most.get("set_size", BOUNDS["set_size"].most)
        for share in shares[~((shares >= 1 / most) & (shares <= 1))][:1]:
            raise BadMessage(f"a share of {_short(share)}: shares are 1/m, and m is 1 to {most:g} labels (set_size)")
        if settings.client.set_size == "exact":
            wrong = shares != 1 / np.round(1 / shares)
            for share in shares[wrong][:1]:
                raise BadMessage(f"a share of {_short(share)} is not 1/m for a whole number m of labels")


def _allowed(text: str) -> dict[str, float]:
    most: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, value = part.partition("=")
        try:
            most[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"expected NAME=NUMBER, found {part!r}", "allow") from None
    unknown = set(most) - set(BOUNDS)
    if unknown:
        raise ConfigError(f"there is no bound {sorted(unknown)[0]!r}; there are {', '.join(BOUNDS)}", "allow")
    return most


def _short(value: float) -> str:
    return f"{value:.6g}" if abs(value) < 1e300 else "a number of hundreds of digits"


def sample_problem(counts: np.ndarray, sample: float, fewest: int = FEWEST, say_counts: bool = True) -> str:
    """Why no party answers with such a sample of labels with so many instances each, or nothing.

    A few instances' gradient tells too much of each; and what a sample leaves out is what two answers differ by.
    `fewest`: the party's own. `say_counts`: whether the message may say how many there are.

    >>> sample_problem(np.array([320, 0, 500]), 0.025)
    ''
    """
    few = int(counts[counts > 0].min(initial=np.iinfo(np.int64).max))
    if sample == 1 or min(sample, 1 - sample) * few >= fewest:
        return ""
    if not say_counts:
        return (
            f"client.sample = {sample:g} draws, or leaves out, fewer than {fewest} of a label's instances on average, "
            "and no party answers for so few; use 1"
        )
    least = math.ceil(1000 * fewest / few) / 1000
    instead = f"{least:g} to {1 - least:g}, or 1" if least <= 0.5 else "1"
    return (
        f"client.sample = {sample:g} draws, or leaves out, fewer than {fewest} of a label's {few} instances on "
        f"average, and no party answers for so few; use {instead}"
    )


def check_memory(needed: int) -> None:
    """At most half of it: there are others on this machine."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 2 * needed > has:
        raise BadMessage(f"asks for work that takes {needed / 1e9:.3g} GB, too much for this machine")
