"""Callbacks follow a training: each is one file with one class that extends `Callback`.

Register your own to select it by name: `@register_callback("my-tracker")`, or the entry point group `fedalc.callbacks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from fedalc.core.registry import CALLBACKS, registering
from fedalc.errors import ConfigError
from fedalc.training.callbacks.base import Callback, checked_callbacks, part_watcher
from fedalc.training.callbacks.history import HistoryWriter


def check_callback_class(item: Any) -> type[Callback]:
    """Refuse what cannot be built by name: it must extend Callback and need no arguments."""
    if not (isinstance(item, type) and issubclass(item, Callback)):
        raise ConfigError(f"{item!r:.60} cannot be registered as a callback: it must be a class that extends Callback")
    try:
        inspect.signature(item).bind()
    except TypeError as error:
        raise ConfigError(
            f"{item.__qualname__} cannot be registered as a callback: it must be built without arguments ({error})"
        ) from None
    return item


register_callback = registering(CALLBACKS)


def make_callback(name: str, option: str = "name") -> Callback:
    """Build a registered callback. An unknown name is an error that lists the known ones."""
    if problem := CALLBACKS.problem(name):
        raise ConfigError(problem, option)
    callback: Callback = CALLBACKS[name]()
    return callback


def make_callbacks(callbacks: Sequence[str] | None, trackers: Sequence[str] | None) -> list[Callback]:
    """Build what the options --callback and --track name."""
    named = [(name, "--callback") for name in callbacks or ()] + [(name, "--track") for name in trackers or ()]
    return [make_callback(name, option) for name, option in dict(named).items()]


__all__ = [
    "CALLBACKS",
    "Callback",
    "HistoryWriter",
    "checked_callbacks",
    "make_callback",
    "make_callbacks",
    "part_watcher",
    "register_callback",
]
