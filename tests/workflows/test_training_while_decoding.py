"""Rounds start while pictures are still being decoded."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedalc
from fedalc.data.images import decode as pictures
from fedalc.errors import DataError
from fedalc.training.base import Callback
from fedalc.workflows.progress_bars import LiveProgress
from tests.data.layouts import from_pixels, pack, write_files

pytest.importorskip("transformers")

TRAIN, TEST = 20, 4
KEYS: dict[str, Any] = {
    "rounds": 2,
    "encoder": {"name": "resnet-small", "dim": 8},
    "images": {"size": 32, "augment": "off"},
    "client": {"sample": 1.0},
    "selection": {"every": 1, "validation": 0.2},
    "block_rows": 6,
}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fedalc.report.page.write_page", lambda *folder: None)
    return tmp_path / "cache"


def drawn(names: list[str]) -> dict[str, bytes]:
    draw = np.random.default_rng(3)
    return {name: from_pixels(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for name in names}


FILES = drawn([*(f"b{at}.png" for at in range(TRAIN)), *(f"a{at}.png" for at in range(TEST))])
FOR_TESTING = {content for name, content in FILES.items() if name.startswith("a")}


def own_pictures(folder: Path, packed: bool = False) -> Path:
    """The test pictures come first by name and last in the archive."""
    for split, letter in (("train", "b"), ("test", "a")):
        names = [name for name in FILES if name.startswith(letter)]
        rows = "".join(f"{name},{'dog' if at % 2 else 'cat|bird'}\n" for at, name in enumerate(names))
        write_files(folder, {f"{split}.csv": f"picture,labels\n{rows}".encode()})
    if packed:
        pack(folder / "pictures.tar", FILES)
    else:
        write_files(folder, FILES)
    return folder


class Gate(Callback):
    """Blocks the decoding of test pictures until the first round is over, and records the order of events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self._round_over, shrink = threading.Event(), pictures._shrink

        def held_back(row: int, content: bytes, size: int) -> pictures.Small:
            assert content not in FOR_TESTING or self._round_over.wait(20), "the first round waits for all pictures"
            return shrink(row, content, size)

        monkeypatch.setattr(pictures, "_shrink", held_back)

    def reading(self, done: int, pictures: int) -> None:
        if done == pictures:
            self.seen.append("all decoded")

    def round(self, number: int, loss: float) -> None:
        self.seen.append(f"round {number}")
        self._round_over.set()


def bits(run: fedalc.Run) -> dict[str, torch.Tensor]:
    model: Any = run.model
    return {**model.model.encoder.state_dict(), "W": model.model.W}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "engine", "packed"),
    [("fedavg-fixed", "fused", False), ("fedavg", "clients", False), ("fedalc", "fused", True)],
)
def test_the_first_round_is_over_before_all_is_decoded_and_nothing_else_differs(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, method: str, engine: str, packed: bool
) -> None:
    data = own_pictures(tmp_path / "own", packed)
    keys = {**KEYS, "dataset": str(data), "method": method, "engine": engine}
    gate = Gate(monkeypatch)
    first = fedalc.train(folder=tmp_path / "first", callbacks=[gate], **keys)
    assert gate.seen.index("round 1") < gate.seen.index("all decoded")
    gate.seen.clear()
    second = fedalc.train(folder=tmp_path / "second", callbacks=[gate], **keys)
    assert "round 1" in gate.seen and "all decoded" not in gate.seen, "they come from the cache"
    one, other = bits(first), bits(second)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert first.metrics == second.metrics and first.result["bytes_up"] == second.result["bytes_up"]


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("broken", ["a2.png", "b7.png"])
def test_a_broken_picture_ends_the_training(tmp_path: Path, own_cache: Path, engine: str, broken: str) -> None:
    data = own_pictures(tmp_path / "own")
    (data / broken).write_bytes(b"no picture")
    with pytest.raises(DataError) as told:
        fedalc.train(dataset=str(data), engine=engine, folder=tmp_path / "run", **KEYS)
    assert str(told.value) == (
        f"{data}: {broken} cannot be decoded (not a picture of a known format). Get it again, or leave broken pictures "
        'out (images.broken = "skip")'
    )
    assert {path.suffix for path in own_cache.iterdir() if path.name.startswith("pictures-")} == {".lock"}
    assert not (tmp_path / "run" / "result.json").exists()
    skipping = {**KEYS, "images": {**KEYS["images"], "broken": "skip"}}
    with pytest.warns(UserWarning, match=f"1 of 24 pictures left out: {broken}"):
        fedalc.train(dataset=str(data), engine=engine, **skipping)


def test_a_bar_that_is_closed_stays_closed() -> None:
    shown = io.StringIO()
    progress = LiveProgress(Console(file=shown, force_terminal=True, width=100), "fedavg")
    progress.reading(1, 9)
    progress.phase("fit", 3, 0)
    progress.reading(2, 9)
    progress.round(1, 0.5)
    progress.close()
    before = shown.getvalue()
    assert "2/9" in before and "1/3" in before and "loss 0.5000" in before
    progress.reading(3, 9)
    assert shown.getvalue() == before and not progress._bar.live.is_started
