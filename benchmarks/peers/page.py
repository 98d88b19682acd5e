"""Write docs/results/speed.md and print the same tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

COLUMNS = ("", "s/round", "× fused", "× mixed", "target", "CPU s/round", "peak MB", "differs by", "note")
WORDS = """\
`FEDALC_DATA=… make bench`: one run on one machine, each row in a separate process, one after another.

The job: the paper's mlp; each client takes one full-batch step per round on its positives, with loss
max(0, 0.9 - gᵀw)²; fixed rows, θ averaged with weights n_u/Σn, single precision, the same initial weights for all.
Seconds are the median of the rounds after the first; `fused` is measured at the beginning, in the middle and at the end
of each job. "differs by": the largest relative difference to `fused` in the clients' mean losses of {rounds} rounds and
in the norm of θ after them. CPU seconds, of all threads and processes, are more reliable than seconds if the machine
was not idle. Mixed precision: the dense layers of `fused` multiply in bfloat16. The others could do this too (tried by
hand on Bibtex: docs/performance.md; not in this run). Targets are for `fused` in full precision; "met by mixed" marks a
target that only mixed precision meets.

Setup of the others: sparse features go into an `nn.EmbeddingBag` with weights (of four options the fastest on
eurlex15k, and within 2% of the fastest on Bibtex), dense ones into an `nn.Linear`; tensors are built once. The plain
loop has one local module and in-place sums. pfl: its simulated backend, one process, no evaluation in timed rounds.
Flower: FedAvg and a client as in its PyTorch examples, data kept between messages, Ray on the loopback address. Tuned
by hand: the module is kept too, and there is one worker per core (one worker with all threads was slower). As in its
examples: a new module for each message, and two cores per client, the default. Without Ray: the tuned apps called in
one process, without copying. Flower's FedAvg holds all replies, so its memory grows with the number of clients. Memory
of several processes counts shared pages once.
"""


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row.get("failed"):
        return (row["name"], "–", "–", "–", target_text(row), "–", "–", "–", f"failed: {row['failed']}")
    mark = "*" if row["scaled"] else ""
    return (
        row["name"],
        f"{row['seconds_per_round']:.3f}{mark}",
        times(row["ratio"]),
        times(row["ratio_to_mixed"]),
        target_text(row),
        f"{row['cpu_seconds_per_round']:.2f}{mark}",
        f"{row['memory_mb']:.0f}",
        f"{row['differs_by']:.0e}" if row["differs_by"] is not None else "",
        row["note"],
    )


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}"


def target_text(row: dict[str, Any]) -> str:
    if row["target"] is None:
        return ""
    with_mixed = (row.get("ratio_to_mixed") or 0) >= row["target"]
    missed = "" if row["met"] else " met by mixed" if with_mixed else " missed"
    return f"≥ {row['target']:.0f}{missed}"


def terminal_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("", "note") else "right")
    for row in rows:
        table.add_row(*cells(row))
    return table


def markdown(results: dict[str, Any]) -> str:
    machine, versions = results["machine"], results["versions"]
    parts = [WORDS.format(rounds=results["rounds"])]
    parts.append(
        f"{machine['cores']:.0f} cores, matrix-multiply peak {machine['peak_gflops']:.0f} GFLOP/s, copying "
        f"{machine['copy_gbps']:.0f} GB/s. Other programs used {results['busy_before']:.0f}% of it before. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ". All use as many threads as cores (GOMP_SPINCOUNT=2000: waiting threads spin only briefly).\n"
    )
    for job in results["jobs"]:
        parts.append(f"## {job['title']}\n")
        rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(cells(row) for row in job["rows"])]
        parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n")
        parts.extend(f"{line}\n" for line in job["remarks"])
    parts.append(results["verdict"] + "\n")
    return "\n".join(parts)
