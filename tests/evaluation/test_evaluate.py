"""Which metrics are computed: mAP only if instances × labels is small enough."""

from __future__ import annotations

import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.errors import ConfigError
from fedalc.evaluation import evaluate as evaluation
from fedalc.evaluation.evaluate import MAP_LIMIT, check_map_affordable, measure
from tests.problems import small_dataset

DATA = small_dataset()
KEYS = {"rounds": 1, "encoder": {"name": "linear", "dim": 8}, "selection": {"validation": 0.2, "metric": "mAP"}}


def test_map_is_affordable_up_to_its_limit() -> None:
    check_map_affordable(csr_matrix((MAP_LIMIT // 1000, 1000)))
    with pytest.raises(ConfigError) as refused:
        check_map_affordable(csr_matrix((MAP_LIMIT // 1000 + 1, 1000)))
    assert str(refused.value) == (
        "selection.metric: mAP ranks each instance for each label, and 100001 × 1000 are more than 100,000,000; "
        "choose another metric"
    )


def test_choosing_by_what_is_not_affordable_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAP_LIMIT", 12 * 7 - 1)  # a fifth of 60 instances, and 7 labels
    with pytest.raises(ConfigError, match=r"^selection\.metric: mAP ranks .* 12 × 7 are more than 83; "):
        fedalc.train(data=DATA, **KEYS)
    unchosen = {**KEYS, "selection": {"validation": 0.0, "metric": "mAP"}}
    assert "mAP" not in fedalc.train(data=DATA, **unchosen).metrics
    monkeypatch.setattr(evaluation, "MAP_LIMIT", 30 * 7)
    assert 0 < fedalc.train(data=DATA, **KEYS).metrics["mAP"] < 100


def test_an_oracle_is_chosen_by_map_too() -> None:
    keys = {"method": "ovr", "ovr": {"penalties": (0.01, 1.0, 100.0)}, "selection": KEYS["selection"]}
    chosen = fedalc.train(data=DATA, **keys).result["selection"]
    assert chosen["value"] == chosen["metrics"]["validation mAP"] == max(tried["value"] for tried in chosen["tried"])


def test_map_by_hand() -> None:
    """Label 0's true instances are first and third: (1 + 2/3)/2. Label 1's is second of three: 1/2."""

    class Scores:
        table = torch.tensor([[3.0, 3.0], [2.0, 2.0], [1.0, 1.0]])

        def of_labels(self, labels: slice) -> torch.Tensor:
            return self.table[:, labels]

        def top(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
            best = self.table.sort(dim=1, descending=True, stable=True)
            return best.indices[:, :k], best.values[:, :k]

    truth = csr_matrix([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert measure(Scores(), truth, with_map=True)["mAP"] == pytest.approx(100 * (5 / 6 + 1 / 2) / 2)
    assert "mAP" not in measure(Scores(), truth)
