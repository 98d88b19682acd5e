"""Messages are checked before they are used."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedalc.config.resolve import experiment
from fedalc.deployment.flower.wire import (
    RAW,
    VERSION,
    BadMessage,
    config,
    pack,
    pack_all_rows,
    read_task,
    record_bytes,
    task,
    unpack,
    unpack_all_rows,
)

WANTED = {"x": ("float32", (2, 3))}
GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)


def of(array: Array) -> RecordDict:
    return RecordDict({"r": ArrayRecord({"x": array})})


@pytest.mark.parametrize("made", [GOOD, torch.from_numpy(GOOD), GOOD.T.copy().T, torch.from_numpy(GOOD.T.copy()).T])
def test_numbers_arrive_as_they_were(made: Any) -> None:
    """Including arrays in column-major order."""
    found = unpack(RecordDict({"r": pack({"x": made})}), "r", WANTED)["x"]
    np.testing.assert_array_equal(found, GOOD)
    found[0, 0] = 7  # its own memory, to write to


def test_the_wire_is_little_endian_whatever_the_machine() -> None:
    big = GOOD.astype(">f4")
    assert pack({"x": big})["x"].data == GOOD.astype("<f4").tobytes()


DATA = GOOD.tobytes()
BAD_ARRAYS = [
    Array("float32", (2, 3), RAW, DATA[:-1]),
    Array("float32", (2, 3), RAW, b""),
    Array("float32", (2, 3), RAW, DATA + DATA),
    Array("float32", (2, 3), "numpy.ndarray", DATA),
    Array("float32", (3, 2), RAW, DATA),
    Array("float32", (6,), RAW, DATA),
    Array("float32", (2, 3, 1), RAW, DATA),
    Array("float32", (-2, -3), RAW, DATA),
    Array("float32", (), RAW, DATA[:4]),
    Array("int32", (2, 3), RAW, DATA),
    Array("object", (2, 3), RAW, DATA),
    Array("float32", (2, 10**30), RAW, DATA),
    Array("float32", (2, 3), RAW, np.full(6, np.nan, np.float32).tobytes()),
    Array("float32", (2, 3), RAW, np.full(6, -np.inf, np.float32).tobytes()),
]


@pytest.mark.parametrize("array", BAD_ARRAYS, ids=repr)
def test_bad_arrays(array: Array) -> None:
    with pytest.raises(BadMessage):
        unpack(of(array), "r", WANTED)


def test_any_length_is_not_any_length() -> None:
    wanted = {"x": ("uint8", (None, 16))}
    assert unpack(of(Array("uint8", (0, 16), RAW, b"")), "r", wanted)["x"].shape == (0, 16)
    for shape in [(-1, 16), (1 << 60, 16), (True, 16)]:
        with pytest.raises(BadMessage):
            unpack(of(Array("uint8", shape, RAW, b"")), "r", wanted)


@pytest.mark.parametrize(
    "content",
    [RecordDict(), RecordDict({"r": ConfigRecord()}), RecordDict({"r": MetricRecord({"x": 1.0})}),
     RecordDict({"r": ArrayRecord()}), RecordDict({"r": pack({"x": GOOD, "y": GOOD})})],
)  # fmt: skip
def test_bad_records(content: RecordDict) -> None:
    with pytest.raises(BadMessage):
        unpack(content, "r", WANTED)


@given(st.binary(max_size=200), st.lists(st.integers(-(2**70), 2**70), max_size=4), st.text(max_size=8), st.text())
def test_whatever_arrives_nothing_but_bad_messages_comes_of_it(
    data: bytes, shape: list[int], dtype: str, stype: str
) -> None:
    for kind in (dtype, "float32"):
        for how in (stype, RAW, "numpy.ndarray"):
            with pytest.raises(BadMessage):
                unpack(of(Array(kind, tuple(shape), how, data)), "r", {"x": ("float32", (None, 1000, 7))})


@pytest.mark.parametrize("value", [1, True, "1.0", [1.0], b"1"])
def test_values_of_another_kind(value: Any) -> None:
    with pytest.raises(BadMessage, match="no loss"):
        config(RecordDict({"o": ConfigRecord({"loss": value})}), "o", {"loss": float})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[1, 2]", "not a table"),
        ('{"method": "gossip"}', "method"),
        ('{"unknown": 1}', "unknown"),
        ('{"encoder": {"dim": -3}}', "encoder.dim"),
        ('{"encoder": {"dim": 1e400}}', "encoder.dim"),
        ('{"method": "fedalc-exact"}', "square"),
        ('{"seed": ' + "9" * 5000 + "}", "cannot be read"),
    ],
)
def test_settings_that_are_none(settings: str, why: str) -> None:
    content = RecordDict({"task": ConfigRecord({"version": VERSION, "run": "run-1", "settings": settings})})
    with pytest.raises(BadMessage, match=why) as error:
        read_task(content, "cpu")
    assert len(str(error.value)) < 500


def test_parties_are_told_what_concerns_them_and_no_more() -> None:
    secret = {"collection": {"key": "/home/server/key"}, "privacy": {"epsilon": 7.25}, "dataset": "the-server's"}
    settings = experiment({"method": "fedalc", **secret})
    written = str(task(settings, "run-1")["settings"])
    assert set(json.loads(written)) == {
        "method", "seed", "dtype", "block_rows", "images", "encoder", "client", "hashing", "options", "server",
    }  # fmt: skip
    assert "/home" not in written and "7.25" not in written
    read, _ = read_task(RecordDict({"task": task(settings, "run-1")}), "cpu")
    assert (read.encoder, read.client, read.engine) == (settings.encoder, settings.client, "flower")


def test_the_servers_pretrained_weights_are_no_business_of_parties() -> None:
    encoder = {"name": "resnet18", "norm": "frozen", "pretrained": "/home/server/weights"}
    settings = experiment({"method": "fedavg", "encoder": encoder})
    assert json.loads(str(task(settings, "run-1")["settings"]))["encoder"]["pretrained"] == "sent"
    read, _ = read_task(RecordDict({"task": task(settings, "run-1")}), "cpu")
    assert (read.encoder.pretrained, read.encoder.norm, read.images) == (None, "frozen", settings.images)


@pytest.mark.parametrize("axes", [True, False])
def test_all_rows_arrive(axes: bool) -> None:
    W = torch.eye(6, dtype=torch.float64)[[4, 0, 5]] if axes else torch.randn(3, 6, dtype=torch.float64)
    content = RecordDict({"all-rows": pack_all_rows(W)})
    assert record_bytes(content["all-rows"]) == (3 * 4 if axes else 3 * 6 * 8)
    assert torch.equal(unpack_all_rows(content, "all-rows", "float64", 3, 6), W)
    with pytest.raises(BadMessage, match="should be"):
        unpack_all_rows(content, "all-rows", "float64", 4, 6)


@pytest.mark.parametrize("W", [torch.tensor([[1.0, 0], [0.6, 0.8]]), torch.tensor([[1.0, 0], [0, -1]])])
def test_rows_that_are_almost_axes_are_sent_in_full(W: torch.Tensor) -> None:
    assert set(pack_all_rows(W)) == {"rows"}
