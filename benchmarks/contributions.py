"""Measure the cost of the parties' minimum-contributors rule in honest training: labels left out per round, and P@1.

python benchmarks/contributions.py --dataset bibtex --method fedalc --rounds 40

For a loss over all labels on a linear encoder with an axis per label, also what a rule for each column of θ would cost:
the (label, column) pairs with too few contributors, and their part of the gradient.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.data.federation import form_clients
from fedalc.data.load import load_dataset
from fedalc.deployment.flower.contributions import CarefulEngine, enough_contribute
from fedalc.deployment.flower.limits import FEWEST, Limits
from fedalc.evaluation.evaluate import evaluate
from fedalc.methods import Method
from fedalc.models.encoders import make_batch, scale_rows
from fedalc.training.federated import FederatedTraining, begin_training, knowledge_for


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
    if fewest > 1 and training.method.set_loss is not None and training.method.has_axes:
        print_columns(training, scaled, fewest)


@torch.no_grad()
def print_columns(training: FederatedTraining, train: Split, fewest: int) -> None:
    model, method, loss = training.model, training.method, training.method.set_loss
    assert loss is not None
    pairs = few = 0
    whole = lost = 0.0
    for client in training.federation.clients.tolist():
        instances = training.federation.instances_of(client)
        keys, dtype = torch.from_numpy(instances), model.W.dtype
        rows = make_batch(train.features[instances], instances, dtype, model.W.device)
        lengths = model.encoder.design(rows).dense().norm(dim=1)
        share = method.rest_share(torch.full_like(keys, client), keys)
        slopes = (loss.slope(model.encoder(rows) @ model.W.T) * (share * lengths).unsqueeze(1)).abs().double().numpy()
        for column in np.flatnonzero(slopes.any(axis=0) & (np.arange(slopes.shape[1]) != client)):
            total, enough = float(slopes[:, column].sum()), enough_contribute(slopes[:, column], fewest)
            pairs, whole = pairs + 1, whole + total
            few, lost = few + (not enough), lost + (0.0 if enough else total)
    print(f"columns: too few in {few / pairs:.1%} of {pairs} pairs, {lost / whole:.1%} of their gradient", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="bibtex")
    parser.add_argument("--method", default="fedalc")
    parser.add_argument("--preset", default="strong")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--set", action="append", default=[], help="a setting, key=value")
    asked = parser.parse_args()
    chosen = {"method": asked.method, "dataset": asked.dataset, "engine": "clients", "preset": asked.preset}
    settings = experiment(chosen | {"rounds": asked.rounds}, overrides=asked.set)
    dataset = load_dataset(asked.dataset)
    for fewest in (1, FEWEST):
        train(dataset, settings, fewest)


if __name__ == "__main__":
    main()
