"""Read and validate the TOML files of `experiments/`. Errors name the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedalc.core.safe_parsing import Unreadable, parse_toml
from fedalc.errors import ConfigError

Read = TypeVar("Read", bound=BaseModel)


def read_toml(file: Path, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    try:
        return parse_toml(file.read_bytes(), parse_float)
    except (OSError, Unreadable) as error:
        raise ConfigError(f"{file}: not a readable TOML file: {error}") from None


def validated(kind: type[Read], values: Mapping[str, Any], file: Path) -> Read:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{file}: {first['msg']}", ".".join(map(str, first["loc"]))) from None
