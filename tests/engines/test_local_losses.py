"""Slopes by formula (`local_losses`) equal those of autograd through the whole loss."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import pytest
import torch

from fedalc.config.schema import LossName
from fedalc.engines.local_losses import LocalLoss
from fedalc.engines.local_schedule import Step
from fedalc.models.class_embeddings import unit_rows
from fedalc.testing.engines import start_training
from tests.engines.test_equality import SMALL, TRAIN
from tests.problems import changed

# Two clients: one with three records, one with two, of which the last has no direction.
STEP = Step((3, 2), *map(torch.tensor, ([0, 0, 0, 1, 1], [0, 1, 2, 3, 4])), torch.ones(5))
LABEL = torch.tensor([2, 4])
CASES = [("fedalc", "hinge"), ("fedalc", "square"), ("fedmlh", "hinge")]  # rows are trained; several sub-models
CASES += [("fedalc-fixed", loss) for loss in get_args(LossName)]
PARTS = torch.tensor([1.0, 0.5, 1.0, 0.25, 1.0], dtype=torch.float64)


@pytest.mark.parametrize(("method", "loss"), CASES)
@pytest.mark.parametrize("unit", [True, False])
def test_slopes_equal_autograd(unit: bool, method: str, loss: str) -> None:
    asked: dict[str, Any] = {"method": method, "client": {"loss": loss, "set_size": "exact"}}
    asked |= {"encoder": {"output": "unit" if unit else "raw"}, "server": {"optimizer": "sgd"}}
    training = start_training(changed(SMALL, asked), TRAIN, "lockstep")
    engine: Any = training.engine
    model, kind = training.model, training.method
    instance = torch.tensor([*engine.federation.instances_of(2)[:3], *engine.federation.instances_of(4)[:2]])
    rest = partial(engine._rest_of, model.W, 1)
    total = torch.zeros(2, dtype=torch.float64)
    counted = torch.tensor([3.0, 2.0], dtype=torch.float64)
    found = LocalLoss(kind, unit, LABEL, instance, PARTS, counted, False, rest, total)
    h = torch.randn(5, model.W.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    h[4] = 0
    by_h, by_rows = found.slopes(h.clone(), STEP, model.W[LABEL].clone())

    outputs, rows = h.requires_grad_(), model.W[LABEL].clone().requires_grad_()
    g = unit_rows(outputs) if unit else outputs
    own, which, row = LABEL[STEP.client], instance, rows[STEP.client]
    each = sum(kind.loss((g * row)[:, p].sum(1), g[:, p].square().sum(1), own, which) for p in kind.parts)
    each = each + (rest(g, own, which) if kind.set_loss is not None else 0)
    each = each * PARTS
    wanted = torch.autograd.grad((each / counted[STEP.client]).sum(), (outputs, rows))
    torch.testing.assert_close(by_h, wanted[0], rtol=1e-12, atol=1e-14)
    assert float(by_h.abs().max()) > 0
    assert (by_rows is not None) == kind.trains_rows
    if by_rows is not None:
        torch.testing.assert_close(by_rows, wanted[1], rtol=1e-12, atol=1e-14)
    means = torch.stack([each[:3].mean(), each[3:].mean()])
    torch.testing.assert_close(total, means.detach(), rtol=1e-12, atol=1e-14)
