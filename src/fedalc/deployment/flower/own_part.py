"""At a party: check what a question of a secure sum says to this party alone: its labels, their rows and weights.

All else is in the digest of the question, so that parties that get different things have masks that do not cancel. With
these the server could make all parties but one add next to nothing, and the sum would be that one's vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import RecordDict

from fedalc.deployment.flower.bucket_sums import SealedTables, check_label_counts
from fedalc.deployment.flower.compared_rows import RECORD as ALL_ROWS
from fedalc.deployment.flower.compared_rows import check_own_rows
from fedalc.deployment.flower.party_memory import check_numbers, check_unchanged, fingerprint
from fedalc.deployment.flower.party_settings import insists
from fedalc.deployment.flower.shared_labels import record_counts
from fedalc.deployment.flower.sum_messages import (
    EVERY_ROW,
    LABEL_WEIGHTS,
    LABELS,
    MEAN_SHARE,
    POWERS,
    RAREST,
    WEIGHTS,
)
from fedalc.deployment.flower.sum_parties import check_counted
from fedalc.deployment.flower.table_seals import SEALED
from fedalc.deployment.flower.wire import BadMessage, config, unpack, unpack_all_rows
from fedalc.methods import METHODS
from fedalc.methods.base import weights_of

if TYPE_CHECKING:
    from fedalc.deployment.flower.work import Work

OFF_BY = 2.0  # with the join: the factor by which n may differ from the party's own count, since it leaves out records
NOISE = 1000.0  # and by this many records, if n has noise
SINGLE = 1e-5  # by which weights in single precision may differ
UNIT = 1e-3  # by which the length of a row may differ from 1


def check_own_part(work: Work, kind: str, names: Sequence[str]) -> None:
    """`kind`: of the question; `names`: of the parties of the sum."""
    _check_labels(work, kind)
    if work.settings.clients == "parties":
        check_list(work.message.content, work.question, _label_count(work))
    if kind == "rank":
        _check_lengths(work, _all_rows(work, ALL_ROWS))
        if WEIGHTS in work.message.content and work.settings.clients != "parties":
            _check_weightings(work)
    if "rows" in work.message.content:
        _check_rows(work)
        check_own_rows(work)
    if kind in ("train", "sums") and work.settings.weighs_labels:
        _check_weights(work, names)
    by_mean = work.settings.client.loss != "hinge" and work.settings.client.set_size == "expected"
    if kind != "rank" and by_mean and work.settings.collection.by == "sums":
        _check_mean(work)


def _check_labels(work: Work, kind: str) -> None:
    """Questions of a run are about the same labels with the same numbers."""
    asked = fingerprint(b"".join(work.question["labels"]), np.array(work.question["numbers"]).tobytes())
    problem = "asks about other labels, or with other numbers, than before in this run"
    check_unchanged(work.context, work.question["run"], {f"sum labels {kind}": asked}, problem)


def check_list(content: RecordDict, question: dict[str, Any], label_count: int) -> None:
    """All parties get the same list of labels, in which each stands once, and this party's where its numbers say. With
    another number, and so another row, at each party of a label, the sum could be taken apart by party."""
    listed = unpack(content, LABELS, {"labels": ("uint8", (label_count, None))})["labels"]
    rows, numbers = [row.tobytes() for row in listed], question["numbers"]
    own = [rows[number] for number in numbers if 0 <= number < len(rows)]
    if len(set(rows)) < len(rows) or own != question["labels"]:
        raise BadMessage("gives this party's labels other numbers than all parties' list of labels")


def _check_rows(work: Work) -> None:
    """The rows of its labels are those that all parties get."""
    content, numbers = work.message.content, work.question["numbers"]
    rows = _all_rows(work, EVERY_ROW if EVERY_ROW in content else ALL_ROWS)
    if max(numbers) >= len(rows) or not torch.equal(rows[numbers], work.own_rows()):
        raise BadMessage("sends this party other rows than those that all parties get")
    _check_lengths(work, rows)


def _all_rows(work: Work, record: str) -> torch.Tensor:
    return unpack_all_rows(work.message.content, record, work.settings.dtype, _label_count(work), work.width)


def _check_lengths(work: Work, rows: torch.Tensor) -> None:
    copies = METHODS[work.settings.method].sub_models(work.settings)
    if ((rows.double().norm(dim=1) - copies**0.5).abs() > UNIT * copies).any():
        raise BadMessage("sends rows that are not of length 1: labels of others would count for nothing")


def _check_weights(work: Work, names: Sequence[str]) -> None:
    """The weights of its labels are those that all parties get, and follow from the sums of all parties' numbers of
    records. With labels that it alone has, they follow from its own numbers of records and the number n of the rarest
    label, which all parties get."""
    told = work.method.told
    assert told is not None
    if work.settings.clients == "parties":
        _check_shared_weights(work, told.label_weights, names)
        return
    own, client = own_counts(work), work.settings.client
    _check_follow(work, told.label_weights, client.label_power, own)
    if _knows_counts(work):  # not the server's weights: sums are exact, so weights that are almost right would show
        rarest = config(work.message.content, "task", {RAREST: float})[RAREST]
        due = weights_of(np.append(own, rarest), client.label_power, client.label_offset)[:-1]
        work.method = replace(work.method, told=replace(told, label_weights=due))


def _check_shared_weights(work: Work, told: np.ndarray, names: Sequence[str]) -> None:
    content, settings, count = work.message.content, work.settings, _label_count(work)
    check_numbers(work.context, work.question, count)
    by_sums = settings.collection.by == "sums"
    wanted: dict[str, Any] = {"weights": ("float64", (count,))}
    if by_sums:
        wanted |= {"labels": ("uint64", (count, 1)), "labels seals": ("uint64", (SEALED,))}
    arrays = unpack(content, LABEL_WEIGHTS, wanted)
    weights = arrays["weights"]
    if not np.array_equal(weights[work.question["numbers"]], told):
        raise BadMessage("sends this party other label weights than those that all parties get")
    if by_sums:
        told_counts = SealedTables.of("labels", arrays)
        check_counted(work.context, work.question["run"], told_counts.secure_sum, names)
        n = check_label_counts(told_counts, settings, work.party.hasher)
        due = weights_of(n, settings.client.label_power, settings.client.label_offset)
        if not np.allclose(weights, due, rtol=SINGLE, atol=0):
            raise BadMessage("sends label weights that do not follow from the labels' numbers of records")
        assert work.method.told is not None
        own = due[work.question["numbers"]]
        work.method = replace(work.method, told=replace(work.method.told, label_weights=own))
    elif insists(work.context):
        raise BadMessage(
            "has label weights (client.label_power) and labels at several parties, whose weights this party can check "
            "with --collection sums only"
        )


def _check_weightings(work: Work) -> None:
    """The same of the weights by which a search compares label powers. Otherwise a server could push the labels of all
    parties but one to the end of every ranking."""
    wanted = {WEIGHTS: ("float64", (None, work.all_label_count))}
    weights = unpack(work.message.content, WEIGHTS, wanted)[WEIGHTS][:, work.question["numbers"]]
    powers = config(work.message.content, "task", {POWERS: (list, float)})[POWERS]
    if len(powers) != len(weights) or not all(0 <= power < 1 for power in powers):
        raise BadMessage("has not one label power, from 0 to below 1, for each weighting of the labels")
    own = np.maximum(work.trained_counts, 1)
    for power, weight in zip(powers, weights, strict=True):
        if power == 0 and (weight != 1).any():
            raise BadMessage("sends label weights other than 1 for label power 0")
        if power > 0:
            _check_follow(work, weight, power, own)


def _check_follow(work: Work, weights: np.ndarray, power: float, own: np.ndarray) -> None:
    """Refuse weights that do not follow from a label power and the party's own numbers of records."""
    rarest = config(work.message.content, "task", {RAREST: float})[RAREST]
    offset, has_noise = work.settings.client.label_offset, work.settings.privacy.mechanism is not None
    with np.errstate(all="ignore"):
        n = (rarest + offset) * weights ** (-1 / power) - offset
    factor, slack = OFF_BY, NOISE if has_noise else 1.0
    if _knows_counts(work):
        factor, slack = 1.0, 0.01
    if not ((n >= own / factor - slack) & (n <= own * factor + slack)).all():
        raise BadMessage("sends label weights that do not follow from this party's own numbers of records")


def _knows_counts(work: Work) -> bool:
    """Whether the server's n of a label that this party alone has is the party's own."""
    return work.settings.collection.by == "sums"


def _check_mean(work: Work) -> None:
    """If parties get the mean set size only, all get the same."""
    mean, told = config(work.message.content, "task", {MEAN_SHARE: float})[MEAN_SHARE], work.method.told
    if told is None or (told.shares != mean).any():
        raise BadMessage("sends this party another mean set size than all parties get")


def own_counts(work: Work) -> np.ndarray:
    """Return how many different records of each label the party trains on."""
    return record_counts(work.records, work.federation.labels)


def _label_count(work: Work) -> int:
    count = config(work.message.content, "task", {"label-count": int})["label-count"]
    work.limits.check("labels", count)
    return int(count)
