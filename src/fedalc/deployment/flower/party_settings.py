"""At a party with --require-secure-sums: one set of settings, and the same records, for all runs.

The server chooses the settings, and some act on one party alone: just below the largest number of records, another
`client.batch_size` changes the part of the largest party only, so that two runs differ by that. Such a party therefore
remembers the settings of its secure sums over all runs, and refuses others. Runs before and after a record was added
differ by that record, so it also refuses to go on with other records; and it refuses random draws, with which the
rounds of a run add up different records at the same θ. A party that does not insist on secure sums has nothing to gain:
a server that cheats asks it without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import Context

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.bucket_sums import Counting
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.party import Party
from fedalc.deployment.flower.party_memory import fingerprint, remembered
from fedalc.deployment.flower.wire import SEARCH, BadMessage, read_json
from fedalc.labels.collection.buckets import FEWEST_BUCKETS

# In place of a run's id.
_ALL_RUNS, _TRIALS, _POWERS = "_settings", "_trials", "_powers"


def insists(context: Context) -> bool:
    return bool(context.node_config.get("require-secure-sums"))


def check_strictly(context: Context, settings: Experiment, limits: Limits) -> None:
    """Refuse to cut changes unless the party allows it: whoever has the longest one is the first to be cut. The same
    for random draws."""
    if not insists(context):
        return
    limits.check("secure_sums.norm", settings.secure_sums.norm)
    if settings.collection.by == "psi" and settings.client.loss != "hinge":
        raise BadMessage(
            "has a loss over set sizes with --collection psi: the server alone says what they are. This party answers "
            "it with --collection sums (--require-secure-sums)"
        )
    if settings.privacy.covers_records:
        return
    client = settings.client
    draws = {
        "client.sample": client.sample < 1,
        "client.negatives": client.negatives is not None,
        "encoder.dropout": settings.encoder.dropout > 0,
        "images.augment": settings.encoder.is_image and settings.images.augment != "off",
    }
    if any(draws.values()) and not limits.largest("draws"):
        name = next(name for name, draw in draws.items() if draw)
        raise BadMessage(
            f"draws at random ({name}): many rounds at one θ show single records. To allow it, start this party with "
            "--allow draws=1"
        )


def check_same_records(context: Context, party: Party, limits: Limits, what: str = "features") -> None:
    """Refuse more than a number of different sets of records (`--allow sum_records=…`). `what`: what of the records is
    summed."""
    if insists(context):
        why = "would add up other records of this party than an earlier run: both together show what changed"
        _check_known(context, f"_records-{what}", party.fingerprint, limits, "sum_records", why)


def check_same_share(context: Context, share: float, limits: Limits) -> None:
    """Refuse more than a number of different shares of held-out records (`--allow held_out_shares=…`), before the party
    says how many of each label it holds out: of two shares the difference is about few records."""
    if insists(context) and share:
        why = f"holds out a share of {share:g} of the records, and an earlier run another one: together they show few"
        _check_known(context, "_shares", repr(share), limits, "held_out_shares", why)


def check_same_tables(
    context: Context, question: dict[str, Any], counting: Counting, names: Sequence[str], limits: Limits
) -> None:
    """Refuse more than a number of different sizes of tables (`--allow bucket_tables=…`): in small ones single records
    share their buckets, which changes what their parties add up. Other settings, and other parties (`names`), have
    sizes of their own, since the size follows from both."""
    if insists(context):
        tables = counting.tables
        if tables.tables and tables.buckets < FEWEST_BUCKETS:  # a full bucket is refused by those with a record in it
            raise BadMessage(f"counts in tables of {tables.buckets} buckets; at least {FEWEST_BUCKETS} are usual")
        about = fingerprint(_told(question, "settings").encode(), *(name.encode() for name in names))
        size = f"{tables.tables} × {tables.buckets}"
        why = f"counts in {size} buckets, and an earlier run in others: set sizes of single records may differ"
        where = f"_tables-{counting.what}-{counting.on_held_out}-{about}"
        _check_known(context, where, size, limits, "bucket_tables", why)


def check_same_labels(context: Context, party: Party, columns: list[int], out: np.ndarray, limits: Limits) -> None:
    """Refuse more than a number of different choices (`--allow held_out_labels=…`) among labels whose records are all
    held out (`out`): no question needs them, and with one of them and without it sums differ by its records."""
    if insists(context):
        labels = party.holding.split.labels[:, columns]
        only = (labels[~out].getnnz(axis=0) == 0) & (labels[out].getnnz(axis=0) > 0)
        asked = sorted(party.holding.names[column].encode() for column, one in zip(columns, only, strict=True) if one)
        why = "asks about other labels of which all records are held out than an earlier run"
        _check_known(context, "_held-out-labels", fingerprint(*asked), limits, "held_out_labels", why)


def _check_known(context: Context, where: str, key: str, limits: Limits, bound: str, why: str) -> None:
    with remembered(context, where) as known:
        if key not in known:
            if 0 < len(known) >= limits.largest(bound):
                raise BadMessage(f"{why}. To allow it, start this party with --allow {bound}={len(known) + 1}")
            known[key] = ""


def check_same_settings(context: Context, question: dict[str, Any], limits: Limits, power: float | None = None) -> None:
    """Refuse more than a number of different settings (`--allow sum_settings=…`), and of label powers that the answer
    depends on (`power`). Call it when an answer is due: a run that was refused before does not count. Of a search those
    that it began with count, and its trials as trials over all runs: otherwise every run could call itself a search."""
    if not insists(context):
        return
    power_said = [] if power is None else [repr(power)]
    with remembered(context, _POWERS) as powers:
        limits.check("label_powers", max(len({*power_said, *powers}), 1), "label powers over all runs")
    _check_settings(context, question, limits)
    with remembered(context, _POWERS) as powers:
        powers |= dict.fromkeys(power_said, "")


def _check_settings(context: Context, question: dict[str, Any], limits: Limits) -> None:
    trial, told = _told(question, "settings"), _told(question, SEARCH if question[SEARCH] else "settings")
    with remembered(context, _TRIALS) as tried:
        if question[SEARCH] and (key := fingerprint(trial.encode())) not in tried:
            # One of them is what the search began with.
            limits.check("trials", max(len(tried), 1), "trials over all runs")
            tried[key] = ""
    with remembered(context, _ALL_RUNS) as known:
        if (key := fingerprint(told.encode())) in known:
            return
        if 0 < len(known) >= limits.largest("sum_settings"):
            differ = min((_differences(json.loads(one), json.loads(told)) for one in known.values()), key=len)
            more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
            raise BadMessage(
                f"has other settings than an earlier run ({differ[0]}{more}). To allow it, start this party with "
                f"--allow sum_settings={len(known) + 1}: runs that differ can together show one party's part"
            )
        known[key] = told


def _told(question: dict[str, Any], which: str) -> str:
    settings = read_json(question[which], "the settings")
    return json.dumps(dict(_flat(settings)) | {"share held out": question["share"]}, sort_keys=True)


def _flat(table: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(table, dict):
        yield name, table
        return
    for key, value in table.items():
        yield from _flat(value, f"{name}.{key}" if name else key)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = sorted({*before, *now})
    return [
        f"{name} = {_said(now, name)}, {_said(before, name)} before"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _said(settings: dict[str, Any], name: str) -> str:
    return json.dumps(settings[name]) if name in settings else "not given"
