"""At a party: read a message of the server, and check what every message has: run, settings, share."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Context, Message

from fedalc.config.experiment import Experiment
from fedalc.data.images.images import Images
from fedalc.deployment.flower.kept_party import read_party
from fedalc.deployment.flower.limits import Limits, check_memory
from fedalc.deployment.flower.party import SHARES, Party, TextOf, picture_size
from fedalc.deployment.flower.party_budget import check_promise
from fedalc.deployment.flower.party_memory import check_asked, check_same_run, check_unchanged, fingerprint
from fedalc.deployment.flower.party_network import own_network
from fedalc.deployment.flower.party_settings import check_same_share, check_strictly, insists
from fedalc.deployment.flower.party_texts import text_of
from fedalc.deployment.flower.party_trials import check_trial
from fedalc.deployment.flower.wire import (
    SEARCH,
    BadMessage,
    read_json,
    read_task,
)
from fedalc.errors import FedalcError
from fedalc.labels.collection.identity import SharedEncoder
from fedalc.labels.collection.keys import check_run_id
from fedalc.models.encoders import encoder_shape
from fedalc.workflows.train import image_options

log = logging.getLogger("fedalc.party")


def read_question(
    message: Message, context: Context, **more: type | tuple[type, type]
) -> tuple[Party, Experiment, dict[str, Any]]:
    """Return the party, the settings and the question. The settings come first: they say how pictures are read."""
    settings, question, limits = checked_task(message, context, **more)
    text = text_of(message, context, settings, question["run"], limits)
    return party_of(context, settings, question, text), settings, question


def checked_task(
    message: Message, context: Context, **more: type | tuple[type, type]
) -> tuple[Experiment, dict[str, Any], Limits]:
    """Return the settings, the question, and the party's limits, by which both were checked."""
    node_config = context.node_config
    settings, question = read_task(message.content, str(node_config.get("device", "cpu")), share=float, **more)
    limits = Limits.from_node_config(node_config)
    limits.check_settings(settings)
    check_strictly(context, settings, limits)
    _check_share(question["share"])
    check_same_share(context, question["share"], limits)
    _check_run(message, context, question, limits)
    if settings.text.encoder is not None:  # never read a folder that the server names
        raise BadMessage("asks for features of a sentence encoder, which a party does not read (text.kind)")
    return settings, question, limits


def party_of(context: Context, settings: Experiment, question: dict[str, Any], text: TextOf) -> Party:
    """Read the party's data, if these settings suit it. `text`: how its texts become features."""
    check_promise(context.node_config, settings, question["run"])
    images, network = replace(image_options(settings), tell=log.warning), own_network(context.node_config, settings)
    if network is not None:
        _check_size(picture_size(context.node_config), settings)
    party = read_party(context.node_config, images, question["run"], text, network)
    party = replace(party, same_name=settings.secure_sums.on)
    if insists(context) and not settings.secure_sums.on:
        raise BadMessage("is a run without secure sums, and this party answers no other (--require-secure-sums)")
    if settings.secure_sums.on and party.collection.key is None:
        raise BadMessage("has secure sums, and this party has no key that others could know it by")
    if settings.embeddings.secret and party.collection.key is None:
        raise BadMessage("has secret rows (embeddings.secret), and this party has no key to turn them with")
    if question[SEARCH] and settings.embeddings.secret:  # from sums with two label powers the rows follow
        raise BadMessage("is a search for settings, with secret rows (embeddings.secret)")
    if question[SEARCH] and party.collection.identity == "embedding":  # a trial's encoder would change the digests
        raise BadMessage("is a search for settings, and this party recognises instances by embedding (--identity)")
    features, name = party.holding.split.features, settings.encoder.name
    pictures = isinstance(features, Images)
    if pictures != settings.encoder.is_image:
        holds = "pictures: encoder.name should be a resnet" if pictures else "no pictures: use linear or mlp"
        raise BadMessage(f"its encoder is {name}, and this party has {holds}")
    if pictures:
        _check_size(features.size, settings)
    if settings.encoder.frozen and party.holding.split.pictures is None:
        raise BadMessage("is on the features of pictures (encoder.frozen), and this party has no pictures")
    return party


def _check_size(own: int, settings: Experiment) -> None:
    if own != settings.images.size:
        raise BadMessage(
            f"asks for pictures of {settings.images.size} pixels a side (images.size), and this party's have {own} "
            "(--size)"
        )


def _check_run(message: Message, context: Context, question: dict[str, Any], limits: Limits) -> None:
    """Bind a run id to one run with one set of settings, so that a server can link answers of one run only. A search
    may change a few of them."""
    if message.metadata.run_id != context.run_id:
        raise BadMessage("belongs to another Flower run than the one it came with")
    run = question["run"]
    if run:
        try:
            check_run_id(run)
        except FedalcError as error:
            raise BadMessage(str(error)) from None
    elif not context.node_config.get("without-run-id"):
        raise BadMessage(
            "has no run id: the run began with an older fedalc. To continue such a run, start the party with "
            "--without-run-id"
        )
    check_same_run(context, run)
    now, search = read_json(question["settings"], "the settings"), question[SEARCH]
    began = read_json(search, "the settings of the search") if search else now
    facts = {"settings": fingerprint(_written(began), repr(question["share"]).encode(), *[b"search"] * bool(search))}
    problem = f"run id {run!r} was used with other settings before; a new run needs a new run id (--run-id)"
    check_unchanged(context, run, facts, problem)
    if search:
        limits.check("trials", 1)  # a party that refuses searches says so at once
        check_trial(began, now)
        if now != began:
            check_asked(context, run, "trial", fingerprint(_written(now)), partial(limits.check, "trials"))


def _written(settings: Any) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()


def shared_encoder(settings: Experiment) -> SharedEncoder:
    return SharedEncoder(settings.encoder, settings.seed)


def _check_share(share: float) -> None:
    if share not in SHARES:
        raise BadMessage(f"{share} is not a valid share of instances to hold out; valid are {SHARES}")


def apart(party: Party, settings: Experiment, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the digests of all instances, and which of them are held out."""
    if party.collection.identity == "embedding":  # then the server's settings determine the size of an encoder
        shape = encoder_shape(party.holding.split.features.shape[1], settings.encoder)
        check_memory(4 * (shape.drawn + sum(parameter.numel() for parameter in shape.parameters())))
    return party.digests(shared_encoder(settings)), party.held_out(share)


def all_label_count(question: dict[str, Any], limits: Limits) -> int:
    """Return the number of labels of all parties, as the server states it."""
    count, numbers = int(question["label-count"]), question["numbers"]
    limits.check("labels", count)
    if len(set(numbers)) != len(numbers) or not all(0 <= number < count for number in numbers):
        raise BadMessage(f"numbers of labels that are not different ones of {count}")
    return count


def check_all_labels(party: Party, question: dict[str, Any], out: np.ndarray, on_held_out: bool = False) -> None:
    """Refuse a question of a secure sum that leaves out labels that the party trains on: two sums could differ by one
    label's part, and a party that is asked about little adds next to nothing. Private set intersection likewise.
    `out`: which records are held out."""
    labels = party.holding.split.labels
    needed = (labels[~out].getnnz(axis=0) > 0) & (labels[out == on_held_out].getnnz(axis=0) > 0)
    if missing := int(needed.sum() - needed[own_columns(party, question)].sum()):
        raise BadMessage(
            f"leaves out {missing} of this party's labels: secure sums and private set intersection need all of them. "
            'If another party claims them too, share them (clients = "parties"), or leave them out here (--labels)'
        )


def own_columns(party: Party, question: dict[str, Any]) -> list[int]:
    """Return the columns of the party's labels that the question is about, in the question's order."""
    column = {pseudonym.tobytes(): number for number, pseudonym in enumerate(party.pseudonyms)}
    labels = question["labels"]
    if not labels or len(set(labels)) != len(labels) or len(question["numbers"]) != len(labels):
        raise BadMessage("no labels, a label twice, or not one number per label")
    if any(label not in column for label in labels):
        raise BadMessage("asks for a label that is not this party's")
    return [column[label] for label in labels]
