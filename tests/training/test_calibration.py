"""On which records a run fits its probabilities, and when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.core.seeds import numpy_generator
from fedalc.data.federation import hold_out
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.errors import Interrupted
from fedalc.evaluation.calibrate import fit_calibration, held_out_scores, log_shares
from fedalc.models.calibration import Calibration
from fedalc.training.calibration import refusal
from fedalc.training.callbacks import Callback

DATA = make_demo(DemoSize(train=300, test=60, words=120))
ROUNDS: dict[str, Any] = {"method": "fedalc", "rounds": 6, "encoder": {"dim": 16}}


def same(one: Calibration | None, two: Calibration | None) -> None:
    assert one is not None and two is not None
    for name, part in one.parts().items():
        np.testing.assert_array_equal(part, two.parts()[name])


def test_real_parties_with_secure_sums_give_no_probabilities() -> None:
    asked = {"engine": "flower", "method": "fedalc-exact", "server": {"aggregation": "mean"}}
    assert refusal(fedalc.experiment(asked)) is None
    assert "no party counts scores" in str(refusal(fedalc.experiment({**asked, "secure_sums": {"on": True}})))


def test_validation_data_at_the_chosen_round_before_the_refit() -> None:
    run = fedalc.train(DATA, **ROUNDS, selection={"every": 2})
    rounds = run.result["selection"]["round"]
    train, validation = hold_out(DATA, 0.1, 0)
    assert validation is not None
    part = fedalc.Dataset("part", train, None, DATA.label_names)
    then = fedalc.train(part, **{**ROUNDS, "rounds": rounds}, selection={"validation": 0.0, "calibrate": False}).model
    scorer = then.scorer(validation.features)
    scored = held_out_scores(scorer, validation.labels, then.held, log_shares(train.labels))
    same(run.model.calibration, fit_calibration([scored], DATA.label_count, log_shares(DATA.train.labels)))
    assert run.result["calibration"]["records"] == len(validation) == 30
    assert {"micro-F1", "macro-F1"} <= set(run.metrics)


def test_one_round_trains_again_without_each_part() -> None:
    run = fedalc.train(DATA, tune=False)
    facts = run.result["calibration"]
    labelled = np.flatnonzero(DATA.train.labels.getnnz(axis=1))
    assert facts["parts"] == 5 and facts["records"] == 5 * round(0.2 * len(labelled)) and facts["bytes_up"] > 0
    order = labelled[numpy_generator(0, "calibration parts").permutation(len(labelled))]
    size, scored = round(0.2 * len(labelled)), []
    for number in range(5):
        part = np.sort(order[number * size : (number + 1) * size])
        rest = DATA.train.rows(np.setdiff1d(np.arange(300), part))
        keys = {"tune": False, "selection": {"calibrate": False}}
        model = fedalc.train(fedalc.Dataset("rest", rest, None, DATA.label_names), **keys).model
        held_out = DATA.train.rows(part)
        scored.append(
            held_out_scores(
                model.scorer(held_out.features), held_out.labels, model.held, log_shares(rest.labels), number
            )
        )
    same(run.model.calibration, fit_calibration(scored, DATA.label_count, log_shares(DATA.train.labels)))


class StopAfter(Callback):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round(self, number: int, loss: float) -> None:
        self.left -= 1
        if not self.left:
            raise Interrupted("as a test asks")


@pytest.mark.parametrize("rounds", [5, 8])  # in phase select and in phase refit
def test_a_resumed_run_has_the_same(rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.training.selection.Training.checkpoint_seconds", 0.0)
    keys: dict[str, Any] = {**ROUNDS, "selection": {"every": 2, "keep": "last"}}
    whole = fedalc.train(DATA, **keys)
    with pytest.raises(Interrupted):
        fedalc.train(DATA, **keys, folder=tmp_path / "run", callbacks=StopAfter(rounds))
    again = fedalc.train(DATA, **keys, folder=tmp_path / "run", resume=True)
    same(again.model.calibration, whole.model.calibration)
    same(fedalc.load_run(tmp_path / "run").model.calibration, whole.model.calibration)
    assert again.metrics == whole.metrics


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({**ROUNDS, "selection": {"calibrate": False}}, "selection.calibrate"),
        ({**ROUNDS, "selection": {"validation": 0.0}}, "no record was held out"),
        ({**ROUNDS, "privacy": {"mechanism": "counts", "noise": "seeded"}}, "ε does not cover"),
        ({"method": "ovr", "ovr": {"penalties": [1.0]}}, "no record was held out"),
    ],
)
def test_runs_without_probabilities_say_why(keys: dict[str, Any], reason: str, tmp_path: Path) -> None:
    run = fedalc.train(DATA, **keys)
    assert run.model.calibration is None and reason in run.result["calibration"]["left_out"]
    assert "micro-F1" not in run.metrics


def test_oracles_are_calibrated_on_validation_data() -> None:
    run = fedalc.train(DATA, method="ovr", ovr={"penalties": [0.5, 1.0]})
    assert run.model.calibration is not None and run.result["calibration"]["records"] == 30
    assert run.model.predict_sets(DATA.test.features).nnz > 0 and run.metrics["micro-F1"] > 20
