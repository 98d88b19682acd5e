"""Says in words what a model is chosen by, before training, and why it was chosen, after it: for the log, result.json
and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedalc.config.schema import SelectionSettings

AT_PARTIES = "the records that parties keep out of training"


def held_out(count: int | None) -> str:
    """Name the records that decide.

    >>> held_out(1), held_out(4880), held_out(None)
    ('1 held-out record', '4,880 held-out records', 'held-out records')
    """
    return "held-out records" if count is None else f"{count:,} held-out record{'s' * (count != 1)}"


def goes_by(settings: SelectionSettings, rounds: int, records: str, refits: bool) -> str:
    """Say what a choice among rounds goes by, before it is made."""
    if settings.keep == "last" or rounds == 1:
        return f"measuring on {records}; no round is chosen by it"
    patience = "" if settings.patience is None else f", until {settings.patience} evaluations bring no gain"
    then = ", then training again on all of train" if refits else ""
    every = "every round" if settings.every == 1 else f"every {settings.every} rounds"
    return f"choosing the round by {settings.metric} on {records}, {every}{patience}{then}"


def why_round(
    settings: SelectionSettings,
    chosen: Mapping[str, Any] | None,
    rounds: tuple[int, int],
    records: str,
    refitted: bool,
    metric: str | None = None,
) -> str:
    """Say why a round was kept. `rounds`: how many were run to choose from, and how many were planned. `metric`: what
    decided, if not `selection.metric`."""
    ran, planned = rounds
    if chosen is None:
        return (
            "trained in one round: there was no round to choose"
            if ran == 1
            else f"kept the last round, {ran}: there is no validation data"
        )
    value = f"{metric or settings.metric} {chosen['value']:.2f} on {records}"
    again = "; then trained on all of train" if refitted else ""
    if planned == 1:
        return f"trained in one round, so there was no round to choose; {value}{again}"
    again += f" for {counted(chosen['round'])}" if refitted else ""
    if settings.keep == "last":
        return f"kept the last round, {chosen['round']}, as selection.keep says; {value}{again}"
    early = "" if ran == planned else f", stopped after {settings.patience} evaluations without gain"
    return f"kept round {chosen['round']} of {ran}{early}: best {value}{again}"


def why_settings(tuning: Mapping[str, Any], rounds: int) -> str:
    """Say why a search chose its settings. `tuning`: as in result.json."""
    chosen, tried = tuning["chosen"], len(tuning["tried"])
    client, encoder = chosen["client"], chosen["encoder"]
    tree = [chosen["method"]] if chosen.get("method") == "fedalc-tree" else []
    parts = [*tree, f"{client['loss']} loss", f"penalty {chosen['server']['ridge']:g}", f"features {encoder['name']}"]
    if client.get("label_power"):
        parts.append(f"label power {client['label_power']:g}")
    parts.append(f"D = {encoder['dim']}")
    value = f"{tuning['metric']} {tuning['value']:.2f} of {tried} settings on {held_out(tuning.get('held_out'))}"
    return f"chose {', '.join(parts)}: best {value}; then trained on all of train for {counted(rounds)}"


def why_candidate(metric: str, choice: str, chosen: Mapping[str, Any] | None, records: str, refitted: bool) -> str:
    """Say why an oracle has its penalty or its number of epochs."""
    if chosen is None or chosen.get(choice) is None or "value" not in chosen:
        return "trained on all of train: there was nothing to choose"
    tried = f"of {len(chosen.get('tried') or ())} tried" + (f", the {chosen['edge']}" if chosen.get("edge") else "")
    again = "; then trained on all of train" if refitted else ""
    return f"chose {choice} {chosen[choice]:g} {tried}: best {metric} {chosen['value']:.2f} on {records}{again}"


def counted(rounds: int) -> str:
    return f"{rounds} round{'s' * (rounds != 1)}"
