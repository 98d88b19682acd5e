"""What travels between server and parties, and how it is checked on arrival. Nothing that arrives is trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import ValidationError
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.errors import ConfigError, FedalcError
from fedalc.models.model import Model

VERSION = 2  # of these messages: 1 had no run id
RAW = "raw"  # how arrays travel: their numbers, little-endian, row by row. Nothing in them has to be parsed
SENT = "sent"  # in place of the server's pretrained weights: they are in θ and the statistics, which are sent
LONGEST_SETTINGS = 100_000  # characters
Shape = tuple[int | None, ...]


class BadMessage(FedalcError):
    """A message that cannot be used as it stands. Says what is wrong with it."""


def pack(arrays: Mapping[str, np.ndarray | Tensor]) -> ArrayRecord:
    return ArrayRecord({name: _as_array(value) for name, value in arrays.items()})


def _as_array(value: np.ndarray | Tensor) -> Array:
    numbers = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    written = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()
    return Array(str(numbers.dtype), tuple(numbers.shape), RAW, written)


def unpack(content: RecordDict, record: str, wanted: Mapping[str, tuple[str, Shape]]) -> dict[str, np.ndarray]:
    """The arrays of a record, if they are exactly those wanted: name, number type, and shape (None: any length)."""
    arrays = content.get(record)
    if not isinstance(arrays, ArrayRecord):
        raise BadMessage(f"there are no {record}")
    if set(arrays) != set(wanted):
        raise BadMessage(f"{record} has the arrays {_few(arrays)}, and should have {_few(wanted)}")
    return {name: _read(arrays[name], f"{record} {name}", *wanted[name]) for name in wanted}


def _read(array: Array, what: str, dtype: str, shape: Shape) -> np.ndarray:
    """Sizes are compared before anything is allocated."""
    said = f"{str(array.dtype)[:20]} {_times(array.shape)}"
    if array.dtype != dtype or not _fits(array.shape, shape):
        raise BadMessage(f"{what} is {said}, and should be {dtype} {_times(shape)}")
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


def _few(names: Any) -> str:
    listed = sorted(str(name)[:20] for name in names)
    return ", ".join(listed[:8]) + (" …" if len(listed) > 8 else "")


def pack_theta(theta: Sequence[Tensor]) -> ArrayRecord:
    return pack({str(place): parameter for place, parameter in enumerate(theta)})


def unpack_theta(content: RecordDict, record: str, like: Sequence[Tensor]) -> list[Tensor]:
    """One tensor per parameter, each of the shape and type of these."""
    wanted = {str(i): (str(p.dtype).removeprefix("torch."), tuple(p.shape)) for i, p in enumerate(like)}
    arrays = unpack(content, record, wanted)
    return [torch.from_numpy(arrays[str(place)]) for place in range(len(like))]


def encoder_parts(model: Model) -> dict[str, list[Tensor]]:
    """What it takes to encode: θ and, of frozen batch normalisation, the statistics it came with. No client changes
    these, so they only ever go to the parties."""
    statistics = [buffer for buffer in model.encoder.buffers() if buffer.is_floating_point()]
    return {"theta": model.theta} | ({"statistics": statistics} if statistics else {})


def encoder_tensors(model: Model) -> list[Tensor]:
    return [tensor for part in encoder_parts(model).values() for tensor in part]


def pack_encoder(model: Model) -> dict[str, ArrayRecord]:
    return {name: pack_theta(part) for name, part in encoder_parts(model).items()}


def unpack_encoder(content: RecordDict, like: Model) -> list[Tensor]:
    """In the order of `encoder_tensors`."""
    return [value for name, part in encoder_parts(like).items() for value in unpack_theta(content, name, part)]


def config(content: RecordDict, record: str, wanted: Mapping[str, type | tuple[type, type]]) -> dict[str, Any]:
    """The values of a record, if each is of the type wanted. (list, bytes) is a list of bytes."""
    values = content.get(record)
    if not isinstance(values, ConfigRecord):
        raise BadMessage(f"there is no {record}")
    found: dict[str, Any] = {}
    for key, kind in wanted.items():
        value: Any = values.get(key)
        outer, inner = kind if isinstance(kind, tuple) else (kind, None)
        items: list[Any] = value if isinstance(value, list) else []
        if type(value) is not outer or (inner is not None and any(type(item) is not inner for item in items)):
            raise BadMessage(f"{record} says no {key}, or not in the form it should have")
        found[key] = value
    return found


def read_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, or thousands of brackets
        raise BadMessage(f"{what} cannot be read") from None


def task(settings: Experiment, run: str, **more: Any) -> ConfigRecord:
    """What a party is asked to do, in which run, with the settings that concern it."""
    return ConfigRecord({"version": VERSION, "run": run, "settings": _for_parties(settings), **more})


def _for_parties(settings: Experiment) -> str:
    """Neither files nor privacy nor what only the server does."""
    every = settings.to_dict()
    concerned = ("method", "seed", "dtype", "block_rows", "images", "encoder", "client", "hashing")
    kept = {key: every[key] for key in concerned}
    if settings.encoder.pretrained is not None:
        kept["encoder"]["pretrained"] = SENT
    return json.dumps(kept | {"server": {"weights": settings.server.weights}}, sort_keys=True)


def read_task(content: RecordDict, device: str, **more: type | tuple[type, type]) -> tuple[Experiment, dict[str, Any]]:
    """The settings, on this party's own device, and what else was asked for."""
    version = config(content, "task", {"version": int})["version"]
    if version != VERSION:
        raise BadMessage(
            f"messages of version {version}, and this fedalc speaks version {VERSION}: server and parties need the "
            "same version of fedalc"
        )
    said = config(content, "task", {"run": str, "settings": str, **more})
    if len(said["settings"]) > LONGEST_SETTINGS:
        raise BadMessage(f"settings of {len(said['settings'])} characters, more than {LONGEST_SETTINGS}")
    values = read_json(said["settings"], "the settings")
    if not isinstance(values, dict):
        raise BadMessage("the settings are not a table")
    try:
        settings = Experiment.model_validate(values | {"engine": "flower", "device": device})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadMessage(f"the settings are not valid: {where}: {first['msg']}") from None
    except ConfigError as error:
        raise BadMessage(f"the settings are not valid: {error}") from None
    # Whatever folder or name they say, nothing is read from there: what the server starts from comes as numbers.
    encoder = settings.encoder.model_copy(update={"pretrained": None})
    return settings.model_copy(update={"encoder": encoder}), said
