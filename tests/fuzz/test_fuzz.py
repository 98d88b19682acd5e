"""A short, seeded run of the fuzz harness over every reader, and every input that ever escaped.

The long one is `make fuzz`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedalc.errors import DataError
from tests.fuzz import harness
from tests.fuzz.__main__ import fuzz
from tests.fuzz.harness import Reader, limit_memory, outcome_of, regressions, run_chunk
from tests.fuzz.registry import built, names

INPUTS = 25  # of each reader
WITHOUT_REST = ("pretrained-config",)  # the weights that belong to it would have 45 MB


@pytest.mark.parametrize("name", names())
def test_no_escape(name: str) -> None:
    reader = built(name)
    outcome = run_chunk(reader, 0, 0, INPUTS)
    assert outcome.inputs == INPUTS
    assert not outcome.escapes, outcome.escapes[0].trace


@pytest.mark.parametrize("name", names())
def test_what_escaped_once_does_not_again(name: str) -> None:
    reader = built(name)
    for file, data in regressions(reader).items():
        _, escape = outcome_of(reader, data)
        assert escape is None, f"{file}: {escape and escape.trace}"


def test_seeds_are_good_inputs() -> None:
    """A reader that refuses every input would have no escapes."""
    for name in names():
        reader = built(name)
        assert name in WITHOUT_REST or any(outcome_of(reader, seed) == ("", None) for seed in reader.seeds), name


def toy(data: bytes) -> None:
    """A reader with a bug behind its check."""
    if not data.startswith(b'{"size": '):
        raise DataError("not ours")
    try:
        size = json.loads(data)["size"]
    except (ValueError, KeyError, RecursionError):
        raise DataError("damaged") from None
    bytes(size)


TOY = Reader("toy", "a toy", [b'{"size": 12}', b'{"size": 3, "a": "b"}'], toy)


def test_a_planted_bug_is_found() -> None:
    outcome = run_chunk(TOY, 0, 0, 2000)
    found = {escape.error.partition(":")[0] for escape in outcome.escapes}
    assert "TypeError" in found and len(found) > 1  # not a number; one that is negative or too large
    again = run_chunk(TOY, 0, 0, 2000)
    assert [escape.data for escape in again.escapes] == [escape.data for escape in outcome.escapes]  # seeded
    assert [escape.data for escape in run_chunk(TOY, 1, 0, 2000).escapes] != [escape.data for escape in outcome.escapes]


def test_an_endless_reader_is_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_data: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(harness, "SECONDS", 0.05)
    _, escape = outcome_of(Reader("endless", "", [b""], endless), b"")
    assert escape is not None and escape.error.startswith("TooLong")


def test_memory_is_bounded() -> None:
    """In a separate process, because the limit stays."""
    import multiprocessing

    def greedy() -> None:
        limit_memory(64 << 20)
        _, escape = outcome_of(Reader("greedy", "", [b""], lambda data: bytes(1 << 30)), b"")
        raise SystemExit(0 if escape is not None and escape.error.startswith("MemoryError") else 1)

    process = multiprocessing.get_context("fork").Process(target=greedy)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.long
def test_the_command_counts_goes_on_and_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "fuzz.md"
    assert fuzz(["voc-list"], 5000, 3, 1, tmp_path / "state", page) == 0
    first = capsys.readouterr().out
    assert "5,000 inputs for 1 readers, 0 escapes" in first and "chunk   0" in first
    assert "| voc-list | VOC's lists | 5,000 |" in page.read_text()
    assert fuzz(["voc-list"], 5000, 3, 1, tmp_path / "state", page) == 0  # nothing is left to do
    assert "chunk" not in capsys.readouterr().out


def test_inputs_are_small_and_cheap_to_make() -> None:
    """Mutations must not produce archives of gigabytes: limits have their own tests."""
    assert all(len(seed) < 1 << 16 for name in names() for seed in built(name).seeds)
