"""At a party with --require-secure-sums: one set of settings for all runs.

The server chooses the settings, and some act on one party alone: just below the largest number of records, another
`client.batch_size` changes the part of the largest party only, so that two runs differ by that. Such a party therefore
remembers the settings of its secure sums over all runs, and refuses others. A party that does not insist on secure sums
has nothing to gain: a server that cheats asks it without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flwr.app import Context

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.party_memory import fingerprint, remembered
from fedalc.deployment.flower.wire import SEARCH, BadMessage, read_json

_ALL_RUNS, _TRIALS = "_settings", "_trials"  # in place of a run's id


def insists(context: Context) -> bool:
    return bool(context.node_config.get("require-secure-sums"))


def check_norm(context: Context, settings: Experiment, limits: Limits) -> None:
    """Refuse to cut changes unless the party allows it: whoever has the longest one is the first to be cut."""
    if insists(context):
        limits.check("secure_sums.norm", settings.secure_sums.norm)


def check_same_settings(context: Context, question: dict[str, Any], limits: Limits) -> None:
    """Refuse more than a number of different settings (`--allow sum_settings=…`). Call it when an answer is due: a run
    that was refused before does not count. Of a search those that it began with count, and its trials as trials over
    all runs: otherwise every run could call itself a search."""
    if not insists(context):
        return
    trial, told = _told(question, "settings"), _told(question, SEARCH if question[SEARCH] else "settings")
    with remembered(context, _ALL_RUNS) as known:
        powers = {_power(one) for one in known.values()}
    with remembered(context, _TRIALS) as tried:
        limits.check(
            "label_powers", len({_power(trial), *tried.values(), *powers} - {""}), "label powers over all runs"
        )
        if question[SEARCH] and (key := fingerprint(trial.encode())) not in tried:
            # One of them is what the search began with.
            limits.check("trials", max(len(tried), 1), "trials over all runs")
            tried[key] = _power(trial)
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


def _power(settings: str) -> str:
    return str(json.loads(settings).get("client.label_power"))


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
