"""Measure the cost of the parties' minimum-contributors rule in honest training: labels left out per round, and P@1.

python benchmarks/contributions.py --dataset bibtex --method fedalc --rounds 40
"""

from __future__ import annotations

import argparse

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.data.federation import form_clients
from fedalc.data.load import load_dataset
from fedalc.deployment.flower.contributions import CarefulEngine
from fedalc.deployment.flower.limits import FEWEST, Limits
from fedalc.evaluation.evaluate import evaluate
from fedalc.methods import Method
from fedalc.models.encoders import scale_rows
from fedalc.training.federated import begin_training, knowledge_for


def train(dataset: Dataset, settings: Experiment, fewest: int) -> None:
    scaled = Split(scale_rows(dataset.train.features, settings.encoder.features), dataset.train.labels)
    test = Split(scale_rows(dataset.test.features, settings.encoder.features), dataset.test.labels)
    federation = form_clients(scaled, "labels")
    engines: list[CarefulEngine] = []

    def engine_for(method: Method) -> CarefulEngine:
        limits = Limits({"seconds": float("inf")}, fewest)
        engines.append(CarefulEngine(federation, method, settings, limits, np.arange(len(scaled))))
        return engines[-1]

    training = begin_training(settings, federation, engine_for, knowledge_for(settings, dataset.train))
    left_out = []
    for _ in range(settings.rounds):
        engines[-1].left_out = 0
        training.run_round()
        left_out.append(engines[-1].left_out)
    found = evaluate(training.averaged_model(), test, training.held)["P@1"]
    print(
        f"fewest {fewest}: left out {np.mean(left_out):.2f} of {len(federation.clients)} labels per round (maximum "
        f"{max(left_out)}, in the last round {left_out[-1]}), P@1 {found:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="bibtex")
    parser.add_argument("--method", default="fedalc")
    parser.add_argument("--preset", default="strong")
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    chosen = {"method": asked.method, "dataset": asked.dataset, "engine": "clients", "preset": asked.preset}
    settings = experiment(chosen | {"rounds": asked.rounds})
    dataset = load_dataset(asked.dataset)
    for fewest in (1, FEWEST):
        train(dataset, settings, fewest)


if __name__ == "__main__":
    main()
