"""Files of the label collection, and keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random

import numpy as np

from fedalc.labels.collection.join import join
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import load_messages
from fedalc.labels.collection.results import Collected
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import changed, mutated
from tests.fuzz.registry import as_file, reader, workplace
from tests.labels.collection.problems import KEY, sent


def with_checksum(seed: bytes, rng: Random) -> bytes:
    """Return a container with a changed header or arrays, and a matching checksum."""
    magic, header, rest = seed[:-32].split(b"\n", 2)
    act = rng.randrange(3)
    if act == 0:
        header = json.dumps(changed(json.loads(header), rng), default=str).encode("ascii", "replace")
    elif act == 1 and rest:
        data = bytearray(rest)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 127, 128, 255))
        rest = bytes(data)
    else:
        rest = mutated(rest, [rest], rng)
    body = b"\n".join((magic, header, rest))
    return body + hashlib.sha256(body).digest()


@reader
def messages_file() -> Reader:
    file = workplace() / "seed.messages"
    seeds = []
    for held in ({"a": "xyz", "b": "yz"}, {"c": "q"}):
        sent("party", held).save(file)
        seeds.append(file.read_bytes())
    read = as_file("a.messages", load_messages)
    return Reader("messages-file", "messages of a client", seeds, read, with_checksum)


@reader
def correlations_file() -> Reader:
    file = workplace() / "seed.correlations"
    known = Collected.from_joined(join([sent("p", {"a": "xyz", "b": "yz"}), sent("q", {"c": "zw"})]))
    known.save(file)
    pseudonyms = known.pseudonyms.copy()

    def read(path: Path) -> None:
        found = Collected.load(path)
        if np.isin(found.pseudonyms, pseudonyms).all() and len(found.pseudonyms) == len(pseudonyms):
            found.correlations.together.sum()

    seeds = [file.read_bytes()]
    return Reader("correlations-file", "correlations of a server", seeds, as_file("correlations", read), with_checksum)


@reader
def key_file() -> Reader:
    file = workplace() / "seed.key"
    KEY.write(file)
    seeds = [file.read_bytes()]
    place = workplace() / "shared.key"
    place.touch(0o600)

    def read(data: bytes) -> object:
        place.write_bytes(data)
        return Key.read(place)

    return Reader("key-file", "the clients' shared key", seeds, read)
