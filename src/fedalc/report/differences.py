"""The settings that differ between the rows of a comparison besides the method, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedalc.report.summary import Row, text

TITLE = "Settings that differ besides the method"
MOST = "all others"
#: The most important settings: named even where all rows share them.
ASKED_FIRST = [
    "encoder.name",
    "encoder.dim",
    "encoder.hidden",
    "encoder.features",
    "rounds",
    "client.loss",
    "server.optimizer",
    "server.weights",
    "clients",
    "selection.metric",
]


@dataclass(frozen=True)
class Differences:
    """`lines`: methods and their settings. `same`: the most important settings that all rows share."""

    lines: tuple[tuple[str, str], ...]
    same: str

    def as_text(self) -> list[str]:
        """Return lines for the terminal and for Markdown."""
        if not self.lines:
            return [f"{TITLE}: none. The same for all: {self.same}"]
        return [f"{TITLE} (where they apply):", *(f"- {who}: {what}" for who, what in self.lines), *self._same_line]

    @property
    def _same_line(self) -> list[str]:
        return [f"The same for all: {self.same}"] if self.same else []


def differences(rows: Sequence[Row]) -> Differences | None:
    """Return the acting settings that differ between rows, or None if there is nothing to compare.

    A setting that acts on one row only is part of that method, not a difference.
    """
    known = [row for row in rows if _settings(row)]
    if len(known) < 2:
        return None
    names = list(dict.fromkeys(name for row in known for name in _settings(row)))
    values = {name: [_settings(row).get(name, _ABSENT) for row in known] for name in names}
    differing = {name: found for name, found in values.items() if len(_counted(found)) > 1}
    usual = {name: _usual(found) for name, found in differing.items()}
    own = [
        "; ".join(
            f"{name} {_shown(found[at])}"
            for name, found in differing.items()
            if found[at] is not _ABSENT and (usual[name] is None or repr(found[at]) != usual[name])
        )
        for at in range(len(known))
    ]
    lines: dict[str, list[str]] = {}
    for row, what in zip(known, own, strict=True):
        if what:
            lines.setdefault(what, []).append(_name(row, rows))
    said = [(", ".join(who), what) for what, who in lines.items()]
    common = "; ".join(
        f"{name} {_shown(next(value for value in found if repr(value) == usual[name]))}"
        for name, found in differing.items()
        if usual[name] is not None
    )
    if common:
        said.append((MOST, common))
    if len(known) < len(rows):
        said.append((", ".join(_name(row, rows) for row in rows if not _settings(row)), "settings not recorded"))
    same = "; ".join(
        f"{name} {_shown(next(v for v in values[name] if v is not _ABSENT))}"
        for name in ASKED_FIRST
        if name in values and name not in differing
    )
    return Differences(tuple(said), same)


_ABSENT = object()


def _settings(row: Row) -> Mapping[str, Any]:
    """Return the settings of the row's first seed, as `fedalc.config.unused.acting` gives them."""
    found = row.results[0].get("settings")
    return found if isinstance(found, Mapping) else {}


def _counted(found: Sequence[Any]) -> Counter[str]:
    return Counter(repr(value) for value in found if value is not _ABSENT)


def _usual(found: Sequence[Any]) -> str | None:
    """Return the value that more rows share than any other value, if any."""
    (first, times), *others = _counted(found).most_common(2)
    return first if times > 1 and all(times > other for _, other in others) else None


def _name(row: Row, rows: Sequence[Row]) -> str:
    """Return the method, with dataset and preset if they vary."""
    more = [getattr(row, key) for key in ("dataset", "preset") if len({getattr(other, key) for other in rows}) > 1]
    return text(" ".join([row.method, *(f"({word})" for word in more)]))


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return text(" ".join(map(_shown, value)) if isinstance(value, list | tuple) else value)
