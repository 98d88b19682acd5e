"""At a party: which settings a search may try in one run (docs/tuning.md).

A run keeps the settings that it began with. Only a run that was a search from its first message may change some of
them, to values of this list, and only a few times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedalc.config.experiment import flat
from fedalc.deployment.flower.wire import BadMessage

MAY_CHANGE: Mapping[str, tuple[object, ...] | None] = {
    "method": ("fedalc-exact", "fedalc-oneshot"),
    "client.loss": ("square", "squared-hinge", "logistic"),
    "client.label_power": None,
    "encoder.name": ("linear", "random-features"),
    "encoder.constant": (0.0, 1.0),
    "encoder.dim": None,
}
"""What a search chooses that parties see. None: any value that the settings and the party's limits allow."""


def check_trial(began: Any, now: Mapping[str, Any]) -> None:
    """Refuse settings that no search of this run tries. `began`: those of its first message."""
    if not isinstance(began, dict):
        raise BadMessage("the settings of the search are not a table")
    known, tried = flat(began), flat(now)
    for name in sorted(known.keys() | tried.keys()):
        if name not in MAY_CHANGE and (name not in known or name not in tried or known[name] != tried[name]):
            raise BadMessage(f"a search that changes {name[:60]}: it may choose {', '.join(MAY_CHANGE)}")
    for name, values in MAY_CHANGE.items():
        if values is not None and tried.get(name) not in values:
            raise BadMessage(
                f"a search with {name} = {tried.get(name)!r:.40}: it may try {', '.join(map(str, values))}"
            )
