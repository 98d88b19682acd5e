"""A round on a sample of the records gives the centralised gradient of these records: it is a minibatch step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import softplus

import fedalc
from fedalc.config.resolve import experiment
from fedalc.models.encoders import Chance, make_batch
from tests.problems import federated, random_split, small_dataset

TRAIN = random_split(50, 20, 7, seed=11)


def sampled(engine: str, **changes: Any) -> Any:
    encoder = {"dim": 7, "hidden": [8], "features": "raw"}
    client = {"sample": 0.4, **changes.pop("client", {})}
    tuning = {"batch": "none"}
    keys = {"method": "fedalc-exact", "preset": "mlp", "engine": engine, "dtype": "float64", "block_rows": 7}
    return experiment({**keys, "encoder": encoder, "client": client, "tuning": tuning, **changes})


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("loss", ["square", "logistic"])
def test_a_sampled_round_is_a_centralised_minibatch_step(engine: str, loss: str) -> None:
    """Preset mlp, dropout included: Σ over the sampled records of the loss over *all* labels, negatives too."""
    settings = sampled(engine, client={"loss": loss})
    assert (settings.encoder.input_dropout, settings.encoder.dropout, settings.encoder.embedding) == (0.2, 0.5, None)
    one = federated(settings, TRAIN)
    chance = Chance(settings, 3, one.model.W)
    federation = one.federation
    result = one.engine.run(one.model, federation.clients, chance, 3)

    keys = federation.keys_of(torch.arange(50).numpy())
    drawn = chance.chosen(keys)
    assert 5 < drawn.sum() < 40
    rows = make_batch(TRAIN.features[drawn], keys[drawn], torch.float64, "cpu")
    Y = torch.from_numpy(TRAIN.labels[drawn].toarray()).double()
    labelled = (Y.sum(1) > 0).double().unsqueeze(1)  # a record without labels is on no client
    scores = one.model.encoder(rows, chance) @ one.model.W.T
    losses = (scores - Y).square() if loss == "square" else softplus(scores) - Y * scores
    divisor = settings.client.sample * TRAIN.labels.nnz / settings.client.learning_rate
    wanted = torch.autograd.grad((labelled * losses).sum() / divisor, one.model.theta)
    for change, gradient in zip(result.change, wanted, strict=True):
        assert torch.allclose(change.to_dense(), gradient, rtol=0, atol=1e-14)


def test_the_preset_turns_records_and_epochs_into_a_sample_and_rounds() -> None:
    """54 of 60 records train: 3 rounds of about 18 are an epoch."""
    small = {"encoder": {"hidden": [8]}, "tuning": {"batch": 18, "epochs": 2}}
    run = fedalc.train(data=small_dataset(), method="fedalc-exact", preset="mlp", **small)
    settings = run.settings
    assert (settings.rounds, settings.client.sample, settings.selection.every) == (6, pytest.approx(1 / 3), 3)
    assert (settings.encoder.dim, settings.tuning.batch, settings.tuning.axes) == (7, None, False)
    assert run.result["selection"]["round"] in (3, 6)
    again = fedalc.train(settings, data=small_dataset())
    assert again.metrics == run.metrics


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedalc-oneshot", "preset": "strong"}, "tuning.batch: an exact solution needs all instances"),
        ({"engine": "flower"}, "encoder.input_dropout: real parties"),
        ({"engine": "flower", "encoder": {"input_dropout": 0.0}}, "encoder.embedding: real parties"),
        ({"engine": "flower", "encoder": {"input_dropout": 0.0, "embedding": 8}}, "tuning.batch: the number of"),
        ({"encoder": {"hidden": []}}, "encoder.hidden: without an embedding layer"),
    ],
    ids=str,
)
def test_what_minibatch_rounds_do_not_go_with(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(fedalc.ConfigError, match=message):
        experiment({"method": "fedalc-exact", "preset": "mlp", "tuning": {"batch": 256}, **changes})
