"""`make bench-scale`: measure time and memory of each step on generated problems of the largest public sizes.

Every row runs in a separate process and has its own peak memory (VmHWM). The memory of a step is the peak minus the
memory in use when the step began. Earlier rows stay in benchmarks/scale.json until they are measured again. Writes the
table to docs/results/scale.md. The data is synthetic: the results say nothing about quality.

    python benchmarks/scale.py                        all rows
    python benchmarks/scale.py correlations parsing   these
    python benchmarks/scale.py --divide 100           divide every count of the problems; a trial that writes nothing
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

PROBLEMS = ("amazoncat-shaped", "wikilshtc-shaped", "amazon670k-shaped")
CLIENTS_PER_ROUND = 4_000
NEIGHBOURS, DIM = 50, 512
RECALL_CLASSES, RECALL_SAMPLE = 100_000, 10_000
OUT = Path(__file__).with_name("scale.json")
TABLE = Path(__file__).parents[1] / "docs" / "results" / "scale.md"

TARGETS: dict[str, dict[str, float]] = {
    "correlations": {"step_mb": 100, "seconds": 120},
    "mined step": {"peak_mb": 8_000},
    "mined step of 4,000": {"peak_mb": 8_000},
    **{f"round and evaluation, {name}": {"peak_mb": 20_000} for name in PROBLEMS},
}


class Step:
    """Measures seconds and memory of a step. Enter it once all inputs of the step are in memory."""

    def __enter__(self) -> Step:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # elsewhere freed memory still counts
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self._before = memory_mb("VmHWM")
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._held = memory_mb("VmRSS")
        self._began, self._spent = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter() - self._began, time.process_time() - self._spent
        self.step_mb = memory_mb("VmHWM") - self._held

    def row(self, **more: Any) -> dict[str, Any]:
        peak = max(self._before, self.step_mb + self._held)
        times = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        return {**times, "step_mb": self.step_mb, "peak_mb": peak, **more}


def memory_mb(what: str) -> float:
    """Return the memory of this process in MB: VmRSS, current, or VmHWM, peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 2**10


def megabytes(*matrices: csr_matrix) -> float:
    return sum(a.nbytes for m in matrices for a in (m.data, m.indices, m.indptr)) / 2**20


def generation(name: str) -> dict[str, Any]:
    from fedalc.data.synthetic.shapes import make_shaped

    with Step() as step:
        made = make_shaped(name)
    size = megabytes(*(m for split in (made.train, made.test) for m in (split.features, split.labels)))
    return step.row(result_mb=size, note=f"{made.train.features.nnz + made.test.features.nnz:,} values")


def parsing(name: str, folder: Path) -> dict[str, Any]:
    from fedalc.data.formats.xmlc import read_xmlc

    path = folder / name / "train.txt"
    if not path.exists():
        apart("write", name, str(path.parent))
    with Step() as step:
        split = read_xmlc(path)
    size = path.stat().st_size / 2**20
    return step.row(result_mb=megabytes(split.features, split.labels), note=f"{size:,.0f} MB of text")


def correlations(name: str, folder: Path) -> dict[str, Any]:
    from fedalc.labels.correlations import Correlations

    labels = label_sets(name, folder)
    Correlations.from_label_sets(csr_matrix(np.eye(2, dtype=np.float32)))  # triggers lazy imports
    with Step() as step:
        known = Correlations.from_label_sets(labels)
    size = megabytes(known.together) + known.counts.nbytes / 2**20
    return step.row(result_mb=size, note=f"{known.together.nnz // 2:,} pairs of labels occur together")


def collection(name: str) -> dict[str, Any]:
    """Run the real protocol: hash every instance with a key, join messages by digest, count n and c."""
    from fedalc.config.resolve import experiment
    from fedalc.data.synthetic.shapes import make_shaped
    from fedalc.labels.knowledge import learn_labels

    train = make_shaped(name).train
    settings = experiment({"method": "fedalc", "preset": "paper"})
    with Step() as step:
        knowledge = learn_labels(settings, train, looks=1)
    return step.row(note=f"{knowledge.collection['messages']:,} messages, {knowledge.bytes_up / 2**20:,.0f} MB sent")


def mined_step(name: str, folder: Path, participants: int | None = None) -> dict[str, Any]:
    """Measure fedalc's server step on W: for all rows, or for the rows of `participants` labels."""
    import torch

    from fedalc.config.resolve import experiment
    from fedalc.core.nearest import AFFORDABLE, operations
    from fedalc.labels.correlations import Correlations
    from fedalc.labels.knowledge import LabelKnowledge
    from fedalc.methods import make_method

    rows = "all" if participants is None else "participants"
    regularizer = {"neighbours": NEIGHBOURS, "margin": "adaptive", "rows": rows}
    settings = experiment({"method": "fedalc", "preset": "paper", "regularizer": regularizer})
    known = Correlations.from_label_sets(label_sets(name, folder))
    method = make_method(settings, known.label_count, LabelKnowledge(known))
    labels = torch.arange(known.label_count)
    if participants is not None:
        labels = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))[:participants].sort().values
    with Step() as step:
        W = embeddings_in_groups(known.label_count)
        began = time.perf_counter()
        method.server_step(W, labels, torch.Generator().manual_seed(0))
        took = time.perf_counter() - began
    how = "exact" if operations(len(labels), *W.shape) <= AFFORDABLE else "by an index"
    asked = f"{len(labels):,} of {known.label_count:,} × {DIM}, K = {NEIGHBOURS}"
    return step.row(step_seconds=took, how=how, note=f"{asked}: {how}, {took:.0f} s; includes W")


def embeddings_in_groups(count: int, each: int = 50, spread: float = 0.5) -> Any:
    """Return class embeddings that have neighbours, like trained ones: each lies near the centre of its group."""
    import torch

    generator = torch.Generator().manual_seed(0)
    middle = torch.randn(-(-count // each), DIM, generator=generator)
    W = torch.empty(count, DIM)
    for start in range(0, count, 65_536):
        stop = min(start + 65_536, count)
        group = torch.randint(len(middle), (stop - start,), generator=generator)
        rows = middle[group] + spread * torch.randn(stop - start, DIM, generator=generator)
        W[start:stop] = rows / rows.norm(dim=1, keepdim=True)
    return W


def recall(kind: str, how: str, divide: int) -> dict[str, Any]:
    """Measure which share of the K nearest of 1,000 classes among 100,000 is found, and the share of the exact time."""
    classes, drawn = max(5_000, RECALL_CLASSES // divide), max(500, RECALL_SAMPLE // divide)
    import torch

    from fedalc.core.nearest import nearest
    from fedalc.models.class_embeddings import unit_rows

    generator = torch.Generator().manual_seed(3)
    W = embeddings_in_groups(classes)
    if kind == "random":
        W = unit_rows(torch.randn(classes, DIM, generator=generator))
    asked = torch.randperm(len(W), generator=generator)[:1000].sort().values
    sample = torch.randperm(len(W), generator=generator)[:drawn].sort().values
    began = time.perf_counter()
    true = torch.cat([index for _, _, index in nearest(W, NEIGHBOURS, asked, search="exact")])
    exact = (time.perf_counter() - began) * len(W) / len(asked)
    few = asked if how == "sample" else None  # only a sample's cost is proportional to the rows
    with Step() as step:
        search = {"candidates": sample} if how == "sample" else {"search": "index"}
        parts = list(nearest(W, NEIGHBOURS, few, **search))  # type: ignore[arg-type]
    took = step.seconds * (len(W) / len(asked) if how == "sample" else 1)
    index = torch.cat([index for _, _, index in parts])
    found = index if how == "sample" else index[asked]
    share = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), true.tolist(), strict=True)) / true.numel()
    name = f"a sample of {drawn:,} classes" if how == "sample" else "an index"
    note = f"{name} finds {share:.1%} of the {NEIGHBOURS} nearest of {len(W):,}, in {took / exact:.2f} of the time"
    return step.row(recall=share, of_exact_time=took / exact, note=note)


def round_and_evaluation(name: str) -> dict[str, Any]:
    """Measure a round of about 4,000 clients and an evaluation on the whole test set, from loaded data to metrics."""
    from dataclasses import replace

    from fedalc.config.resolve import experiment
    from fedalc.data.synthetic.shapes import make_shaped
    from fedalc.evaluation.evaluate import evaluate
    from fedalc.labels.correlations import Correlations
    from fedalc.labels.knowledge import LabelKnowledge
    from fedalc.models.encoders import scale_rows
    from fedalc.training.federated import simulated

    problem = make_shaped(name)
    share = min(1.0, CLIENTS_PER_ROUND / problem.label_count)
    regularizer = {"neighbours": NEIGHBOURS, "rows": "participants"}
    settings = experiment(
        {"method": "fedalc", "preset": "paper", "server": {"participation": share}, "regularizer": regularizer}
    )
    scaling = settings.encoder.features
    train = replace(problem.train, features=scale_rows(problem.train.features, scaling))
    test = replace(problem.test, features=scale_rows(problem.test.features, scaling))
    label_count = problem.label_count
    del problem
    with Step() as step:
        knowledge = LabelKnowledge(Correlations.from_label_sets(train.labels))
        federated = simulated(settings, train, knowledge)
        began = time.perf_counter()
        federated.run_round()
        ran = time.perf_counter()
        evaluate(federated.averaged_model(), test, federated.held)
        evaluated = time.perf_counter()
    clients = round(share * label_count)
    note = f"{clients:,} of {label_count:,} clients: round {ran - began:.1f} s, "
    note += f"evaluation of {len(test):,} instances {evaluated - ran:.1f} s"
    return step.row(round_seconds=ran - began, evaluation_seconds=evaluated - ran, note=note)


def label_sets(name: str, folder: Path) -> csr_matrix:
    """Return the train labels of a problem, made by another process so that this one uses no memory for it."""
    path = folder / f"{name}-labels.npz"
    if not path.exists():
        apart("labels", name, str(path))
    with np.load(path) as kept:
        return csr_matrix((kept["data"], kept["indices"], kept["indptr"]), shape=tuple(kept["shape"]))


def make_labels(name: str, path: str) -> None:
    from fedalc.data.synthetic.shapes import shaped_labels

    labels = shaped_labels(name)
    np.savez(path, data=labels.data, indices=labels.indices, indptr=labels.indptr, shape=labels.shape)


def write_files(name: str, folder: str) -> None:
    from fedalc.data.synthetic.shapes import write_shaped

    write_shaped(name, Path(folder))


HELPERS: dict[str, Callable[[str, str], None]] = {"labels": make_labels, "write": write_files}


def rows(divide: int) -> Iterator[tuple[str, Callable[[Path], dict[str, Any]]]]:
    """Yield (name, measurement) for each row of the table."""

    def sized(name: str) -> str:
        return name if divide == 1 else f"{name}-{divide}th"

    for name in PROBLEMS:
        yield f"generation, {name}", lambda _, name=name: generation(sized(name))
    yield "parsing", lambda folder: parsing(sized("amazoncat-shaped"), folder)
    yield "correlations", lambda folder: correlations(sized("amazoncat-shaped"), folder)
    yield "collection", lambda _: collection(sized("amazoncat-shaped"))
    yield "mined step", lambda folder: mined_step(sized("amazon670k-shaped"), folder)
    yield "mined step of 4,000", lambda folder: mined_step(sized("amazon670k-shaped"), folder, CLIENTS_PER_ROUND)
    for kind in ("in groups", "random"):
        for how in ("index", "sample"):
            yield f"recall, {how}, W {kind}", lambda _, kind=kind, how=how: recall(kind, how, divide)
    for name in PROBLEMS:
        yield f"round and evaluation, {name}", lambda _, name=name: round_and_evaluation(sized(name))


def apart(*words: str) -> str:
    """Run this script in a separate process and return its output."""
    return subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def met(row: str, found: dict[str, Any]) -> str:
    """Return the table's text on a row's targets; empty if it has none."""
    units = {"seconds": "s", "step_mb": "MB", "peak_mb": "MB in total"}
    asked = TARGETS.get(row, {})
    said = " and ".join(f"{limit:,.0f} {units[what]}" for what, limit in asked.items())
    missed = any(found[what] >= limit for what, limit in asked.items())
    return f"under {said}: {'missed' if missed else 'met'}" if asked else ""


def table(measured: dict[str, dict[str, Any]]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Scale",
        "",
        "`make bench-scale` (`python benchmarks/scale.py ROW …` for single rows). The problems are **generated**:",
        "synthetic data with the sizes of AmazonCat-13K, WikiLSHTC-325K and Amazon-670K ([scale.md](../scale.md)), so",
        "no figure applies to the real datasets. Each row runs in a separate process. *Step MB*: the peak memory minus",
        "the memory in use when the step began; it includes the step's result. *Peak MB*: the whole process, including",
        "libraries, and including data generation if it runs in the same process. On a shared machine the CPU seconds",
        "are more reliable than the seconds.",
        "",
        "| step | seconds | CPU seconds | step MB | of that, the result | peak MB | | target |",
        "|---|--:|--:|--:|--:|--:|---|---|",
    ]
    for row, found in measured.items():
        result = f"{found['result_mb']:,.0f}" if "result_mb" in found else ""
        lines.append(
            f"| {row} | {found['seconds']:.1f} | {found['cpu_seconds']:.1f} | {found['step_mb']:,.0f} | {result} "
            f"| {found['peak_mb']:,.0f} | {found['note']} | {met(row, found)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    from rich.console import Console

    parser = argparse.ArgumentParser(description="Time and memory on generated problems of extreme size.")
    parser.add_argument("rows", nargs="*", help="names of rows, or prefixes of names (default: all)")
    parser.add_argument("--divide", type=int, default=1, help="divide every count of the problems; writes nothing")
    asked = parser.parse_args()
    if asked.divide < 1:
        parser.error("--divide must be a whole number of at least 1")
    console = Console(width=150)
    names = [name for name, _ in rows(asked.divide)]
    chosen = [name for name in names if not asked.rows or any(name.startswith(word) for word in asked.rows)]
    if not chosen:
        console.print(f"no row matches. Available: {'; '.join(names)}")
        return 2
    before = json.loads(OUT.read_text())["rows"] if OUT.exists() and asked.divide == 1 else {}
    good = True
    with tempfile.TemporaryDirectory(prefix="fedalc-scale-") as folder:
        for name in chosen:
            with console.status(name):
                before[name] = json.loads(apart("row", name, str(asked.divide), folder).splitlines()[-1])
            found, verdict = before[name], met(name, before[name]) if asked.divide == 1 else ""
            good &= not verdict.endswith("missed")
            took = f"{found['seconds']:.1f} s, step {found['step_mb']:,.0f} MB, peak {found['peak_mb']:,.0f} MB"
            console.print(f"{name}: {took}; {found['note']}{'; ' * bool(verdict)}{verdict}", highlight=False)
            if asked.divide == 1:
                measured = {row: before[row] for row in names if row in before}
                machine = {"cores": os.cpu_count(), "python": platform.python_version()}
                OUT.write_text(
                    json.dumps({"command": "make bench-scale", "machine": machine, "rows": measured}, indent=1) + "\n"
                )
                TABLE.write_text(table(measured))
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "row":
        row, divide, folder = sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
        print(json.dumps(dict(rows(divide))[row](folder)))
    elif len(sys.argv) == 4 and sys.argv[1] in HELPERS:
        HELPERS[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
