"""`make bench-kernels`: compare each part of a fused round, a server step and an evaluation with its hardware limit.

Uses eurlex15k and the mlp, in one process. Matrix products are compared with the matrix-multiply peak. Parts that move
rows are compared with the copying bandwidth, by the bytes they read and write; that share can be above one if the rows
fit into the processor's cache. Writes benchmarks/kernels.json and docs/results/kernels.md.

    FEDALC_DATA=… python benchmarks/kernels.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from timing import timed

OUT = Path(__file__).with_name("kernels.json")
PAGE = Path(__file__).parents[1] / "docs" / "results" / "kernels.md"


def measure() -> list[dict[str, Any]]:
    import torch

    from fedalc.config.resolve import experiment
    from fedalc.core.nearest import nearest
    from fedalc.core.sparse_products import WeightedBags, products_at
    from fedalc.data import Split, load_dataset
    from fedalc.engines.fused_batches import Portion
    from fedalc.evaluation.evaluate import evaluate
    from fedalc.models.encoders import Chance, scale_rows
    from fedalc.training.federated import knowledge_for, simulated

    settings = experiment({"method": "fedalc", "encoder": {"name": "mlp", "dropout": 0.0}})
    dataset = load_dataset("eurlex15k")
    train, test = (Split(scale_rows(s.features, "unit"), s.labels) for s in (dataset.train, dataset.test))
    training = simulated(settings, train, knowledge_for(settings, train))
    federation, model, W = training.federation, training.model, training.model.W
    chance = Chance(settings, 1, W)
    block = next(Portion.of(federation, federation.clients, chance).blocks(settings.block_rows, W))
    matrix, dim = model.encoder.embedding.detach(), W.shape[1]
    layers, rows = list(model.encoder.layers), len(block.rows)
    values, pairs = len(block.rows.rows.index), len(block.label)
    present, transposed = block.rows.transposed
    gradient = torch.randn(rows, matrix.shape[1])
    g, slope = torch.randn(rows, dim), torch.randn(pairs)
    activations = [torch.randn(rows, layer.in_features) for layer in layers]
    outputs = [torch.randn(rows, layer.out_features) for layer in layers]
    weights = [layer.weight.detach() for layer in layers]
    dense = 2 * rows * sum(weight.numel() for weight in weights)

    def forward() -> None:
        for x, weight in zip(activations, weights, strict=True):
            x @ weight.T

    def backward() -> None:
        for x, y, weight in zip(activations, outputs, weights, strict=True):
            y @ weight, y.T @ x

    classes = len(W)
    held = training.held
    scored = len(test)
    with torch.no_grad():
        return [
            part("dense layers, forward", timed(forward), gflop=dense / 1e9),
            part("dense layers, both gradients", timed(backward), gflop=2 * dense / 1e9),
            part("sparse layer, forward", timed(lambda: block.rows.rows @ matrix), gb=_gb(values + rows, matrix)),
            part("sparse layer, gradient", timed(lambda: transposed @ gradient), gb=_gb(values + len(present), matrix)),
            part(
                "scores of pairs", timed(lambda: products_at(g, W, block.instance, block.label)), gb=_gb(2 * pairs, W)
            ),
            part(
                "gradients of the instances' embeddings",
                timed(lambda: WeightedBags(block.label, block.starts, slope) @ W),
                gb=_gb(pairs + rows, W),
            ),
            part(
                "gradients of the rows",
                timed(lambda: block.by_client(slope) @ g),
                gb=_gb(pairs + len(block.present), W),
            ),
            part(
                "nearest classes, all",
                timed(lambda: list(nearest(W, 10, search="exact")), 3),
                gflop=2 * classes**2 * dim / 1e9,
            ),
            part(
                "evaluation of the test set",
                timed(lambda: evaluate(model, test, held), 3),
                gflop=scored * (2 * classes * dim + dense / rows) / 1e9,
            ),
        ]


def part(name: str, seconds: float, gflop: float = 0.0, gb: float = 0.0) -> dict[str, Any]:
    return {"part": name, "seconds": seconds, "gflop": gflop, "gb": gb}


def _gb(rows: int, matrix: Any) -> float:
    """Return the GB in this many rows of the matrix."""
    return rows * matrix.shape[1] * matrix.element_size() / 1e9


def page(machine: dict[str, float], parts: list[dict[str, Any]]) -> str:
    lines = [
        "# Each part of a round compared with its limit",
        "",
        "`FEDALC_DATA=… make bench-kernels`: eurlex15k, mlp, one block of 2,048 instances,",
        f"{machine['cores']:.0f} cores. Matrix-multiply peak {machine['peak_gflops']:.0f} GFLOP/s, copying",
        f"{machine['copy_gbps']:.0f} GB/s, both measured in the same process. Rows that fit into the processor's",
        "cache move faster than copying.",
        "",
        "| part | ms | GFLOP/s | of the peak | GB/s | of copying |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for one in parts:
        speed, moved = one["gflop"] / one["seconds"], one["gb"] / one["seconds"]
        by_flops = f"{speed:.0f} | {speed / machine['peak_gflops']:.2f} | |" if one["gflop"] else ""
        by_bytes = f" | | {moved:.1f} | {moved / machine['copy_gbps']:.2f}" if one["gb"] else ""
        lines.append(f"| {one['part']} | {1000 * one['seconds']:.1f} | {by_flops}{by_bytes} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    from peers.machine import copy_gbps, peak_gflops
    from rich.console import Console
    from rich.markdown import Markdown

    if not os.environ.get("FEDALC_DATA"):
        print("FEDALC_DATA is not set: the benchmark needs the dataset eurlex15k")
        return 2
    console = Console(width=120)
    with console.status("measuring"):
        machine = {"peak_gflops": peak_gflops(), "copy_gbps": copy_gbps(), "cores": float(os.cpu_count() or 0)}
        parts = measure()
    console.print(Markdown(page(machine, parts)))
    OUT.write_text(json.dumps({"command": "make bench-kernels", "machine": machine, "parts": parts}, indent=1) + "\n")
    PAGE.write_text(page(machine, parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
