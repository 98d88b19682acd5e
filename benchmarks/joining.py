"""Compare our join of label messages with plain Python, on a problem of WikiLSHTC's size, in one run.

1,778,351 instances, 325,056 labels with a long tail, about 5.7 million messages. The plain version is the obvious one:
a dict of sets, then counting labels and pairs in dicts. It gets its messages as Python objects, built before the timing
starts. Both must return the same n and c. Each side runs in a separate process, to measure its memory. Seconds are CPU
seconds, since both use one thread and the machine may be shared. Writes benchmarks/joining.json.

    python benchmarks/joining.py
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.labels.collection.messages import Messages, Protocol, as_words

INSTANCES, LABELS, MESSAGES = 1_778_351, 325_056, 5_700_000
FEW = 1_000
"""Number of clients. A second run has one client, and so one `Messages` object, per label, as in the paper."""
REPEATS = 3
RATIO_TARGET, MEMORY_TARGET_MB = 10.0, 2048.0
OUT = Path(__file__).with_name("joining.json")


def problem(clients: int) -> list[Messages]:
    """Return messages with power-law labels, each at least once, on random instances; each label has one client."""
    random = np.random.default_rng(0)
    share = 1.0 / np.arange(20, LABELS + 20) ** 0.8
    extra = random.choice(LABELS, MESSAGES - max(LABELS, INSTANCES), p=share / share.sum())
    label = np.concatenate([np.arange(LABELS), random.choice(LABELS, INSTANCES - LABELS, p=share / share.sum()), extra])
    instance = np.concatenate([random.permutation(INSTANCES), random.integers(0, INSTANCES, len(extra))])
    pairs = np.unique(label * INSTANCES + instance)  # sorted by label, so a client's messages are contiguous
    label, instance = pairs // INSTANCES, pairs % INSTANCES
    owner = label * clients // LABELS
    digests = random.integers(0, 256, (INSTANCES, 16), dtype=np.uint8)
    pseudonyms = random.integers(0, 256, (LABELS, 16), dtype=np.uint8)
    first_label = np.searchsorted(np.arange(LABELS) * clients // LABELS, np.arange(clients + 1))
    bounds = np.searchsorted(owner, np.arange(clients + 1))
    protocol = Protocol("hmac-sha256", "content", 16, "0" * 16)
    sent = []
    for client in range(clients):
        part = slice(bounds[client], bounds[client + 1])
        own = slice(first_label[client], first_label[client + 1])
        labels = (label[part] - own.start).astype(np.uint32)
        part_digests = digests[instance[part]]
        order = np.lexsort((labels, *as_words(part_digests).T[::-1]))  # the order in which a client sends them
        sent.append(Messages(protocol, f"{client:06d}", pseudonyms[own], part_digests[order], labels[order]))
    return sent


def ours(clients: int) -> dict[str, Any]:
    from fedalc.labels.collection.join import join
    from fedalc.labels.correlations import Correlations

    sent = problem(clients)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    join_times, count_times = [], []
    for _ in range(REPEATS):
        began = time.process_time()
        joined = join(sent)
        joined_at = time.process_time()
        known = Correlations.from_label_sets(joined.label_sets)
        join_times.append(joined_at - began)
        count_times.append(time.process_time() - joined_at)
    return {
        "label_sets_seconds": min(join_times),
        "counts_seconds": min(count_times),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory_before_join_mb": before,
        "messages": sum(len(part) for part in sent),
        "instances": known.instances,
        "pairs": known.together.nnz,
        "checksum": checksum(known.counts, known.together.indptr, known.together.indices, known.together.data),
    }


def plain_python(clients: int) -> dict[str, Any]:
    sent = [
        (part.digests.tobytes(), [row.tobytes() for row in part.pseudonyms], part.labels.tolist())
        for part in problem(clients)
    ]
    messages = [
        (digests[16 * i : 16 * i + 16], pseudonyms[label])
        for digests, pseudonyms, labels in sent
        for i, label in enumerate(labels)
    ]
    del sent
    label_times, count_times = [], []
    for _ in range(REPEATS):
        gc.collect()
        began = time.process_time()
        label_sets: dict[bytes, set[bytes]] = {}
        for digest, pseudonym in messages:
            if digest in label_sets:
                label_sets[digest].add(pseudonym)
            else:
                label_sets[digest] = {pseudonym}
        joined_at = time.process_time()
        n: dict[bytes, int] = {}
        c: dict[tuple[bytes, bytes], int] = {}
        for labels in label_sets.values():
            for u in labels:
                n[u] = n.get(u, 0) + 1
                for v in labels:
                    if u != v:
                        c[u, v] = c.get((u, v), 0) + 1
        label_times.append(joined_at - began)
        count_times.append(time.process_time() - joined_at)
        instances = len(label_sets)
    place = {pseudonym: index for index, pseudonym in enumerate(sorted(n))}
    pairs = np.array([place[u] * LABELS + place[v] for u, v in c])
    order = np.argsort(pairs)
    rows = pairs[order] // LABELS
    return {
        "label_sets_seconds": min(label_times),
        "counts_seconds": min(count_times),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "messages": len(messages),
        "instances": instances,
        "pairs": len(c),
        "checksum": checksum(
            np.array([n[pseudonym] for pseudonym in place]),
            np.searchsorted(rows, np.arange(len(place) + 1)),
            pairs[order] % LABELS,
            np.array(list(c.values()))[order],
        ),
    }


def checksum(*arrays: np.ndarray) -> str:
    import hashlib

    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
    return digest.hexdigest()


def main() -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=130)
    table = Table(title=f"{INSTANCES:,} instances, {LABELS:,} labels; best of {REPEATS}")
    for column in ("clients", "stage", "ours s", "plain Python s", "ratio", "target", "peak memory MB, ours / plain"):
        table.add_column(column, justify="left" if column in ("clients", "stage") else "right")

    def child(side: str, clients: int) -> dict[str, Any]:
        with console.status(f"{side}, {clients:,} clients"):
            command = [sys.executable, __file__, side, str(clients)]
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    few = child("ours", FEW)
    plain = child("plain", FEW)  # for plain Python the number of clients makes no difference
    rows, good = [], True
    for clients, mine in ((FEW, few), (LABELS, child("ours", LABELS))):
        same = mine["checksum"] == plain["checksum"] and mine["instances"] == plain["instances"]
        stages = {
            "label sets": (mine["label_sets_seconds"], plain["label_sets_seconds"]),
            "n and c": (mine["counts_seconds"], plain["counts_seconds"]),
        }
        stages["both"] = (sum(ours for ours, _ in stages.values()), sum(theirs for _, theirs in stages.values()))
        ratios = {stage: theirs / ours for stage, (ours, theirs) in stages.items()}
        good &= same and mine["memory_mb"] < MEMORY_TARGET_MB
        good &= clients != FEW or ratios["label sets"] >= RATIO_TARGET
        for stage, (ours_s, theirs_s) in stages.items():
            table.add_row(
                f"{clients:,}" if stage == "label sets" else "", stage, f"{ours_s:.2f}", f"{theirs_s:.2f}",
                f"{ratios[stage]:.1f}×", f"≥ {RATIO_TARGET:.0f}×" if clients == FEW and stage == "label sets" else "",
                f"{mine['memory_mb']:.0f} / {plain['memory_mb']:.0f}" if stage == "both" else "",
            )  # fmt: skip
        rows.append({"clients": clients, "same_n_and_c": same, "ratios": ratios, "ours": mine})
    console.print(table)
    console.print(
        "same n and c on both sides" if all(row["same_n_and_c"] for row in rows) else "[red]n or c differ[/red]"
    )
    console.print("all targets met" if good else "[red]a target is missed[/red]")
    OUT.write_text(
        json.dumps({"command": "python benchmarks/joining.py", "plain_python": plain, "rows": rows}, indent=1) + "\n"
    )
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps({"ours": ours, "plain": plain_python}[sys.argv[1]](int(sys.argv[2]))))
    else:
        sys.exit(main())
