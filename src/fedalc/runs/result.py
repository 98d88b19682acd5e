"""The schema of result.json: every field of a run's result, with its meaning and unit. docs/run-folder.md lists them.

A training fills a `Result`; `write_result` writes it. Readers get the file's fields as a mapping, checked against the
schema: a file of an older version may lack fields, and fields of a newer version are kept.
"""

from __future__ import annotations

import json
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from fedalc.core.atomic_files import write_text
from fedalc.core.safe_parsing import read_json_object
from fedalc.errors import FedalcError

NAME = "result.json"


class Result(BaseModel):
    """One finished run. Fields with a default stay empty (null) where they do not apply."""

    model_config = ConfigDict(strict=True, extra="allow")

    dataset: str
    generated: bool = False
    """Only in the file if true: the data is synthetic, in the shape of a public dataset."""
    method: str
    centralised: bool
    """Whether the method is an oracle, which sees all data in one place."""
    engine: str | None = None
    aggregation: str | None = None
    """The rule that combines the changes of parties (`server.aggregation`)."""
    processes: int
    """Processes that shared the work (torchrun)."""
    preset: str
    rounds: int
    """Rounds that the saved model was trained for."""
    seed: int
    metrics: dict[str, float]
    """On the test set, in percent. With real parties and no test data: "party P@1", … of the kept round, in percent, on
    the instances that parties keep out of training, or their mean score and loss. {} without data."""
    test_records: int | None = None
    """Only in the file if there is test data, as the next."""
    test_labels: int | None = None
    """Different labels that the test records have."""
    selection: dict[str, Any] | None = None
    """The best evaluation on validation data: its `round`, the `value` of `selection.metric`, and all `metrics`, in
    percent. Oracles add the chosen `penalty`, the candidates `tried` (each with `penalty`, `value`, `unconverged`),
    `edge` ("smallest" or "largest" if the best is an extreme of these, so that one beyond may be better), and
    `unconverged` (labels whose solver stopped before it converged). null without validation data."""
    kept: str | None = None
    """What the model was chosen by and why, in words."""
    tuning: dict[str, Any] | None = None
    """The search for settings: what was `tried` (each with loss, features, penalty, value, metrics and cost), what was
    `chosen`, the `metric`, and the `seconds`, `bytes_up` and `bytes_down` of the search. Only in the file after a
    search."""
    calibration: dict[str, Any] | None = None
    """Probabilities and thresholds of the model: the held-out `records` that they were fitted on and the
    `labels_with_own_threshold`; or why they were `left_out`. If parts of train were held out for them: the number of
    `parts`, and the `seconds`, `bytes_up` and `bytes_down` of training without each, which the totals below do not
    include."""
    verification: dict[str, Any] | None = None
    """Only in the file for the task verification, with test data: the number of `trials` (`genuine`, `others`,
    `strangers`), the `curves` against all, others and strangers as points [FAR, FRR] from 0 to 1, and the metrics that
    were `not_measured`, as there are too few trials."""
    collapse: dict[str, float] | None = None
    """Of the class embeddings: `mean_cosine` and `max_cosine` (-1 to 1) and `effective_rank` (dimensions)."""
    clients: int = 0
    users: int | None = None
    """Users, if each has clients of its own (`clients` other than "labels")."""
    parties: int | None = None
    """Parties of a deployed run (engine flower)."""
    labels: int
    labels_without_client: int
    """Labels without a training instance: the model never predicts them."""
    rounds_run: int
    """Rounds of all phases together."""
    seconds: float
    """Seconds of training in all phases, without evaluation."""
    seconds_per_round: float
    peak_memory_mb: float | None = None
    """Largest resident memory of a process, in MiB."""
    bytes_up: int
    """Bytes from clients to server in all phases, label collection and search included."""
    bytes_down: int
    """Bytes from server to clients in all phases, label collection and search included."""
    collection: dict[str, Any] | None = None
    """How labels were collected: hash algorithm, instance identity, digest length in bytes, messages, instances."""
    privacy: dict[str, Any] | None = None
    """Differential privacy: `mechanism`, `epsilon` spent, `delta`, noise and looks at the labels."""
    versions: dict[str, str]
    """Versions of Python and of the packages that made the result."""

    @field_validator("selection")
    @classmethod
    def _check_selection(cls, selection: dict[str, Any] | None) -> dict[str, Any] | None:
        if selection and not isinstance(selection.get("metrics", {}), dict):
            raise ValueError("`metrics` should be an object")
        return selection

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in the order of the file."""
        has_reason = self.kept is not None  # older versions gave none
        only_if_true = {"generated": self.generated, "kept": has_reason, "tuning": self.tuning is not None}
        only_if_true |= {name: getattr(self, name) is not None for name in ("test_records", "test_labels")}
        only_if_true["calibration"] = self.calibration is not None  # nor this
        only_if_true["verification"] = self.verification is not None
        return self.model_dump(exclude={name for name, there in only_if_true.items() if not there})


_version = cache(version)  # looking it up reads files


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, of the packages that every run uses, and of `more`."""
    packages = {name: _version(name) for name in ("fedalc", "torch", "numpy", "scipy", *more)}
    return {"python": platform.python_version(), **packages}


def write_result(folder: Path, result: Result) -> None:
    """Write result.json, which marks the run as finished."""
    write_text(folder / NAME, json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n")


def read_result(folder: Path) -> dict[str, Any]:
    """Return the result of a finished run. `metrics` are always there; other fields may be missing in an old file."""
    result = read_partial_result(folder)
    if result.get("metrics") is None:
        raise _damaged(folder, "it has no `metrics`")
    return result


def read_partial_result(folder: Path) -> dict[str, Any]:
    """Return the fields of a result.json that may lack some. Those that are there have the types of `Result`."""
    try:
        result = read_json_object(folder / NAME, _what_to_do(folder))
    except FileNotFoundError:
        raise FedalcError(f"{folder}: no {NAME}: this run has not finished") from None
    try:
        Result.model_validate({name: value for name, value in result.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            if problem["type"] != "missing":
                where = ".".join(str(key)[:30] for key in problem["loc"])
                raise _damaged(folder, f"`{where}`: {problem['msg']}") from None
    return result


def _damaged(folder: Path, what: str) -> FedalcError:
    return FedalcError(f"{folder / NAME}: damaged: {what}; {_what_to_do(folder)}")


def _what_to_do(folder: Path) -> str:
    return f"remove the file and make it again with: fedalc train --resume {folder}"
