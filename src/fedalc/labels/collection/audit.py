"""`fedalc audit`: run the attacks of attack.py on message files, or on messages made here with every algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalc.config.schema import Algorithm, is_keyed
from fedalc.data.dataset import Split
from fedalc.errors import FedalcError
from fedalc.labels.collection.attack import Found, Learnt, dictionary_attack, frequency_attack, what_the_server_learns
from fedalc.labels.collection.hashing import Hasher, canonical_features, features_identity
from fedalc.labels.collection.join import join, read_messages
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import Messages, make_messages

MODES: tuple[Algorithm, ...] = ("md5", "sha256", "sha512", "hmac-md5", "hmac-sha256", "hmac-sha512")


@dataclass(frozen=True)
class Attempt:
    """One row of the audit's table: an attack with `weapon` on `messages` of one algorithm."""

    messages: str
    weapon: str
    found: Found
    by_frequency: int
    learnt: Learnt


def attack_every_mode(split: Split, names: Sequence[str]) -> list[Attempt]:
    """Collect the candidates with every algorithm, and attack with a dictionary of exactly these candidates.

    This is the worst case: no dictionary can be better.
    """
    key = Key.fresh()
    attempts = []
    for algorithm in MODES:
        stolen = key if algorithm == "hmac-sha256" else None
        hasher = Hasher(algorithm, key if is_keyed(algorithm) else None)
        attempts += list(_attempts([_collected(hasher, split, names)], split, names, stolen))
    return attempts


def _collected(hasher: Hasher, split: Split, names: Sequence[str]) -> Messages:
    kind = features_identity("content", split.features)
    return make_messages(hasher, kind, "all clients", canonical_features(split.features), split.labels, names)


def attack_files(
    files: Sequence[Path], split: Split, names: Sequence[str], key: Path | None
) -> tuple[list[Attempt], list[str]]:
    """Attack message files. Return the attempts, and notes on files that were refused."""
    messages, notes = read_messages(files)
    if not messages:
        raise FedalcError("none of the files could be read:\n  " + "\n  ".join(notes))
    kind = features_identity("content", split.features)
    other_kinds = {sent.protocol.identity for sent in messages} - {kind}
    if other_kinds:
        raise FedalcError(
            f"the audit guesses instances by their content ({kind}), but these messages use another identity: "
            f"{', '.join(sorted(other_kinds))}"
        )
    stolen = None if key is None else Key.read(key)
    if stolen is not None and not any(_made_with(stolen, sent) for sent in messages):
        raise FedalcError(f"{key}: none of these messages were made with this key")
    return list(_attempts(messages, split, names, stolen)), notes


def _made_with(key: Key, sent: Messages) -> bool:
    run = sent.protocol.run
    return sent.protocol.key_check == (key.for_run(run) if run else key).check


def _attempts(messages: list[Messages], split: Split, names: Sequence[str], stolen: Key | None) -> Iterator[Attempt]:
    joined = join(messages, shared_labels=True)
    messages = [sent for sent in messages if sent.protocol == joined.protocol]
    algorithm = joined.protocol.algorithm
    suspected = join([_collected(Hasher("sha256", None), split, names)]).label_sets  # merges equal candidates
    learnt, frequency = what_the_server_learns(joined), frequency_attack(joined, suspected)
    guesses = list(canonical_features(split.features))
    found = dictionary_attack(messages, guesses, names)
    yield Attempt(algorithm, "a dictionary", found, frequency, learnt)
    if stolen is not None:
        found = dictionary_attack(messages, guesses, names, stolen)
        yield Attempt(algorithm, "a dictionary, a client's key", found, frequency, learnt)


def describe(learnt: Learnt) -> Iterator[str]:
    """Yield lines of text that say what the server learns with any key."""
    yield "What the server learns with every algorithm and key (some of it is necessary for the protocol):"
    yield f"  size: {learnt.instances:,} instances, {learnt.labels:,} labels"
    yield f"  label frequencies: the most frequent labels occur {', '.join(f'{n:,}' for n in learnt.commonest)} times"
    yield f"  co-occurrence: {learnt.pairs:,} pairs of labels occur together, each with its count"
    yield (
        "  labels per instance: "
        + ", ".join(f"{size}: {instances:,}" for size, instances in list(learnt.set_sizes.items())[:8])
        + (", …" if len(learnt.set_sizes) > 8 else "")
    )
    yield f"  label sets: {learnt.unique_sets:,} instances have a label set that no other instance has"
    yield "'names by frequency': labels that the server can name if it knows how often each occurs among the candidates"
