"""The methods. Each is one file, reads like its paper's pseudo-code and declares its facts in its class.

Their names are in `fedalc.core.registry`; `register_method` adds one from outside the package.
"""

from __future__ import annotations

from typing import Any

from fedalc.config.experiment import Experiment
from fedalc.config.facts import check_declared
from fedalc.core.registry import METHODS, registering
from fedalc.errors import ConfigError
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.methods.base import Method, Told


def make_method(
    settings: Experiment, label_count: int, knowledge: LabelKnowledge | None = None, told: Told | None = None
) -> Method:
    """Build the method that these settings name. `knowledge` is the server's, for methods that use labels."""
    method: Method = METHODS[settings.method](settings, label_count, knowledge, told)
    return method


def check_method_class(method: Any) -> type[Method]:
    """Refuse what is not a method that can be built."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"{method!r:.60} is not a method: register a class that extends fedalc.Method")
    if missing := sorted(getattr(method, "__abstractmethods__", ())):
        raise ConfigError(f"{method.__name__} lacks {', '.join(missing)}, which every method needs")
    check_declared(method)
    return method


register_method = registering(METHODS)

__all__ = ["METHODS", "Method", "Told", "check_method_class", "make_method", "register_method"]
