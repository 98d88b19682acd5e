"""A server and parties of secure sums in one process, whose parties drop out and whose messages can be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from fedalc.errors import FedalcError
from fedalc.secure_sums import Disclosures, Identity, InProcess, PartySum, Question, ServerSum, encoded

SECRET = bytes(range(64))
RUN = "run-1"
BITS = 20


def names_of(count: int) -> list[str]:
    return [f"party {number:02}" for number in range(count)]


def question(length: int, content: bytes = b"theta", subject: bytes | None = None) -> Question:
    return Question(content, content if subject is None else subject, length, BITS)


def vectors_of(names: Iterable[str], length: int = 5, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=length) * 100 for name in names}


def plain(vectors: Iterable[np.ndarray]) -> np.ndarray:
    """The sum in fixed point without any masks, modulo 2^64."""
    return np.sum([encoded(vector, BITS) for vector in vectors], axis=0, dtype=np.uint64)


class Gone(FedalcError):
    """A party that no longer answers."""


class Deployment(InProcess):
    """`lost`: (step, party) at which a party stops to answer. `changed`: what the server makes of a message to a party,
    by (step, party); `answers` the same of a party's answers. Every party is saved and restored between steps, as with
    a process per message."""

    def __init__(self, count: int = 5, seq: int = 1, threshold: int | None = None, secret: bytes = SECRET) -> None:
        self.names = names_of(count)
        self.identities = {name: Identity(name, RUN, secret) for name in self.names}
        parties = {name: PartySum(identity, seq) for name, identity in self.identities.items()}
        super().__init__(ServerSum(RUN, seq, threshold), parties, {name: Disclosures({}) for name in self.names})
        self.parties: dict[str, PartySum] = parties
        self.lost: set[tuple[str, str]] = set()
        self.changed: dict[tuple[str, str], Callable[[bytes], bytes]] = {}
        self.answers: dict[tuple[str, str], Callable[[bytes], bytes]] = {}
        self.step = "keys"

    def each(
        self, step: str, names: Iterable[str], ask: Callable[[str], bytes], add: Callable[[str, bytes], None]
    ) -> None:
        self.step = step

        def answered(name: str) -> bytes:
            self._come(name)
            return self.answers.get((step, name), bytes)(ask(name))

        super().each(step, names, answered, add)
        self.step = "masked" if step == "shares" else step

    def mask(self, name: str, question: Question, vector_of: Callable[[str], np.ndarray]) -> None:
        self._come(name)
        super().mask(name, question, vector_of)

    def to(self, name: str, content: bytes) -> bytes:
        return super().to(name, self.changed.get((self.step, name), bytes)(content))

    def _come(self, name: str) -> None:
        if (self.step, name) in self.lost:
            raise Gone("no answer in time")
        self.parties[name] = PartySum.restored(self.identities[name], self.parties[name].saved())

    def sum_of(self, vectors: Mapping[str, np.ndarray]) -> np.ndarray:
        length = len(next(iter(vectors.values())))
        return self.total(question(length), vectors.__getitem__)
