"""Rules that combine the parties' changes of θ into one (`server.aggregation`): the mean and its robust alternatives.

One file per rule. docs/robust.md says when to use which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import solves_one_objective
from fedalc.engines.aggregation.base import Aggregation, cut_like
from fedalc.engines.aggregation.clip import Clip
from fedalc.engines.aggregation.coordinatewise import Median, TrimmedMean, number_of
from fedalc.engines.aggregation.krum import MultiKrum, krum_withstands
from fedalc.engines.aggregation.lengths import Lengths
from fedalc.engines.aggregation.mean import Mean

RULES: dict[str, type[Aggregation]] = {
    "mean": Mean,
    "clip": Clip,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "multi-krum": MultiKrum,
}


def begin(theta: Sequence[Tensor], weights: Mapping[int, float], lengths: Lengths, settings: Experiment) -> Aggregation:
    """Return the rule for one round. `weights`: P_k of the parties that take part."""
    return RULES[settings.server.aggregation](theta, weights, lengths, settings)


def described(settings: Experiment, parties: int) -> str:
    """Return a sentence for the log: what the rule does with this number of parties."""
    server = settings.server
    text = f"server.aggregation {server.aggregation}: "
    if settings.secure_sums.on:
        return text + "a lying party is not held back, because the server sees sums only (secure_sums)"
    if server.aggregation == "mean":
        solves = solves_one_objective(settings.method, server.optimizer)
        why = " (a method that solves one objective needs the plain mean)" if solves else ""
        return text + f"a lying party is held back only where its answer is of absurd length{why}"
    if server.aggregation == "clip":
        few = "; one party alone has no median, so nothing is cut" if parties == 1 else ""
        return text + f"changes are cut to the median length of the {parties} parties'{few}"
    if server.aggregation == "median":
        left_out = (parties - 1) // 2
    elif server.aggregation == "trimmed-mean":
        left_out = number_of(server.trim, parties)
    else:
        left_out = krum_withstands(server.byzantine, parties)
    return text + f"withstands {left_out} lying of {parties} parties" + ("" if left_out else ", so it is a plain mean")


__all__ = ["RULES", "Aggregation", "Lengths", "begin", "cut_like", "described"]
