"""Bibtex itself, if available: the engines agree, and training reaches the README's figures."""

from __future__ import annotations

import pytest
import torch

import fedalc
from fedalc.data import Split, load_dataset
from fedalc.models.encoders import scale_rows
from tests.problems import federated, real_data


def bibtex() -> fedalc.Dataset:
    return load_dataset("bibtex", real_data("bibtex").parent)


def test_the_engines_agree_on_bibtex() -> None:
    train = bibtex().train
    split = Split(scale_rows(train.features, "unit"), train.labels)
    after = {}
    for engine in ("fused", "clients"):
        keys = {"engine": engine, "method": "fedalc", "dtype": "float64", "encoder": {"name": "linear", "dim": 64}}
        training = federated(fedalc.experiment(keys), split)
        losses = [training.run_round() for _ in range(2)]
        after[engine] = (training.model.encoder.embedding.detach(), training.model.W, losses)
    # Adam divides by gradients that may be tiny, so θ agrees to a little less than W does.
    assert torch.allclose(after["fused"][0], after["clients"][0], rtol=0, atol=1e-9)
    assert torch.allclose(after["fused"][1], after["clients"][1], rtol=0, atol=1e-12)
    assert after["fused"][2] == pytest.approx(after["clients"][2], rel=1e-10)


def test_fixed_rows_reach_sixty_on_bibtex() -> None:
    keys = {"rounds": 30, "selection": {"validation": 0.0}}
    run = fedalc.train(data=bibtex(), dataset="bibtex", method="fedavg-fixed", **keys)
    assert run.metrics["P@1"] > 60
    assert run.result["labels_without_client"] == 0
