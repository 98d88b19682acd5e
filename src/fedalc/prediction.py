"""Predictions as a file people and programs read: CSV, or JSON lines."""

from __future__ import annotations

import csv
import json
from typing import Literal, TextIO

import numpy as np

Format = Literal["csv", "jsonl"]


def write_predictions(
    out: TextIO, labels: np.ndarray, scores: np.ndarray, names: tuple[str, ...], form: Format = "csv"
) -> None:
    """CSV: one line per instance and rank. JSON lines: one line per instance, its labels best first."""
    if form == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("instance", "rank", "label", "name", "score"))
        for instance, (row, row_scores) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
            for rank, (label, score) in enumerate(zip(row, row_scores, strict=True), 1):
                writer.writerow((instance, rank, label, names[label], f"{score:.6f}"))
        return
    for instance, (row, row_scores) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
        best = [
            {"label": label, "name": names[label], "score": round(score, 6)}
            for label, score in zip(row, row_scores, strict=True)
        ]
        out.write(json.dumps({"instance": instance, "labels": best}, ensure_ascii=False) + "\n")
