"""Write docs/results/fuzz.md: the results of `make fuzz` for each reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fuzz.harness import CORPUS, MEMORY, SECONDS
from tests.fuzz.registry import built

_HEAD = """# Fuzzing the readers

Every reader of external bytes gets mutated inputs: valid files that are cut, joined, flipped, repeated and mixed
with tokens that parsers often get wrong. Half of the inputs follow the format (matching checksums, valid JSON). A
reader may return a value or raise a `FedalcError`. Anything else is an escape: another exception, more than
{seconds:g} seconds or {memory} MiB for an input, or the end of the process.

    make fuzz          # python -m tests.fuzz --inputs {inputs} --seed {seed}

Seed {seed}; {total:,} inputs for {count} readers, **{escapes} escapes**. Code: commit {commits}. Seconds are
CPU seconds of one process. *Fixed* counts the inputs that once escaped: they are in
`tests/fuzz/corpus`, and every test run reads them again.

| reader | reads | inputs | accepted | kinds of refusal | per second | slowest, ms | escapes | fixed |
|---|---|--:|--:|--:|--:|--:|--:|--:|
"""


def write_results(page: Path, done: Mapping[str, Mapping[int, Mapping[str, Any]]], seed: int) -> None:
    rows, total, escapes, fewest = [], 0, 0, 0
    commits: dict[str, None] = {}
    for name, chunks in done.items():
        records = list(chunks.values())
        commits |= dict.fromkeys(record["commit"] for record in records)
        inputs = sum(record["inputs"] for record in records)
        seconds = sum(record["seconds"] for record in records)
        kinds = {kind for record in records for kind in record["kinds"] if kind}
        found = sum(len(record["escapes"]) for record in records)
        mended = len(list((CORPUS / name).glob("*")))
        fewest = min(fewest or inputs, inputs)
        total, escapes = total + inputs, escapes + found
        rows.append(
            f"| {name} | {built(name).what} | {inputs:,} | {sum(record['accepted'] for record in records):,} | "
            f"{len(kinds)} | {inputs / max(seconds, 1e-9):,.0f} | "
            f"{1000 * max(record['slowest'] for record in records):.0f} | {found} | {mended} |\n"
        )
    head = _HEAD.format(
        seconds=SECONDS, memory=MEMORY >> 20, inputs=fewest, seed=seed, total=total, count=len(done), escapes=escapes,
        commits=", ".join(commits),
    )  # fmt: skip
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(head + "".join(rows), encoding="utf-8")
