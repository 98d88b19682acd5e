"""Write docs/results/schedules.md."""

from __future__ import annotations

from typing import Any

NAMES = {
    "lockstep": "`lockstep`",
    "plain": "plain PyTorch loop",
    "pfl": "pfl",
    "flower": "Flower without Ray",
    "clients": "`clients`",
    "fused": "`fused`",
}
JOBS = {
    "bibtex": "Bibtex",
    "eurlex15k": "eurlex15k",
    "dense": "200 clients × 25 dense instances of 5,000 features",
}
CELLS = 20
WORDS = """\
# Local epochs and minibatches: seconds per round

`{command}`: each engine in a process of its own with one thread, one after another, `lockstep` twice in each cell.
Processor seconds of a round after a warm-up round. All start from the same weights and take the same steps in the same
order; "differs by" is the largest relative difference to `lockstep` in the losses and in the norm of θ, single
precision. Of Bibtex's 159 and eurlex15k's 3,286 clients some of all sizes take part, as the titles say. Clients with 25
instances take the same steps with batches of 32 as with full batches. If every client takes one full-batch step,
`lockstep` computes the round as `fused` does.

The job: loss max(0, 0.9 - gᵀw)², fixed rows, θ averaged with weights n_u/Σn. mlp: the paper's (512, 1024, 1024, 512);
linear: one matrix with 512 columns. Setup of the others: [speed.md](speed.md).
"""
LIMITS = """\
## What limits a round

The least that must be computed and moved: operations of the dense layers (three products for each visit of a record)
and of the sparse one, and bytes, with θ read once per step for all clients. Corrections of later steps are left out, so
no engine can reach 1. "of the limit" is the larger of operations / peak and bytes / copying, divided by `lockstep`'s
seconds. "most × plain": the plain loop's seconds divided by the limit, which no engine can exceed. "a loop moves": the
least for one client after the other, each with a copy of θ. One thread of this machine:
{peak:.0f} GFLOP/s in matrix products, {copy:.1f} GB/s copying (the best of several measurements during the run; "of the
limit" is too low if other programs shared the processor).

| job | encoder | epochs | batch | GFLOP | GB | a loop moves, GB | limited by | of the limit | most × plain |
|---|---|--:|--:|--:|--:|--:|---|--:|--:|
"""


def markdown(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    parts = [WORDS.format(command=results["command"]), f"{versions}.\n", _verdict(results["cells"])]
    for job, encoder in dict.fromkeys((cell["job"], cell["encoder"]) for cell in results["cells"]):
        cells = [cell for cell in results["cells"] if (cell["job"], cell["encoder"]) == (job, encoder)]
        parts.append(_table(f"{JOBS[job]}: {cells[0]['clients']} clients, {encoder}", cells))
    if results["machine"]:
        parts.append(_limits(results))
    return "\n".join(parts)


def _verdict(cells: list[dict[str, Any]]) -> str:
    missed = [
        f"{JOBS[cell['job']]}, {cell['encoder']}, {_schedule(cell)}: {_times(row)} of {NAMES[way]} (wanted "
        f"{row['target']:g})"
        for cell in cells
        for way, row in cell["rows"].items()
        if not row["met"]
    ]
    goals = "Targets: 1.5 times as fast as the plain loop with the mlp, 5 times with linear, never behind pfl."
    measured = f"{len(cells)} of {CELLS} cells are measured so far. " if len(cells) < CELLS else ""
    return f"{goals} {measured}{'Missed: ' + '; '.join(missed) if missed else 'No measured cell misses its target'}.\n"


def _schedule(cell: dict[str, Any]) -> str:
    return f"E = {cell['epochs']}, {'full batch' if cell['batch'] is None else 'batch ' + str(cell['batch'])}"


def _times(row: dict[str, Any]) -> str:
    return "–" if row["ratio"] is None else f"{row['ratio']:.2f} ×"


def _table(title: str, cells: list[dict[str, Any]]) -> str:
    lines = [f"## {title}\n", "| | " + " | ".join(_schedule(cell) for cell in cells) + " | peak MB | differs by |"]
    lines.append("|---|" + "--:|" * (len(cells) + 2))
    for way, name in NAMES.items():
        rows = [cell["rows"].get(way, {}) for cell in cells]
        good = [row for row in rows if "cpu_seconds" in row]
        if not good:
            continue
        memory, differs = (max(row[key] for row in good) for key in ("memory_mb", "differs_by"))
        shown = " | ".join(_cell(way, row) for row in rows)
        lines.append(f"| {name} | {shown} | {memory:.0f} | {'' if way == 'lockstep' else f'{differs:.0e}'} |")
    return "\n".join(lines) + "\n"


def _cell(way: str, row: dict[str, Any]) -> str:
    if "cpu_seconds" not in row:
        return f"failed: {row['failed']}" if "failed" in row else ""
    seconds = f"{row['cpu_seconds']:.2f} s"
    return seconds if way == "lockstep" else f"{seconds} ({_times(row)})"


def _limits(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = []
    for cell in results["cells"]:
        need, ours = cell["bounds"], cell["rows"]["lockstep"].get("cpu_seconds")
        by = {"products": need["gflop"] / machine["peak_gflops"], "moving": need["gb"] / machine["copy_gbps"]}
        limit = max(by, key=lambda one: by[one])
        plain = cell["rows"]["plain"].get("cpu_seconds")
        batch, share = cell["batch"] or "full", "–" if ours is None else f"{by[limit] / ours:.2f}"
        most = "–" if plain is None else f"{plain / by[limit]:.1f}"
        lines.append(
            f"| {JOBS[cell['job']]} | {cell['encoder']} | {cell['epochs']} | {batch} | {need['gflop']:.0f} | "
            f"{need['gb']:.2f} | {need['gb_of_a_loop']:.1f} | {limit} | {share} | {most} |"
        )
    return LIMITS.format(peak=machine["peak_gflops"], copy=machine["copy_gbps"]) + "\n".join(lines) + "\n"
