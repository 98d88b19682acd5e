"""`make poisoning`: measure P@1 on Bibtex with poisoned parties, for every aggregation rule and attack.

    FEDALC_DATA=… python benchmarks/poisoning.py [SEED …]

Bibtex's 159 labels are assigned at random to 40 parties, about four each. 0, 10, 20 or 30 % of the parties attack in
every round (benchmarks/attacks.py). `trimmed-mean` and `multi-krum` always expect up to 30 %. Figures are on the test
set after the last round; nothing is selected by them. Writes docs/results/poisoning.* and docs/images/poisoning.png.
Finished cells are stored in runs/poisoning.jsonl: after an interruption the same command continues.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from attacks import ATTACKS, Poisoned
from scipy.sparse import diags
from torch import Tensor

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.atomic_files import write_text
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Split
from fedalc.data.federation import Federation
from fedalc.engines.aggregation import RULES
from fedalc.engines.aggregation.base import Comparing
from fedalc.engines.aggregation.lengths import median_length
from fedalc.engines.fused import FusedEngine
from fedalc.engines.fused_batches import Block, Portion
from fedalc.evaluation.evaluate import evaluate
from fedalc.models.encoders import Chance, scale_rows
from fedalc.training.federated import FederatedTraining, begin_training, knowledge_for

ROOT = Path(__file__).resolve().parent.parent
DONE = ROOT / "runs" / "poisoning.jsonl"
OUT = ROOT / "docs" / "results" / "poisoning"
PICTURE = ROOT / "docs" / "images" / "poisoning.png"
PARTIES, SHARES = 40, (0.1, 0.2, 0.3)
#: Preset `strong` with fewer dimensions and rounds and so a higher rate, so that a cell takes only seconds.
SETTINGS: dict[str, Any] = {
    "dataset": "bibtex",
    "method": "fedalc",
    "rounds": 20,
    "encoder": {"dim": 160},
    "server": {"learning_rate": 0.01, "trim": 0.3, "byzantine": 0.3},
    "selection": {"validation": 0.0},
}
VARIANT = "clip, by weight × length"  # tried on clean data only: see docs/robust.md
#: To measure the cost of clipping without an attack: the preset's own rate, and rounds until P@1 stops improving.
LONG: dict[str, Any] = {"rounds": 60, "server": {"trim": 0.3, "byzantine": 0.3}}


class ByContribution(Comparing):
    """Like `clip`, but limits P_k·‖Δ_k‖ to its median instead of ‖Δ_k‖."""

    def add(self, party: int, change: Sequence[Tensor], length: float) -> None:
        super().add(party, change, length)
        self._lengths = {**getattr(self, "_lengths", {}), party: length}

    def combined(self) -> list[Tensor]:
        pulls = {party: self.weights[party] * length for party, length in self._lengths.items()}
        bound = median_length(pulls.values())
        factors = [self.weights[party] * min(1.0, bound / pulls[party]) for party in self.held.parties]
        return self.held.weighted(factors, sum(self.weights.values()))


class Kept(FusedEngine):
    """Caches the blocks of each party's instances, which are the same in every round."""

    def _take(self, participants: np.ndarray, chance: Chance, like: Tensor) -> tuple[Portion, Iterable[Block]]:
        kept = self.__dict__.setdefault("_kept", {})
        key = participants.tobytes()
        if key not in kept:
            portion, blocks = super()._take(participants, chance, like)
            kept[key] = portion, list(blocks)
        return kept[key]


@cache
def data() -> tuple[Split, Split]:
    dataset = fedalc.load_dataset("bibtex")
    train, test = (replace(s, features=scale_rows(s.features, "unit")) for s in (dataset.train, dataset.test))
    return train, test


def training_of(
    rule: str, attack: str | None, share: float, seed: int, asked: dict[str, Any]
) -> tuple[FederatedTraining, np.ndarray]:
    """Return a training before its first round, and a mask of the labels of honest parties."""
    server = asked["server"] | {"aggregation": "clip" if rule == VARIANT else rule}
    settings = experiment({**asked, "seed": seed, "server": server})
    train, _ = data()
    drawn = numpy_generator(seed, "parties")
    owner = drawn.permutation(np.arange(train.labels.shape[1]) % PARTIES)
    liars = set(drawn.permutation(PARTIES)[: round(share * PARTIES)].tolist())
    federation = Federation(train.features, train.labels, parties=owner)

    def engine(method: Any) -> Poisoned:
        inner = Kept(federation, method, settings)
        return Poisoned(inner, federation, method, settings, attack, liars)

    training = begin_training(settings, federation, engine, knowledge_for(settings, train))
    return training, training.held & ~np.isin(owner, list(liars))


def cell(rule: str, attack: str | None, share: float, seed: int, asked: dict[str, Any]) -> dict[str, float]:
    """Return P@1 over all labels, and over the labels of honest parties only."""
    training, honest = training_of(rule, attack, share, seed, asked)
    test = data()[1]
    with patch.dict(RULES, {"clip": ByContribution} if rule == VARIANT else {}):
        for _ in range(training.settings.rounds):
            training.run_round()
    everything = evaluate(training.averaged_model(), test, training.held)
    return {"P@1": everything["P@1"], "honest P@1": evaluate(training.averaged_model(), *_of(test, honest))["P@1"]}


def _of(test: Split, labels: np.ndarray) -> tuple[Split, np.ndarray]:
    """Return the instances that have at least one of these labels, without their other labels; and the labels."""
    kept = (test.labels @ diags(labels.astype(np.float32))).tocsr()
    kept.eliminate_zeros()
    rows = np.flatnonzero(kept.getnnz(axis=1))
    return Split(test.features[rows], kept[rows]), labels


class Memory:
    """Finished cells, one line each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.known = {json.dumps(record["of"]): record["outcome"] for record in records}

    def cell(
        self, rule: str, attack: str | None, share: float, seed: int, asked: dict[str, Any] = SETTINGS
    ) -> dict[str, float]:
        of = [rule, attack, share, seed, asked]
        if json.dumps(of) not in self.known:
            began = time.perf_counter()
            outcome = cell(rule, attack, share, seed, asked)
            with self.path.open("a") as file:
                file.write(json.dumps({"of": of, "outcome": outcome}) + "\n")
            self.known[json.dumps(of)] = outcome
            print(*of[:-1], outcome, f"{time.perf_counter() - began:.0f} s", flush=True)
        return self.known[json.dumps(of)]


def figures(memory: Memory, seeds: Sequence[int]) -> list[dict[str, Any]]:
    wanted: list[tuple[str, str | None, float]] = [(rule, None, 0.0) for rule in RULES]
    wanted += [(rule, attack, share) for share in reversed(SHARES) for attack in ATTACKS for rule in RULES]
    cells = {case: [memory.cell(*case, seed) for seed in seeds] for case in wanted}
    return [
        {"rule": rule, "attack": attack, "poisoned": share}
        | {metric: statistics.mean(outcome[metric] for outcome in of) for metric in ("P@1", "honest P@1")}
        for (rule, attack, share), of in cells.items()
    ]


def clean(memory: Memory, seeds: Sequence[int]) -> dict[str, float]:
    """Return P@1 of a longer training without poisoned parties."""
    asked = SETTINGS | LONG
    of = {rule: [memory.cell(rule, None, 0.0, seed, asked) for seed in seeds] for rule in ("mean", "clip", VARIANT)}
    return {rule: statistics.mean(outcome["P@1"] for outcome in outcomes) for rule, outcomes in of.items()}


def apart() -> dict[str, float]:
    """Measure how different honest parties' changes are in round 1, which is why rules that compare them fail."""
    training, _ = training_of("mean", None, 0.0, 0, SETTINGS)
    model, engine = training.model, training.engine
    assert isinstance(engine, Poisoned)
    party_of, chance = engine.federation.party_of, Chance(training.settings, 1, model.W)
    changes = [engine.work_of(k, model, np.flatnonzero(party_of == k), chance, 1).change for k in range(PARTIES)]
    rows = np.stack([change[0].to_dense().numpy().ravel() for change in changes]).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.abs(rows @ rows.T)[np.triu_indices(PARTIES, 1)]
    return {"mean |cosine|": float(cosines.mean()), "medians of zero": float((np.median(rows, axis=0) == 0).mean())}


def table(cells: list[dict[str, Any]], metric: str) -> str:
    at = {(c["rule"], c["attack"], c["poisoned"]): c[metric] for c in cells}
    lines = ["| attack | poisoned | " + " | ".join(RULES) + " |", "|---" * (2 + len(RULES)) + "|"]
    cases: list[tuple[str | None, float]] = [(None, 0.0), *((a, share) for a in ATTACKS for share in SHARES)]
    for attack, share in cases:
        values = " | ".join(f"{at[rule, attack, share]:.1f}" for rule in RULES)
        lines.append(f"| {attack or 'none'} | {share:.0%} | {values} |")
    return "\n".join(lines) + "\n"


def draw(cells: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from fedalc.report.style import BLUE, GREEN, GREY, ORANGE, VERMILLION

    at = {(c["rule"], c["attack"], c["poisoned"]): c["P@1"] for c in cells}
    looks = zip(RULES, (VERMILLION, BLUE, GREY, ORANGE, GREEN), "so^Dv", strict=True)
    rules = {rule: (colour, marker) for rule, colour, marker in looks}
    figure, axes = plt.subplots(1, len(ATTACKS), figsize=(13, 4.2), layout="constrained", dpi=150, sharey=True)
    percent = [0, *(100 * share for share in SHARES)]
    for axis, (attack, how) in zip(axes, ATTACKS.items(), strict=True):
        for rule, (colour, marker) in rules.items():
            values = [at[rule, None, 0.0], *(at[rule, attack, share] for share in SHARES)]
            axis.plot(percent, values, color=colour, marker=marker, label=rule)
        axis.set_title(f"{attack}\n{textwrap.fill(how, 30)}", fontsize=10)
        axis.set_xlabel("poisoned parties, %")
        axis.set_xticks(percent)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("P@1 on the test set, %")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(RULES), frameon=False)
    figure.savefig(PICTURE)


def main(seeds: list[int]) -> None:
    memory = Memory(DONE)
    cells, longer = figures(memory, seeds), clean(memory, seeds)
    command = "python benchmarks/poisoning.py" + "".join(f" {seed}" for seed in seeds if seeds != [0])
    seeded = "seed 0" if seeds == [0] else f"mean of {len(seeds)} seeds"
    between = apart()
    facts = {"command": command, "seeds": seeds, "parties": PARTIES, "settings": SETTINGS, "attacks": ATTACKS}
    facts |= {"cells": cells, "clean": longer | LONG, "apart": between}
    write_text(
        OUT.with_suffix(".json"),
        json.dumps(facts, indent=1) + "\n",
    )
    text = f"`{command}`: Bibtex in {PARTIES} parties, `fedalc`, {SETTINGS['rounds']} rounds, {seeded}\n\n"
    text += f"P@1 on all labels:\n\n{table(cells, 'P@1')}\n"
    text += f"P@1 on the labels of honest parties alone:\n\n{table(cells, 'honest P@1')}\n"
    figures_of = ", ".join(f"{rule} {value:.1f}" for rule, value in longer.items())
    text += f"P@1 of {LONG['rounds']} rounds at the preset's rate, nobody poisoned: {figures_of}\n\n"
    text += f"Two honest parties' changes of round 1: mean |cosine| {between['mean |cosine|']:.3f}; "
    text += f"{between['medians of zero']:.0%} of the coordinates have a median of exactly zero.\n"
    write_text(OUT.with_suffix(".md"), text)
    draw(cells)
    print(text)


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the dataset bibtex")
    main([int(seed) for seed in sys.argv[1:]] or [0])
