"""`make bench-text`: raw texts to features, and training from them in one command, on yso (587,336 library titles).

Each step runs in a process of its own, which measures its time and memory (with its worker processes). Writes
docs/results/text.json and docs/results/text.md, and goes on where it stopped.

    FEDALC_DATA=… python benchmarks/text.py [features] [fedalc] [omikuji]
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parents[1] / "docs" / "results"
RECORD, PAGE = RESULTS / "text.json", RESULTS / "text.md"
TRAININGS = {"fedalc": [], "omikuji": ["--method", "omikuji"]}
DOCUMENTS = 587_336
KINDS = {
    "words": {},
    "words, hashed": {"kind": "hashing"},
    "one and two words": {"words": [1, 2]},
    "words and 3–5 characters": {"characters": [3, 5]},
}


def features(kind: str, usage: Usage) -> dict[str, Any]:
    """Count and turn yso's training texts, with a process per processor."""
    from fedalc.data.catalog.locate import data_root
    from fedalc.data.formats import file_format
    from fedalc.data.formats.table_settings import TableSettings
    from fedalc.data.text.features import fit_text
    from fedalc.data.text.settings import TextSettings

    file = data_root() / "yso" / "train.tsv.gz"
    texts = list(file_format(file).read_texts(file, TableSettings()))  # type: ignore[attr-defined]
    moments = [(time.perf_counter(), usage.processor_seconds)]
    text = fit_text(texts, TextSettings.model_validate(KINDS[kind]))
    moments.append((time.perf_counter(), usage.processor_seconds))
    rows = text.transform(texts)
    moments.append((time.perf_counter(), usage.processor_seconds))
    (counting, counting_processor), (turning, turning_processor) = (
        (after[0] - before[0], after[1] - before[1]) for before, after in pairwise(moments)
    )
    return {
        "documents": len(texts),
        "features": text.feature_count,
        "stored": int(rows.nnz),
        "seconds": counting + turning,
        "counting_processor_seconds": counting_processor,
        "turning_processor_seconds": turning_processor,
    }


def training(name: str) -> dict[str, Any]:
    """Run `fedalc train --dataset yso` and return its result."""
    from fedalc.cli.main import main

    sys.argv = ["fedalc", "train", "--dataset", "yso", "--name", f"text-{name}", "--overwrite", *TRAININGS[name]]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    return dict(json.loads(Path("runs", f"text-{name}", "result.json").read_text()))


class Usage:
    """The memory and processor time of this process and its worker processes, watched by a thread."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._seconds: dict[int, float] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def processor_seconds(self) -> float:
        return time.process_time() + sum(self._seconds.values())

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            with suppress(psutil.NoSuchProcess):
                workers = me.children(recursive=True)
                self.peak_bytes = max(self.peak_bytes, sum(each.memory_info().rss for each in (me, *workers)))
                for worker in workers:
                    used = worker.cpu_times()
                    self._seconds[worker.pid] = used.user + used.system
            time.sleep(0.1)


def measured(step: str) -> dict[str, Any]:
    """Run a step in this process, with its time and memory."""
    usage, began = Usage(), time.perf_counter()
    result = features(step, usage) if step in KINDS else training(step)
    return {
        "result": result,
        "seconds": time.perf_counter() - began,
        "processor_seconds": usage.processor_seconds,
        "peak_mb": usage.peak_bytes / 2**20,
    }


def page(record: dict[str, Any]) -> str:
    lines = [
        "# Raw texts",
        "",
        f"yso: {DOCUMENTS:,} training texts of 95 characters on average, 21,334 labels.",
        "",
    ]
    kinds = [kind for kind in KINDS if kind in record]
    if kinds:
        lines += [
            "## Texts to features",
            "Counting and turning ([text.md](../text.md)), in seconds of processor time; documents per second of it;",
            "memory of all processes, texts included.",
            "",
            "| terms | features | stored numbers | counting | turning | documents/s on one core | memory, MB |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        for kind in kinds:
            found, peak = record[kind]["result"], record[kind]["peak_mb"]
            parts = [found[f"{part}_processor_seconds"] for part in ("counting", "turning")]
            lines.append(
                f"| {kind} | {found['features']:,} | {found['stored']:,} | {parts[0]:.0f} | {parts[1]:.0f} | "
                f"{found['documents'] / sum(parts):,.0f} | {peak:,.0f} |"
            )
    trainings = [name for name in TRAININGS if name in record]
    if trainings:
        lines += [
            "",
            "## One command, from the TSV file to the test",
            "`fedalc train --dataset yso`, and on the same features with `--method omikuji` (Parabel, centralised).",
            "",
            "| | P@1 | P@3 | P@5 | processor seconds | documents/s of it | memory, MB |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        for name in trainings:
            step, metrics = record[name], record[name]["result"]["metrics"]
            figures = " | ".join(f"{metrics[f'P@{k}']:.2f}" for k in (1, 3, 5))
            spent, peak = step["processor_seconds"], step["peak_mb"]
            lines.append(f"| {name} | {figures} | {spent:,.0f} | {DOCUMENTS / spent:,.0f} | {peak:,.0f} |")
        lines += [
            "",
            "The default is `fedalc-exact` with 512 numbers per label here: one round or a search would need too much",
            "memory. 21,334 labels in 512 numbers disturb each other, which costs it the points that Parabel is above.",
        ]
    return "\n".join([*lines, "", "    make bench-text", ""])


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(sys.argv[2])))
        return
    asked = [*(KINDS if "features" in sys.argv[1:] else []), *(name for name in TRAININGS if name in sys.argv[1:])]
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for step in asked or [step for step in (*KINDS, *TRAININGS) if step not in record]:
        print(step, flush=True)
        command = [sys.executable, __file__, "--one", step]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        record[step] = json.loads(out.splitlines()[-1])
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        PAGE.write_text(page(record))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
