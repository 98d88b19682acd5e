"""Messages between server and parties, and their checks on arrival. Nothing that arrives is trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import ValidationError
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import leaves_out_features
from fedalc.data.text.settings import TextSettings
from fedalc.engines.compression import Arrays, Wrong
from fedalc.errors import ConfigError, FedalcError
from fedalc.models.model import Model

VERSION = (
    5  # of these messages: 1 had no run id, 2 no options of a method, 3 no ranking of held-out records, 4 no residue
)
RAW = "raw"  # format of arrays: little-endian numbers, row by row, so that nothing has to be parsed
SENT = "sent"  # in place of the path of pretrained weights, because θ and the statistics are sent
OWN = "own"  # in place of the path of frozen weights, because each party has its own
LONGEST_SETTINGS = 100_000  # characters
SEARCH = "search"  # in the task of a search for settings: those that it began with
HOLDERS = "holders"  # the record, and its array: how many parties have each pair of a record and its label
Shape = tuple[int | None, ...]
_NUMBERS, _INDEX = ("float32", "float64", "uint16", "int8"), ("int32", "uint8")
PACKED: dict[str, tuple[str, ...]] = {
    "values": _NUMBERS,
    "scales": ("float32",),
    "rows": _INDEX,
    "columns": _INDEX,
    "cross-values": _NUMBERS,
    "cross-scales": ("float32",),
    "order": ("int32",),
    "rank": ("int32",),
}  # arrays of `engines.compression`, and the types that they may have


class BadMessage(FedalcError):
    """A message that is refused. Says what is wrong with it."""


def pack(arrays: Mapping[str, np.ndarray | Tensor]) -> ArrayRecord:
    return ArrayRecord({name: _as_array(value) for name, value in arrays.items()})


def _as_array(value: np.ndarray | Tensor) -> Array:
    numbers = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    written = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()
    return Array(str(numbers.dtype), tuple(numbers.shape), RAW, written)


def unpack(content: RecordDict, record: str, wanted: Mapping[str, tuple[str, Shape]]) -> dict[str, np.ndarray]:
    """Return the arrays of a record, if they are exactly those `wanted`: name, dtype, and shape (None: any length)."""
    arrays = content.get(record)
    if not isinstance(arrays, ArrayRecord):
        raise BadMessage(f"there are no {record}")
    if set(arrays) != set(wanted):
        raise BadMessage(f"{record} has the arrays {few(arrays)}, and should have {few(wanted)}")
    return {name: _read(arrays[name], f"{record} {name}", *wanted[name]) for name in wanted}


def _read(array: Array, what: str, dtype: str, shape: Shape) -> np.ndarray:
    """Return one array. Compares sizes before it allocates anything."""
    if array.dtype != dtype or not _fits(array.shape, shape):
        actual = f"{str(array.dtype)[:20]} {_times(array.shape)}"
        raise BadMessage(f"{what} is {actual}, and should be {dtype} {_times(shape)}")
    size = math.prod(array.shape) * np.dtype(dtype).itemsize
    if array.stype != RAW or len(array.data) != size:
        raise BadMessage(f"{what} cannot be read: {len(array.data)} bytes where {size} should be")
    value = np.frombuffer(array.data, np.dtype(dtype).newbyteorder("<")).reshape(array.shape).astype(dtype)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise BadMessage(f"{what} has numbers that are not finite")
    return value


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        type(s) is int and s >= 0 and w in (None, s) for s, w in zip(shape, wanted, strict=True)
    )


def _times(shape: Sequence[int | None]) -> str:
    return " × ".join("any" if size is None else str(size)[:12] for size in shape[:6])


def few(names: Iterable[Any]) -> str:
    """Return a list of names for a message, cut to a bounded length."""
    listed = sorted(str(name)[:20] for name in names)
    return ", ".join(listed[:8]) + (" …" if len(listed) > 8 else "")


def pack_theta(theta: Sequence[Tensor]) -> ArrayRecord:
    return pack({str(number): parameter for number, parameter in enumerate(theta)})


def unpack_theta(content: RecordDict, record: str, like: Sequence[Tensor]) -> list[Tensor]:
    """Return one tensor per parameter, each of the shape and dtype of those in `like`."""
    wanted = {str(i): (str(p.dtype).removeprefix("torch."), tuple(p.shape)) for i, p in enumerate(like)}
    arrays = unpack(content, record, wanted)
    return [torch.from_numpy(arrays[str(number)]) for number in range(len(like))]


def pack_parts(parts: Sequence[Arrays]) -> ArrayRecord:
    """Return what `engines.compression` sends in place of tensors."""
    return pack({f"{number}.{name}": array for number, part in enumerate(parts) for name, array in part.items()})


def is_packed(content: RecordDict, record: str) -> bool:
    return isinstance(arrays := content.get(record), ArrayRecord) and any("." in name for name in arrays)


def unpack_parts(content: RecordDict, record: str, count: int) -> list[Arrays]:
    """Return `count` parts that `pack_parts` was given. Whoever reads them checks that they fit together."""
    arrays = content.get(record)
    if not isinstance(arrays, ArrayRecord):
        raise BadMessage(f"there are no {record}")
    parts: list[Arrays] = [{} for _ in range(count)]
    for key, array in arrays.items():
        number, _, name = key.partition(".")
        if name not in PACKED or number not in map(str, range(count)):
            raise BadMessage(f"{record} has an array {key[:40]!r}, which it should not have")
        if array.dtype not in PACKED[name] or len(array.shape) > 2:
            raise BadMessage(f"{record} {key} is {str(array.dtype)[:20]} {_times(array.shape)}")
        parts[int(number)][name] = _read(array, f"{record} {key}", array.dtype, tuple(array.shape))
    return parts


@contextmanager
def unpacking(record: str) -> Iterator[None]:
    """Refuse parts that do not fit together."""
    try:
        yield
    except (Wrong, KeyError) as error:
        raise BadMessage(f"{record}: {error}") from None


def encoder_parts(model: Model) -> dict[str, list[Tensor]]:
    """Return θ and, with frozen batch normalisation, its statistics. Clients do not change the statistics, so these are
    sent to the parties only."""
    statistics = [buffer for buffer in model.encoder.buffers() if buffer.is_floating_point()]
    return {"theta": model.theta} | ({"statistics": statistics} if statistics else {})


def encoder_tensors(model: Model) -> list[Tensor]:
    return [tensor for part in encoder_parts(model).values() for tensor in part]


def pack_encoder(model: Model) -> dict[str, ArrayRecord]:
    return {name: pack_theta(part) for name, part in encoder_parts(model).items()}


def unpack_encoder(content: RecordDict, like: Model) -> list[Tensor]:
    """Return the tensors in the order of `encoder_tensors`."""
    return [value for name, part in encoder_parts(like).items() for value in unpack_theta(content, name, part)]


def record_bytes(record: ArrayRecord) -> int:
    return sum(len(array.data) for array in record.values())


def pack_all_rows(W: Tensor) -> ArrayRecord:
    """Return all rows of W, for parties that need every label. Rows that are axes are sent as their numbers alone.

    One record serves all messages of a round.
    """
    columns = axes_of(W)
    return pack({"rows": W}) if columns is None else pack({"columns": columns})


def axes_of(W: Tensor) -> np.ndarray | None:
    """Return the axis of each label if every row is one (`embeddings.start = "by-frequency"` with D ≥ C), else None.

    >>> axes_of(torch.eye(3)[[2, 0]]).tolist(), axes_of(-torch.eye(3))
    ([2, 0], None)
    """
    if not len(W) or bool((W[0] != 0).sum() != 1) or bool((W.count_nonzero(dim=1) != 1).any()):
        return None
    largest, columns = W.max(dim=1)
    return columns.to(torch.int32).cpu().numpy() if bool((largest == 1).all()) else None


def unpack_all_rows(content: RecordDict, record: str, dtype: str, labels: int, width: int) -> Tensor:
    """Return W from what `pack_all_rows` made, if it has this shape. Check `labels` and the memory first."""
    columns = unpack_axes(content, record, labels, width)
    if columns is None:
        return torch.from_numpy(unpack(content, record, {"rows": (dtype, (labels, width))})["rows"])
    W = torch.zeros(labels, width, dtype=getattr(torch, dtype))
    W[torch.arange(labels), columns] = 1
    return W


def unpack_axes(content: RecordDict, record: str, labels: int, width: int) -> Tensor | None:
    """Return the axis of each label from what `pack_all_rows` made. None if the rows were sent instead."""
    sent = content.get(record)
    if not (isinstance(sent, ArrayRecord) and set(sent) == {"columns"}):
        return None
    columns = unpack(content, record, {"columns": ("int32", (labels,))})["columns"]
    if labels and not (columns.min() >= 0 and columns.max() < width):
        raise BadMessage(f"{record} columns has an axis outside 0 to {width - 1}")
    return torch.from_numpy(columns).long()


def config(content: RecordDict, record: str, wanted: Mapping[str, type | tuple[type, type]]) -> dict[str, Any]:
    """Return the `wanted` values of a record, if each has its type. (list, bytes) is a list of bytes."""
    values = content.get(record)
    if not isinstance(values, ConfigRecord):
        raise BadMessage(f"there is no {record}")
    checked: dict[str, Any] = {}
    for key, kind in wanted.items():
        value: Any = values.get(key)
        outer, inner = kind if isinstance(kind, tuple) else (kind, None)
        items: list[Any] = value if isinstance(value, list) else []
        if type(value) is not outer or (inner is not None and any(type(item) is not inner for item in items)):
            raise BadMessage(f"{record} has no {key}, or it has the wrong type")
        checked[key] = value
    return checked


def read_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or a number of thousands of digits, or thousands of brackets
        raise BadMessage(f"{what} cannot be read") from None


def task(settings: Experiment, run: str, **more: Any) -> ConfigRecord:
    """Return the record that says what a party should do, in which run, with which settings."""
    return ConfigRecord({"version": VERSION, "run": run, "settings": for_parties(settings), **more})


def for_parties(settings: Experiment) -> str:
    """Return the settings that parties need, as JSON: no files, nothing that only the server does."""
    every = settings.to_dict()
    sections = ("method", "seed", "dtype", "block_rows", "images", "encoder", "client", "hashing", "options")
    sent = {key: every[key] for key in sections}
    if settings.encoder.pretrained is not None:
        sent["encoder"]["pretrained"] = OWN if settings.encoder.frozen else SENT
    if settings.text != TextSettings():
        sent["text"] = every["text"]
    if settings.clients != "labels":
        sent["clients"] = settings.clients
    if settings.collection.by != "join":
        sent["collection"] = {"by": settings.collection.by}
    if settings.embeddings.secret:
        sent["embeddings"] = {"secret": True}
    if settings.secure_sums.on:
        sent["secure_sums"] = every["secure_sums"]
    if settings.compresses:
        sent["compression"] = every["compression"]
    server: dict[str, Any] = {"weights": settings.server.weights}
    if leaves_out_features(settings):
        server["least_holders"] = settings.server.least_holders
    if settings.privacy.covers_records:  # parties add the noise, so they know how much it has to be
        sent |= {"privacy": every["privacy"], "rounds": settings.rounds, "selection": {"validation": 0.0}}
        server["optimizer"] = settings.server.optimizer
    return json.dumps(sent | {"server": server}, sort_keys=True)


def read_task(content: RecordDict, device: str, **more: type | tuple[type, type]) -> tuple[Experiment, dict[str, Any]]:
    """Return the settings, with this party's own device, and the values of the task: run, settings, `more`, and what a
    search began with ("" without one)."""
    version = config(content, "task", {"version": int})["version"]
    if version != VERSION:
        raise BadMessage(
            f"messages of version {version}, and this fedalc speaks version {VERSION}: server and parties need the "
            "same version of fedalc"
        )
    values = config(content, "task", {"run": str, "settings": str, **more})
    searches = SEARCH in content["task"]
    values[SEARCH] = config(content, "task", {SEARCH: str})[SEARCH] if searches else ""
    longest = max(len(values["settings"]), len(values[SEARCH]))
    if longest > LONGEST_SETTINGS:
        raise BadMessage(f"settings of {longest} characters, more than {LONGEST_SETTINGS}")
    table = read_json(values["settings"], "the settings")
    if not isinstance(table, dict):
        raise BadMessage("the settings are not a table")
    try:
        settings = Experiment.model_validate(table | {"engine": "flower", "device": device})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadMessage(f"the settings are not valid: {where}: {first['msg']}") from None
    except ConfigError as error:
        raise BadMessage(f"the settings are not valid: {error}") from None
    # Never read from a folder or name that the server gives: its pretrained weights arrive as numbers.
    # Of a frozen network a party has its own copy (`party_network`).
    encoder = settings.encoder.model_copy(update={} if settings.encoder.frozen else {"pretrained": None})
    return settings.model_copy(update={"encoder": encoder}), values
