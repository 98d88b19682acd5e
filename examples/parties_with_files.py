"""A folder per party: simulate with files what a deployment of these parties would do. A few seconds.

The same on the command line: `fedalc train --dataset clinics/`. What counts how often: docs/parties.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import fedalc

LABELS = ["asthma", "diabetes", "fever", "migraine"]


def write(path: Path, rows: int, held: list[str], seed: int) -> None:
    """Write the records of a party: it labels only what it treats."""
    draw = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        has = draw.choice(held, draw.integers(1, min(3, len(held) + 1)), replace=False)
        values = draw.normal(size=len(LABELS)) * 0.3
        values[[LABELS.index(label) for label in has]] += 1
        numbers = ",".join(f"{value:.4f}" for value in values)
        lines.append(f"{numbers},{'|'.join(sorted(has))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["a,b,c,d,labels", *lines]) + "\n")


with tempfile.TemporaryDirectory() as folder:
    clinics = Path(folder) / "clinics"
    write(clinics / "north" / "train.csv", 120, ["asthma", "fever"], seed=1)
    write(clinics / "south" / "train.csv", 150, ["fever", "migraine"], seed=2)  # fever is at both
    write(clinics / "west" / "train.csv", 90, ["diabetes"], seed=3)
    write(clinics / "test" / "test.csv", 200, LABELS, seed=4)  # belongs to nobody

    run = fedalc.train(clinics, method="fedalc-exact")
    print(run)
    print(f"{run.result['clients']} clients (a label at a party), {len(run.model.label_names)} labels")

    # One place that had all records would find the same model.
    central = fedalc.train(clinics, method="fedalc-exact", clients="labels")
    difference = np.abs(run.model.scores(np.eye(4)) - central.model.scores(np.eye(4))).max()
    print(f"in one place: {central.result['clients']} clients, {central}")
    print(f"largest difference of a score: {difference:.1g}")
