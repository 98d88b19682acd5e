"""A small table, and results made by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fedalc.config.experiment import Experiment
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.engines.traffic import Ledger
from fedalc.models.encoders import encoder_size
from fedalc.reproduction.communication.measured import Round
from fedalc.reproduction.communication.traffic import Shape, encoder_traffic
from fedalc.reproduction.results import Cell, Curve, Line, Outcome, Result
from tests.cli.test_main import write_xmlc

TABLE = """
title = "Small"
paper = "Little"
dataset = "demo"
seeds = [0, 1]
figures = ["clients", "curves-lambda", "lambda", "fixed", "convergence"]
notes = ["A note."]
rows = [
    { name = "Oracle", method = "fedavg-fixed", cell = "oracle", presets = ["oracles"], published = [60, 40, 30], footnote = "Not really." },
    { name = "FedAvg", method = "fedavg", published = [11.6, 9.11, 7.84] },
    { name = "FedALC", method = "fedalc", cell = "fedalc-lambda-1", lambda = 1, published = [58.72, 35.83, 26.62] },
    { name = "FedALC", method = "fedalc", cell = "fedalc-lambda-10", lambda = 10, published = [59.67, 36.04, 27.18] },
    { name = "FedALC, tuned", method = "fedalc", presets = ["strong"] },
]
"""  # noqa: E501
CELLS = {
    "oracles/oracle": 'method = "fedavg-fixed"',
    "paper/fedavg": 'method = "fedavg"\npreset = "paper"',
    "strong/fedavg": 'method = "fedavg"',
    "paper/fedalc-lambda-1": 'method = "fedalc"\npreset = "paper"\nregularizer.lambda = 1.0',
    "strong/fedalc-lambda-1": 'method = "fedalc"\nregularizer.lambda = 1.0',
    "paper/fedalc-lambda-10": 'method = "fedalc"\npreset = "paper"\nregularizer.lambda = 10.0',
    "strong/fedalc-lambda-10": 'method = "fedalc"\nregularizer.lambda = 10.0',
    "strong/fedalc": 'method = "fedalc"',
}
size_of = cache(encoder_size)
TINY = ["encoder.dim=8", "encoder.embedding=8", "encoder.hidden=[8]", "selection.every=1", "server.ema=0.0"]


def write_table(folder: Path, **changes: str) -> Path:
    """`changes`: more lines of a cell, by its name with _ for / and -."""
    folder.mkdir(parents=True)
    (folder / "table.toml").write_text(TABLE)
    for name, text in CELLS.items():
        more = changes.get(name.replace("/", "_").replace("-", "_"), "")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.toml").write_text(f'dataset = "demo"\n{text}\n{more}\n')
    return folder


def write_data(folder: Path) -> Path:
    folder.mkdir(parents=True)
    dataset = make_demo(DemoSize(train=150, test=40, words=300))
    write_xmlc(folder / "train.txt", dataset.train)
    write_xmlc(folder / "test.txt", dataset.test)
    return folder


def cell(*precisions: float, missing: dict[int, str] | None = None, metric: str | None = "test P@1") -> Cell:
    """Return one result per P@1, with P@3 and P@5 half and a third of it, and a loss that halves each round."""
    results = [
        Result(seed=seed, metrics={"P@1": p, "P@3": p / 2, "P@5": p / 3}, cost={"rounds": 8}, collapse={})
        for seed, p in enumerate(precisions)
    ]
    if not results:
        return Cell(missing=missing or {})
    rounds = list(range(1, 9))
    curve = Curve(
        metric=metric,
        rounds=rounds,
        precision=[None if metric is None else precisions[0] * r / 8 for r in rounds],
        loss=[0.5**r for r in rounds],
    )
    return Cell(results=results, missing=missing or {}, curve=curve)


def line(name: str, method: str, strength: float | None = None, **rest: Any) -> Line:
    return Line.model_validate({"name": name, "method": method, "lambda": strength, **rest})


def outcome(**changes: Any) -> Outcome:
    lines = [
        line("SLEEC", "sleec", published=(65, 40, 30), centralised=True, footnote="Not ours.",
             cells={"paper": cell(66), "strong": cell(66)}),
        line("FedAvg", "fedavg", published=(11.6, 9.11, 7.84), cells={"paper": cell(10, 12), "strong": cell(60, 62)}),
        *(
            line(name, method, strength, published=(20 + strength / 10, 15, 10),
                 cells={"paper": cell(30 + strength, 32 + strength), "strong": cell(61, 62, metric="validation P@1")})
            for name, method in (("FedAwS", "fedaws"), ("FedALC", "fedalc"))
            for strength in (1, 10)
        ),
        line("FedAvg-fixed", "fedavg-fixed",
             cells={"paper": cell(missing={0: "not run"}), "strong": cell(61)}),
        line("FedALC-fixed", "fedalc-fixed",
             cells={"paper": cell(missing={0: "failed: training diverged"}),
                    "strong": cell(59, missing={1: "not run"})}),
        line("FedALC, tuned", "fedalc", cells={"strong": cell(63, 63)}),
    ]  # fmt: skip
    values: dict[str, Any] = {
        "table": "small", "title": "Small", "paper": "Little", "dataset": "demo",
        "command": "fedalc reproduce small", "seeds": [0, 1], "presets": ["paper", "strong"],
        "figures": ["clients", "curves-lambda", "lambda", "fixed", "convergence"], "notes": ["A note."],
        "versions": [{"python": "3.11", "fedalc": "0.1"}], "clients": [(1, 90), (2, 40), (3, 5)], "median": 40.0,
        "lines": lines,
    }  # fmt: skip
    return Outcome(**(values | changes))


def from_shapes(settings: Experiment, labels: int) -> Round:
    """Return the traffic of a round without running it: θ, a row if it is sent, and batch-norm statistics."""
    each = encoder_traffic(settings, 0, Shape(labels, clients=1, pairs=0)).round
    statistics = 4 * 53_120 if settings.encoder.norm == "batch" else 0
    ledger = Ledger(each.down + statistics, each.up + statistics)
    return Round(size_of(0, settings.encoder), ledger, ledger)
