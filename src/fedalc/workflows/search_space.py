"""What a sweep tries: lists of values, and ranges to draw from."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.core.safe_parsing import Unreadable, parse_toml
from fedalc.core.seeds import numpy_generator
from fedalc.errors import ConfigError, either

Point = dict[str, Any]  # setting: value

MOST_POINTS = 10_000
LONGEST_NAME = 120
DIGITS = 4  # of a value drawn at random: enough, and short in the name of a folder
#: The same for all trials: they could not be compared otherwise, or the choice would be by luck.
SAME_FOR_ALL = ("name", "dataset", "preset", "seed", "selection.metric", "selection.validation", "selection.refit")
_DRAWS = either("--random 20", "random=20")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, drawn evenly, or evenly in their logarithm. `whole`: only whole numbers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, random: np.random.Generator) -> float | int:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if self.whole and not self.log:
            return int(random.integers(int(self.low), int(self.high) + 1))
        value = float(random.uniform(low, high))
        value = math.exp(value) if self.log else value
        value = min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)
        return round(value) if self.whole else value


@dataclass(frozen=True)
class Space:
    """Values and ranges by the name of a setting."""

    values: Mapping[str, tuple[Any, ...]]
    ranges: Mapping[str, Range]

    @classmethod
    def of(cls, grid: Mapping[str, Any], ranges: Mapping[str, Any]) -> Space:
        """Check what a user gave."""
        for name in (*grid, *ranges):
            if name in SAME_FOR_ALL:
                raise ConfigError("a sweep needs the same for all trials", name)
        if both := set(grid) & set(ranges):
            raise ConfigError("give values or a range, not both", min(both))
        if not grid and not ranges:
            raise ConfigError(
                f"nothing to try: give values ({either('--grid NAME=A,B,C', 'grid={NAME: [A, B, C]}')}) or ranges "
                f"({either('--range NAME=LOW:HIGH', 'ranges={NAME: (LOW, HIGH)}')})"
            )
        values = {name: _values(name, given) for name, given in grid.items()}
        return cls(values, {name: _range(name, given) for name, given in ranges.items()})

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.values, *self.ranges)

    def points(self, random: int | None, seed: int) -> list[Point]:
        """Return all combinations, or `random` draws. More draws continue the same sequence."""
        if random is None:
            if self.ranges:
                raise ConfigError(f"ranges need a number of draws ({_DRAWS})", next(iter(self.ranges)))
            if math.prod(len(values) for values in self.values.values()) > MOST_POINTS:
                raise ConfigError(f"the grid has more than {MOST_POINTS:,} combinations; try some of them: {_DRAWS}")
            return [dict(zip(self.values, choice, strict=True)) for choice in itertools.product(*self.values.values())]
        if isinstance(random, bool) or not isinstance(random, int) or not 1 <= random <= MOST_POINTS:
            raise ConfigError(f"expected a whole number from 1 to {MOST_POINTS:,}, found {random!r:.60}", "random")
        points: dict[str, Point] = {}
        for number in range(random):
            generator = numpy_generator(seed, "sweep", number)
            point: Point = {name: values[int(generator.integers(len(values)))] for name, values in self.values.items()}
            point |= {name: drawn.draw(generator) for name, drawn in self.ranges.items()}
            points.setdefault(point_name(point), point)  # the same again would tell nothing
        return list(points.values())


def point_name(point: Mapping[str, Any]) -> str:
    """Return a name for a trial's folder that says its values.

    >>> point_name({"regularizer.lambda": 10, "server.optimizer": "adam"})
    'regularizer.lambda=10,server.optimizer=adam'
    """
    plain = ",".join(f"{name}={shown(value)}" for name, value in point.items())
    name = re.sub(r"[^\w.,=+-]+", "_", plain)
    if name == plain and len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def shown(value: Any) -> str:
    """Return a value as in --set."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)


def parse_grid(text: str) -> tuple[str, list[Any]]:
    """Parse NAME=A,B,C. A value that is a list stands in brackets.

    >>> parse_grid("server.optimizer=adam,sgd"), parse_grid("encoder.hidden=[256],[512, 256]")
    (('server.optimizer', ['adam', 'sgd']), ('encoder.hidden', [[256], [512, 256]]))
    """
    name, equals, rest = text.partition("=")
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", rest)]
    if not equals or not name.strip() or not all(parts):
        raise ConfigError(f"expected NAME=A,B,C, found {text!r:.60}", "--grid")
    return name.strip(), [_parsed(part) for part in parts]


def parse_range(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"expected NAME=LOW:HIGH or NAME=LOW:HIGH:log, found {text!r:.60}", "--range")
    return name.strip(), rest.strip()


def _parsed(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except Unreadable:  # a bare word is a string
        return text


def _values(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or not len(given):
        raise ConfigError(f"expected a list of values to try, found {given!r:.60}", name)
    values = [value.item() if isinstance(value, np.generic) else value for value in given]
    return tuple({shown(value): value for value in values}.values())


def _range(name: str, given: Any) -> Range:
    parts = given.split(":") if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
    try:
        low, high = float(parts[0]), float(parts[1])
        log = [str(part).strip() for part in parts[2:]] == ["log"]
        if not (math.isfinite(low) and math.isfinite(high)) or len(parts) > 2 + log:
            raise ValueError
    except (IndexError, TypeError, ValueError):
        raise ConfigError(f"expected LOW:HIGH or LOW:HIGH:log, found {given!r:.60}", name) from None
    if low >= high or (log and low <= 0):
        raise ConfigError(
            f"the first number must be smaller than the second, and above 0 for log; found {given!r:.60}", name
        )
    return Range(low, high, log, _is_whole(name))


def _is_whole(name: str) -> bool:
    """Return whether a setting takes whole numbers only."""
    section, _, key = name.rpartition(".")
    fields: Any = Experiment.model_fields
    if section:
        if section not in fields or not hasattr(fields[section].annotation, "model_json_schema"):
            return False  # refused later, with near names
        schema = fields[section].annotation.model_json_schema(by_alias=True)
    else:
        schema = Experiment.model_json_schema(by_alias=True)
    entry = schema["properties"].get(key, {})
    kinds = {choice.get("type") for choice in entry.get("anyOf", [entry])} - {"null"}
    return kinds == {"integer"}
