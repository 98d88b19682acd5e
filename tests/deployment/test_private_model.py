"""A private model over real processes with TLS: parties add the noise, and remember what they have spent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels
from fedalc.labels.privacy.ledger import Ledger
from fedalc.models.trained import TrainedModel

pytestmark = pytest.mark.deployment

PATIENCE = 3600.0  # seconds for a run, on a machine that does other things too
PRIVATE = ("--method", "fedalc-oneshot", "--set", "privacy.mechanism=sums", "--set", "privacy.epsilon=1")


def test_parties_train_a_private_model_until_their_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data, names = make_demo(DemoSize(train=300, test=20, words=200)), ("a", "b", "c")
    with LocalDeployment(tmp_path) as local:
        local.start_server()
        for name, (held, labels) in zip(names, split_by_labels(data.train, data.label_names, 3), strict=True):
            local.add_party(name, held, labels)
            local.start_party(name, "--epsilon-budget", "1.2", wait=False)
        for name in names:
            local.wait_connected(name)
        options = ("--parties", "3", "--out", str(tmp_path / "runs"), *PRIVATE)
        first = local.start_run(*options, "--name", "first")
        assert run_to_its_end(first, lambda line: None, PATIENCE) == 0, first.said()
        assert "with noise that the parties add, for ε = 1" in first.said()
        second = local.start_run(*options, "--name", "second", "--wait", "60")
        assert run_to_its_end(second, lambda line: None, PATIENCE) != 0
        said = second.said()
    result = json.loads((tmp_path / "runs" / "first" / "result.json").read_text(encoding="utf-8"))
    assert result["privacy"]["epsilon"] == pytest.approx(1, rel=0.01) and "one record" in result["privacy"]["protects"]
    theta = TrainedModel.load(tmp_path / "runs" / "first" / "model").model.theta[0]
    assert torch.isfinite(theta).all() and np.linalg.norm(theta.detach().numpy()) > 0
    for name in names:
        (charge,) = Ledger(tmp_path / f"{name}.key.party" / "privacy-ledger.jsonl").charges()
        assert charge.epsilon == pytest.approx(1, rel=0.01)
    assert "more than this party's budget" in said
