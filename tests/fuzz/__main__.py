"""`make fuzz`: run many inputs through every reader, in several processes. Continues where it was stopped.

python -m tests.fuzz --inputs 100000 --jobs 2           all readers; the outcome goes to docs/results/fuzz.md
python -m tests.fuzz --only arff,coco --inputs 5000     some of them
python -m tests.fuzz --repeat tests/fuzz/corpus/…/…     one input, with its traceback
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz.harness import CHUNK, CORPUS, SECONDS, Escape, Present, as_record, keep, limit_memory, outcome_of
from tests.fuzz.harness import run_chunk as run_one
from tests.fuzz.page import write_results
from tests.fuzz.registry import PLACE, built, in_memory, names

STUCK = 30 * SECONDS
"""Seconds without a new input after which a worker is taken to hang in code that hears no alarm."""
ROOT = Path(__file__).resolve().parents[2]
_printing = threading.Lock()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Mutated inputs for every reader.")
    parser.add_argument("--inputs", type=int, default=100_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--only", default="", help="readers, with commas between them")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz", help="what is done is kept here")
    parser.add_argument("--results", type=Path, default=None, help="the page (default: docs/results/fuzz.md, for all)")
    parser.add_argument("--repeat", type=Path, help="read this file of the corpus again")
    parser.add_argument("--work", nargs=3, metavar=("READER", "CHUNKS", "PRESENT"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.repeat is not None:
        return repeat(asked.repeat)
    if asked.work is not None:
        return work(asked.work[0], asked.seed, [int(chunk) for chunk in asked.work[1].split(",")], Path(asked.work[2]))
    which = [name.strip() for name in asked.only.split(",") if name.strip()] or names()
    if unknown := sorted(set(which) - set(names())):
        parser.error(f"no reader {unknown[0]!r}; there are {', '.join(names())}")
    return fuzz(which, asked.inputs, asked.seed, asked.jobs, asked.state, asked.results)


def fuzz(which: Sequence[str], inputs: int, seed: int, jobs: int, state: Path, results: Path | None) -> int:
    folder = state / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    chunks = range(-(-inputs // CHUNK))
    stop = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_fuzz_reader, name, seed, chunks, folder, stop) for name in which]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            stop.set()
            _say(f"stopped; what is done is in {folder}: the same command goes on from there")
            return 130
    page = results or (ROOT / "docs" / "results" / "fuzz.md" if set(which) == set(names()) else None)
    done = {name: _records(folder / f"{name}.jsonl") for name in which}
    if page is not None:
        write_results(page, done, seed)
        _say(f"written: {page}")
    escapes = sum(len(record["escapes"]) for records in done.values() for record in records.values())
    total = sum(record["inputs"] for records in done.values() for record in records.values())
    _say(f"{total:,} inputs for {len(which)} readers, {escapes} escapes")
    return 1 if escapes else 0


def _fuzz_reader(name: str, seed: int, chunks: range, folder: Path, stop: threading.Event) -> None:
    file = folder / f"{name}.jsonl"
    while not stop.is_set():
        left = [chunk for chunk in chunks if chunk not in _records(file)]
        if not left:
            return
        _run_worker(name, seed, left, file, stop)


def _run_worker(name: str, seed: int, chunks: list[int], file: Path, stop: threading.Event) -> None:
    """Run one process for as many chunks as it survives. Each result goes into the file when it is done."""
    temporary = Path(tempfile.mkdtemp(prefix="fedalc-fuzz-worker-", dir=in_memory()))
    present = temporary / "present"
    command = [sys.executable, "-m", "tests.fuzz", "--seed", str(seed)]
    command += ["--work", name, ",".join(map(str, chunks)), str(present)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "FEDALC_CACHE": str(temporary)}
    environment[PLACE] = str(temporary)
    errors = (temporary / "errors").open("w+b")
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    watch = threading.Thread(target=_watch, args=(process, present, stop), daemon=True)
    watch.start()
    left = list(chunks)
    assert process.stdout is not None
    for line in process.stdout:
        record = json.loads(line) | {"commit": _commit()}
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
        left.remove(record["chunk"])
        rate = record["inputs"] / max(record["seconds"], 1e-9)
        _say(f"{name:22} chunk {record['chunk']:3}  {rate:7.0f}/s  {len(record['escapes'])} escapes")
        for escape in record["escapes"]:
            _say(f"    {escape}")
    status = process.wait()
    errors.seek(0)
    said = errors.read().decode("utf-8", "replace")[-2000:]
    errors.close()
    if left and not stop.is_set():
        _note_death(name, left[0], status, present, file, said)
    shutil.rmtree(temporary, ignore_errors=True)


def _note_death(name: str, chunk: int, status: int, present: Path, file: Path, said: str) -> None:
    """The process died, or was killed, while it read an input: that is an escape too."""
    if not present.exists():
        raise SystemExit(f"{name}: the worker did not start:\n{said}")
    count, data = Present.left(present)
    kept = keep(name, Escape(data, "", ""))
    escape = f"the process died or hung (status {status}); {_how_to_repeat(kept)}"
    record = {"chunk": chunk, "inputs": count % CHUNK, "accepted": 0, "seconds": 0.0, "slowest": 0.0, "kinds": []}
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(record | {"escapes": [escape], "commit": _commit()}) + "\n")
    _say(f"{name}: {escape}\n{said}")


def _watch(process: subprocess.Popen[str], present: Path, stop: threading.Event) -> None:
    seen, since = -1, time.monotonic()
    while process.poll() is None:
        if present.exists() and (count := Present.left(present)[0]) != seen:
            seen, since = count, time.monotonic()
        if stop.is_set() or (present.exists() and time.monotonic() - since > STUCK):
            process.kill()
        time.sleep(1)


def work(name: str, seed: int, chunks: list[int], present: Path) -> int:
    """Run chunks in a separate process and print each result as a line of JSON."""
    reader = built(name)
    told = Present(present)
    limit_memory()
    for chunk in chunks:
        outcome = run_one(reader, seed, chunk, present=told)
        found = []
        for error, escape in {escape.error: escape for escape in outcome.escapes}.items():  # one of each kind
            found.append(f"{error}; {_how_to_repeat(keep(name, escape))}")
        print(json.dumps({"chunk": chunk, **as_record(outcome), "escapes": found}), flush=True)
    return 0


def repeat(file: Path) -> int:
    reader = built(file.resolve().parent.name)
    kind, escape = outcome_of(reader, file.read_bytes())
    print(escape.trace if escape else kind or "accepted")
    return 1 if escape else 0


def _how_to_repeat(file: Path) -> str:
    return f"repeat it with: python -m tests.fuzz --repeat {CORPUS.relative_to(ROOT) / file.relative_to(CORPUS)}"


def _records(file: Path) -> dict[int, dict[str, Any]]:
    if not file.exists():
        return {}
    records = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {record["chunk"]: record for record in records}


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _say(text: str) -> None:
    with _printing:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
