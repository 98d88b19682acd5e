"""`make private-model`: P@1 by ε with whole records private, and membership inference.

    FEDALC_DATA=… python benchmarks/private_model.py [PART …]

PART is one of PARTS, `choose`, `membership` or `write` (docs/results/private-model.* and the figure, of what there is);
without any, all but `choose`. Finished runs are stored in runs/private-model.jsonl: after an interruption the same
command continues. `choose` compares settings on a fifth of Bibtex's train, which the other four fifths were trained
without; its choices are the defaults of fedalc and the constants below, and it never looks at a test set.

The runs are charged to a privacy ledger of their own, runs/private-model-ledger.jsonl.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("FEDALC_PRIVACY_LEDGER", str(ROOT / "runs" / "private-model-ledger.jsonl"))

import fedalc  # noqa: E402 - after the ledger is named
from fedalc.config.resolve import experiment  # noqa: E402
from fedalc.core.atomic_files import write_text  # noqa: E402
from fedalc.data import Dataset, Split, load_dataset  # noqa: E402
from fedalc.models.encoders import scale_rows  # noqa: E402
from fedalc.training.federated import knowledge_for, simulated  # noqa: E402

DONE = ROOT / "runs" / "private-model.jsonl"
OUT = ROOT / "docs" / "results" / "private-model"
PICTURE = ROOT / "docs" / "images" / "private-model.png"
EPSILONS: tuple[float | None, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, None)  # None: not private
SEEDS = (0, 1, 2)
ROUNDS = 20
SHADOWS = 16

CLOSED: dict[str, Any] = {
    "method": "fedalc-oneshot",
    "tuning": {"axes": True},
    "selection": {"validation": 0.0, "calibrate": False},
}
STEPS: dict[str, Any] = {
    "method": "fedalc-exact",
    "rounds": ROUNDS,
    "client": {"loss": "softmax", "learning_rate": 1.0},
    "server": {"optimizer": "sgd", "learning_rate": 160.0, "weight_decay": 0.0},
    "tuning": {"axes": True},
    "selection": {"validation": 0.0, "calibrate": False, "keep": "last", "every": 1000},
}


def closed(epsilon: float | None) -> dict[str, Any]:
    return CLOSED | ({} if epsilon is None else {"privacy": {"mechanism": "sums", "epsilon": epsilon}})


def steps(epsilon: float | None) -> dict[str, Any]:
    """The rate follows `choose`: with more noise, smaller steps."""
    if epsilon is None:
        return STEPS
    server = STEPS["server"] | {"learning_rate": 40 * min(max(epsilon, 1), 4)}
    return STEPS | {"server": server, "privacy": {"mechanism": "updates", "epsilon": epsilon}}


def label_sets(epsilon: float | None) -> dict[str, Any]:
    if epsilon is None:
        return CLOSED
    return CLOSED | {"privacy": {"mechanism": "counts", "epsilon": epsilon}, "client": {"set_size": "expected"}}


ROWS: dict[str, Callable[[float | None], dict[str, Any]]] = {
    "closed form": closed,
    "iterative": steps,
    "label sets only": label_sets,
}
TEXT = {"text": {"kind": "hashing", "buckets": 4096, "idf": False}}
PARTS: dict[str, tuple[str, str]] = {
    "bibtex": ("bibtex", "closed form"),
    "bibtex-iterative": ("bibtex", "iterative"),
    "bibtex-label-sets": ("bibtex", "label sets only"),
    "eurlex57k": ("eurlex57k", "closed form"),
    "eurlex57k-iterative": ("eurlex57k", "iterative"),
    "yso": ("yso", "closed form"),
}


def main(parts: list[str]) -> None:
    DONE.parent.mkdir(exist_ok=True)
    for part in parts or [*PARTS, "membership", "write"]:
        if part == "write":
            write()
        elif part == "choose":
            choose()
        elif part == "membership":
            membership()
        else:
            measure(*PARTS[part])


def done() -> dict[str, Any]:
    """Return the finished runs, by key: those of the published results, and later ones."""
    published = json.loads(OUT.with_suffix(".json").read_text(encoding="utf-8"))
    attacks = {f"membership | {epsilon}": row for epsilon, row in published["membership"].items() if row}
    lines = DONE.read_text(encoding="utf-8").splitlines() if DONE.exists() else []
    return attacks | {run["key"]: run for run in [*published["runs"], *map(json.loads, lines)]}


def once(key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the finished piece of work of this name; make it first if there is none."""
    found = done().get(key)
    if found is None:
        found = {"key": key} | make()
        with DONE.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(key, found, flush=True)
    return found


def measure(name: str, row: str) -> None:
    more = TEXT if name == "yso" else {}
    data = None
    for seed, epsilon in product(SEEDS, EPSILONS):
        key = f"{name} | {row} | {epsilon} | {seed}"
        if key in done() or (epsilon is None and seed != SEEDS[0]):  # without noise nothing is drawn
            continue
        if epsilon is None and row == "iterative":  # its steps are scaled otherwise: it would need a search of its own
            continue
        data = data or load_dataset(name, **({"text": experiment(TEXT).text} if more else {}))
        once(key, partial(trained, data, ROWS[row](epsilon) | more | {"seed": seed}))


def trained(data: Dataset, settings: dict[str, Any]) -> dict[str, Any]:
    run = fedalc.train(data, **settings, verbose=False)
    spent = run.result["privacy"] or {}
    return {"metrics": run.result["metrics"], "spent": spent.get("epsilon"), "seconds": run.result["seconds"]}


# --- choices, on a part of Bibtex's train ---

SCHEDULES = ((5, 10.0), (5, 40.0), (20, 10.0), (20, 40.0), (20, 160.0), (20, 640.0))  # rounds and rate


def sketch(size: int) -> dict[str, Any]:
    return {"name": "random-features", "activation": "identity", "linear_part": False, "random_features": size}


SUMS: dict[str, dict[str, Any]] = {
    "diagonal": {"privacy": {"moments": "diagonal"}},
    "diagonal, 3 labels": {"privacy": {"moments": "diagonal", "labels_per_instance": 3}},
    "full": {"privacy": {"moments": "full"}},
    "sketch of 256, full": {"privacy": {"moments": "full"}, "encoder": sketch(256)},
    "sketch of 512, full": {"privacy": {"moments": "full"}, "encoder": sketch(512)},
    "sketch of 512, diagonal": {"privacy": {"moments": "diagonal"}, "encoder": sketch(512)},
}


def choose() -> None:
    data = load_dataset("bibtex")
    order = np.random.default_rng(0).permutation(len(data.train))
    held, rest = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    part = replace(data, name="bibtex-part", train=data.train.rows(rest), test=data.train.rows(held))
    for (number, (rounds, rate)), epsilon in product(enumerate(SCHEDULES), (1.0, 4.0, 8.0)):
        schedule = {"rounds": rounds, "server": STEPS["server"] | {"learning_rate": rate}}
        once(f"choose | {number} | {epsilon}", partial(trained, part, steps(epsilon) | schedule))
    for (name, changes), epsilon, seed in product(SUMS.items(), EPSILONS[:-1], SEEDS[:2]):
        settings = closed(epsilon)
        settings |= changes | {"privacy": settings["privacy"] | changes["privacy"], "seed": seed}
        once(f"choose | {name} | {epsilon} | {seed} | sums", partial(trained, part, settings))


# --- membership inference ---


def membership() -> None:
    """Attack models of halves of Bibtex's train. Each record is in about half of the models.

    `threshold`: a record with a small loss is taken for a member. `ratio`: the likelihood ratio of Carlini et al. 2022,
    with normal distributions of the record's loss in the other models, with and without the record.
    """
    data = load_dataset("bibtex")
    train = replace(data.train, features=scale_rows(data.train.features, "unit"))
    member = np.random.default_rng(1).random((SHADOWS, len(train))) < 0.5
    for epsilon in EPSILONS:
        once(f"membership | {epsilon}", partial(attacked, train, member, epsilon))


def attacked(train: Split, member: np.ndarray, epsilon: float | None) -> dict[str, Any]:
    losses = np.stack([model_losses(train, rows, epsilon, seed) for seed, rows in enumerate(member)])
    threshold, ratio = -losses, np.empty_like(losses)
    for target in range(len(member)):
        others = np.arange(len(member)) != target
        ratio[target] = likelihood_ratio(losses[target], losses[others], member[others])
    return {"threshold": figures(threshold, member), "ratio": figures(ratio, member)}


def model_losses(train: Split, rows: np.ndarray, epsilon: float | None, seed: int) -> np.ndarray:
    """Return the square loss of every record of train, scaled to the best multiple of the scores."""
    half = train.rows(np.flatnonzero(rows))
    settings = experiment(
        closed(epsilon) | {"dataset": "bibtex", "seed": seed, "encoder": {"dim": train.labels.shape[1]}}
    )
    training = simulated(settings, half, knowledge_for(settings, half))
    training.run_round()
    model, (theta,) = training.model, training.model.theta
    scores = train.features @ (theta.detach().double().numpy() @ model.W.double().numpy().T)
    wanted = train.labels.toarray()
    scores *= (scores * wanted).sum() / np.square(scores).sum()
    return np.square(scores - wanted).sum(axis=1)


def likelihood_ratio(loss: np.ndarray, others: np.ndarray, member: np.ndarray) -> np.ndarray:
    logs = np.log(others)

    def density(chosen: np.ndarray) -> np.ndarray:
        count = np.maximum(chosen.sum(axis=0), 1)
        mean = (logs * chosen).sum(axis=0) / count
        spread = np.sqrt((np.square(logs - mean) * chosen).sum() / chosen.sum())  # one for all: few models
        return -0.5 * np.square((np.log(loss) - mean) / spread) - np.log(spread)

    return density(member) - density(~member)


def figures(score: np.ndarray, member: np.ndarray) -> dict[str, list[float]]:
    """Return the mean over targets, and the standard error, of AUC and of the true positive rate at 1% false ones."""
    areas, rates = [], []
    for one, truth in zip(score, member, strict=True):
        areas.append(float(roc_auc_score(truth, one)))
        rates.append(float((one[truth] > np.quantile(one[~truth], 0.99)).mean()))
    return {"auc": mean_and_error(areas), "tpr at 1% fpr": mean_and_error(rates)}


def mean_and_error(values: list[float]) -> list[float]:
    return [statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5]


# --- results ---


def write() -> None:
    found = done()
    cells = {key: value for key, value in found.items() if key.count(" | ") == 3}
    table = {
        f"{name}, {row}": {str(epsilon): p_at_1(cells, name, row, epsilon) for epsilon in EPSILONS}
        for name, row in PARTS.values()
    }
    attacks = {str(epsilon): found.get(f"membership | {epsilon}") for epsilon in EPSILONS}
    result = {"P@1": table, "membership": attacks, "runs": list(cells.values())}
    write_text(OUT.with_suffix(".json"), json.dumps(result, indent=1) + "\n")
    write_text(OUT.with_suffix(".md"), "\n".join(page(table, attacks)) + "\n")
    draw(table, attacks)


def p_at_1(cells: dict[str, Any], name: str, row: str, epsilon: float | None) -> list[float] | None:
    """Return mean and spread (standard deviation over seeds) of P@1; None if it was not measured."""
    keys = [f"{name} | {row} | {epsilon} | {seed}" for seed in SEEDS]
    values = [cells[key]["metrics"]["P@1"] for key in keys if key in cells]
    if not values:
        return None
    return [statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values)]


def page(table: dict[str, Any], attacks: dict[str, Any]) -> Iterator[str]:
    heads = ["∞" if epsilon is None else f"{epsilon:g}" for epsilon in EPSILONS]
    yield "# A private model: P@1 by ε, and membership inference"
    yield ""
    yield "Made by `python benchmarks/private_model.py`. What it means: [private-model.md](../private-model.md)."
    yield "P@1 on the test set, mean ± standard deviation over seeds 0, 1 and 2; a cell without ± is one run (at"
    yield "ε = ∞ nothing is random). δ = 1e-5. –: not measured."
    yield ""
    yield "| | " + " | ".join(f"ε = {head}" for head in heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for name, row in table.items():
        yield f"| {name} | " + " | ".join(cell(row[str(epsilon)]) for epsilon in EPSILONS) + " |"
    yield ""
    yield f"Membership inference on Bibtex, closed form: {SHADOWS} models of random halves of train, each attacked with"
    yield "the others as shadow models; mean ± standard error over models. Chance: AUC 0.5, and 0.01 true positives."
    yield ""
    yield "| attack | " + " | ".join(f"ε = {head}" for head in heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for attack in ("threshold", "ratio"):
        for figure in ("auc", "tpr at 1% fpr"):
            of = [attacks[str(epsilon)] for epsilon in EPSILONS]
            shown = ["–" if one is None else "{:.4f} ± {:.4f}".format(*one[attack][figure]) for one in of]
            yield f"| {attack}, {figure} | " + " | ".join(shown) + " |"


def cell(values: list[float] | None) -> str:
    if values is None:
        return "–"
    few = f" ({values[2]} runs)" if 1 < values[2] < len(SEEDS) else ""
    return f"{values[0]:.2f}" + (f" ± {values[1]:.2f}" if values[2] > 1 else "") + few


def draw(table: dict[str, Any], attacks: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    numbers = [epsilon for epsilon in EPSILONS if epsilon is not None]
    for name, row in table.items():
        points = [(epsilon, *row[str(epsilon)][:2]) for epsilon in numbers if row[str(epsilon)]]
        if not points:
            continue
        line = left.errorbar(*zip(*points, strict=True), marker="o", markersize=4, capsize=2, label=name)
        if row["None"]:
            left.plot([16], [row["None"][0]], "o", markersize=4, color=line[0].get_color())
    _axis(left, "P@1 on test (%)")
    left.set_ylim(-5, 130)  # room for the legend
    left.set_yticks(range(0, 101, 20))
    left.legend(fontsize=8, loc="upper left", ncol=2)
    for attack in ("threshold", "ratio"):
        points = [(e or 16.0, *attacks[str(e)][attack]["auc"]) for e in EPSILONS if attacks[str(e)]]
        if points:
            right.errorbar(*zip(*points, strict=True), marker="o", markersize=4, capsize=2, label=f"{attack} attack")
    right.axhline(0.5, color="grey", linewidth=0.8)
    _axis(right, "AUC of membership inference, Bibtex")
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def _axis(axes: Any, what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.5, 1, 2, 4, 8, 16], ["0.5", "1", "2", "4", "8", "∞"])
    axes.minorticks_off()
    axes.set_xlabel("ε (δ = 1e-5)")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main(sys.argv[1:])
