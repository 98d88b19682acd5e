"""The base of every section of the settings, and the types of values that sections share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

NONE = "none"  # TOML has no null

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """A section of the settings. Unknown keys are errors; values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: None if isinstance(value, str) and value == NONE else value for key, value in values.items()}
