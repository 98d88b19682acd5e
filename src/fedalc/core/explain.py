"""Turn pydantic's complaint about a setting into an error that says the field, what was found and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedalc.errors import ConfigError

Section = TypeVar("Section", bound=BaseModel)


def checked_section(kind: type[Section], given: Any, name: str) -> Section:
    """Return a section of the settings from what a caller gave: one, a dict of settings, or None for the defaults."""
    if isinstance(given, kind):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"expected a dict of settings, or fedalc.data.{kind.__name__}; found {given!r:.60}", name)
    try:
        return kind.model_validate(dict(given or {}))
    except ValidationError as error:
        raise explained(error, kind, section=name) from None


def explained(
    error: ValidationError, model: type[BaseModel], file: Path | None = None, section: str | None = None
) -> ConfigError:
    """Return the error for the first complaint. `file`: where settings come from. `section`: where `model` stands."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]][:2]  # unions add the name of the branch that failed
    field = ".".join([section, *path] if section else path) or None
    where = f"{file}: " if file else ""
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(path[-1], _known_keys(model, path[:-1]), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        head, dot, key = path[-1].partition(".")
        if dot and head in _sections_with(model, key):
            hint = f" in this form; in Python, {head}={{{key!r}: …}}"
        sections = _sections_with(model, path[0]) if not close and len(path) == 1 else []
        if sections:
            names = " and ".join(f"{section}.{path[0]}" for section in sections)
            hint = f", but {names}; in Python, {sections[0]}={{{path[0]!r}: …}}"
        return ConfigError(f"{where}there is no such setting{hint}", field)
    if first["type"] == "value_error":  # one of ours, which says what was found
        return ConfigError(f"{where}{first['ctx']['error']}", field)
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return ConfigError(
            f"{where}expected a section, in Python a dict of settings; found {first['input']!r:.100}", field
        )
    said = first["msg"].replace("Input should", "should", 1).replace("String should", "should", 1)
    return ConfigError(f"{where}{said} (found {first['input']!r:.100})", field)


def _sections_with(model: type[BaseModel], key: str) -> list[str]:
    """Return the sections that have a setting of this name."""
    sections = {name: info.annotation for name, info in model.model_fields.items()}
    return [name for name, kind in sections.items() if key in getattr(kind, "model_fields", {})]


def _known_keys(model: Any, sections: list[str]) -> list[str]:
    for section in sections:
        model = model.model_fields[section].annotation
    return [info.alias or key for key, info in model.model_fields.items()]
