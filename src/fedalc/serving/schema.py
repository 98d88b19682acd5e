"""The requests and answers of the service, and their OpenAPI description."""

from __future__ import annotations

import difflib
import re
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticCustomError

from fedalc.serving.limits import Limits

MOST_LABELS = 1000
KINDS = ("texts", "features", "sparse", "pictures")


def _as_text(threshold: Any) -> Any:
    """A probability may be a number. What a text means is checked with the other options (`Answer`)."""
    if isinstance(threshold, float | int) and not isinstance(threshold, bool):
        return repr(threshold)
    if threshold is None or isinstance(threshold, str):
        return threshold
    raise PydanticCustomError("threshold", "expected f1, precision=0.9 or a probability between 0 and 1")


Threshold = Annotated[
    str | None,
    BeforeValidator(_as_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]}),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SparseRecord(_Strict):
    """The features of a record that are not 0: their numbers, counted from 0, and their values."""

    indices: list[int]
    values: list[float]


class PredictRequest(_Strict):
    """Records of one kind: give exactly one of texts, features, sparse and pictures, as the model takes it."""

    texts: list[str] | None = Field(None, description="raw texts, for a model that was trained on texts")
    features: list[list[float]] | None = Field(None, description="a list of all features for each record")
    sparse: list[SparseRecord] | None = Field(None, description="the features that are not 0, for each record")
    pictures: list[str] | None = Field(None, description="picture files (JPEG, PNG, WebP, …) in base64")
    top: int | None = Field(
        None, ge=1, le=MOST_LABELS, description="labels per record (default: 5, or with threshold all that reach it)"
    )
    threshold: Threshold = Field(
        None, description='the labels that a record has: "f1", "precision=0.9", or a probability such as 0.5'
    )
    abstain_below: float | None = Field(
        None, ge=0, le=1, description="no label for a record whose best probability is smaller"
    )
    probabilities: bool = Field(False, description="answer with probabilities too, if the model has them")


class LabelScore(BaseModel):
    label: int = Field(description="the label's number")
    name: str
    score: float = Field(description="ranks the labels of a record; not a probability")
    probability: float | None = Field(None, description="if asked for; calibrated on held-out records")


class Prediction(BaseModel):
    instance: int = Field(description="the record's place in the request, from 0")
    labels: list[LabelScore] = Field(description="best first")
    abstained: bool | None = Field(None, description="with abstain_below: whether its best probability is smaller")


class PredictAnswer(BaseModel):
    predictions: list[Prediction]


class Label(BaseModel):
    label: int
    name: str
    predicted: bool = Field(description="false: it had no training data and is never predicted")


class LabelsAnswer(BaseModel):
    labels: list[Label]


class HealthAnswer(BaseModel):
    status: str = Field(description="ok")
    waiting: int = Field(description="requests that wait for the model")
    answered: int = Field(description="predict requests answered since the start")


class Refusal(BaseModel):
    error: str = Field(description="what was wrong, and where")


EXPECTED = {
    "list_type": "a list, [ … ]",
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "model_type": "an object, { … }",
}
"""What pydantic's kinds of errors mean, in our words."""
BOUNDS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}


def problem_in(error: ValidationError, body: bytes) -> str:
    """Return one line: where the request is wrong, and how."""
    problems = error.errors(include_url=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return f"the request is not JSON: {_not_json(first['ctx']['error'], body)}"
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where + ': ' if where else ''}{_in_words(first)}{more}"


def _in_words(problem: Any) -> str:
    kind, given = problem["type"], problem.get("input")
    if kind == "missing":
        return "this field is missing"
    if kind == "extra_forbidden":
        known = SparseRecord.model_fields if len(problem["loc"]) > 1 else PredictRequest.model_fields
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        return "there is no such field" + (
            f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
        )
    found = f", found {given!r:.40}" if isinstance(given, str | int | float) else ""
    if kind in BOUNDS:
        words, bound = BOUNDS[kind]
        return f"expected {words} {problem['ctx'][bound]:g}{found}"
    return f"expected {EXPECTED[kind]}{found}" if kind in EXPECTED else f"{problem['msg']}{found}"


def _not_json(said: str, body: bytes) -> str:
    """Return why a body is not JSON. `said`: the parser's message, which ends with the place."""
    if not body.strip():
        return "it is empty"
    if said.startswith("EOF"):
        return "it ends too early"
    if said.startswith("recursion"):
        return "it is nested too deeply"
    line, column = (int(number) for number in re.findall(r"\d+", said)[-2:])
    rest = body.split(b"\n")[line - 1][max(column - 1, 0) :]
    return f"line {line}, column {column}, at {rest[:20].decode(errors='replace')!r}"


def openapi(title: str, takes: str, limits: Limits, token: bool) -> dict[str, Any]:
    """Return the description of the service. `takes`: what the model takes, in words."""
    answers = (PredictRequest, PredictAnswer, LabelsAnswer, HealthAnswer, Refusal)
    names, definitions = models_json_schema(
        [(model, "validation") for model in answers], ref_template="#/components/schemas/{model}"
    )

    def content(model: type[BaseModel], description: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": names[model, "validation"]}}}

    def operation(summary: str, answer: type[BaseModel], **rest: Any) -> dict[str, Any]:
        return {"summary": summary, "responses": {"200": content(answer, "done")}, **rest}

    refused = {
        "400": "not JSON",
        "401": "no token, or a wrong one",
        "408": "the request took too long to arrive",
        "413": f"more than {limits.body} bytes or {limits.records} records",
        "415": "the content type is not application/json",
        "422": "a value that the model cannot take; the message says which",
        "429": f"{limits.queue} requests are waiting already",
        "503": f"no answer within {limits.timeout:g} seconds",
    }
    predict = operation("Predict the best labels of records", PredictAnswer)
    predict["requestBody"] = {**content(PredictRequest, takes), "required": True}
    predict["responses"] |= {code: content(Refusal, why) for code, why in refused.items()}
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version("fedalc"), "description": takes},
        "paths": {
            "/predict": {"post": predict},
            "/labels": {"get": operation("All labels, with their names", LabelsAnswer)},
            "/health": {"get": operation("Whether the service is up", HealthAnswer, security=[])},
        },
        "components": {"schemas": definitions["$defs"]},
    }
    if token:
        description["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"token": []}]
    return description
