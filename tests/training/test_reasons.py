"""The log and result.json say what a model was chosen by, and the figures in it are those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedalc
from fedalc.report.page import sentence
from fedalc.runs import history
from fedalc.training.callbacks import Callback
from tests.problems import small_dataset


class Log(Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def kept(folder: Path | None = None, **keys: Any) -> tuple[str, list[str], fedalc.Run]:
    log = Log()
    settings = {"method": "fedavg", "rounds": 6, "encoder": {"name": "linear", "dim": 4}, **keys}
    run = fedalc.train(data=small_dataset(instances=100), folder=folder, callbacks=log, **settings)
    return run.result["kept"], log.lines, run


def test_the_best_round_and_the_refit(tmp_path: Path) -> None:
    reason, log, run = kept(tmp_path / "run", selection={"every": 2, "metric": "P@3", "patience": None})
    records = [record for record in history.read(tmp_path / "run" / "history.jsonl") if record["phase"] == "select"]
    best = max(records, key=lambda record: record["metrics"]["validation P@3"])
    value, number = best["metrics"]["validation P@3"], best["round"]
    assert reason == (
        f"kept round {number} of 6: best P@3 {value:.2f} on 10 held-out records; then trained on all of train for "
        f"{number} round{'s' * (number != 1)}"
    )
    assert log == [
        "choosing the round by P@3 on 10 held-out records, every 2 rounds, then training again on all of train"
    ]
    assert run.result["rounds"] == number
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"It {reason}." in page


def test_patience_no_refit_last_round_and_no_validation() -> None:
    selection = {"every": 1, "patience": 1, "refit": False}
    reason, log, _ = kept(selection=selection, client={"learning_rate": 1e-9}, server={"optimizer": "sgd"}, rounds=9)
    assert reason.startswith("kept round 1 of 2, stopped after 1 evaluations without gain: best nDCG@5 ")
    assert "train for" not in reason and "until 1 evaluations bring no gain" in log[0]
    reason, log, _ = kept(selection={"keep": "last"})
    assert (
        reason.startswith("kept the last round, 6, as selection.keep says; nDCG@5 ") and "no round is chosen" in log[0]
    )
    reason, log, _ = kept(selection={"validation": 0})
    assert (reason, log) == ("kept the last round, 6: there is no validation data", [])


def test_methods_of_one_round_and_oracles() -> None:
    reason, _, _ = kept(method="fedalc-oneshot")
    assert reason.startswith("trained in one round, so there was no round to choose; nDCG@5 ")
    reason, log, run = kept(method="ovr", ovr={"penalties": (0.5, 1.0, 2.0)})
    chosen = run.result["selection"]
    assert reason.startswith(f"chose penalty {chosen['penalty']:g} of 3 tried") and log[0].startswith(
        "choosing the penalty"
    )
    assert f"best nDCG@5 {chosen['value']:.2f} on 10 held-out records; then trained on all of train" in reason
    assert f"It {reason}." in sentence(run.result, [])
    reason, _, _ = kept(method="ovr", ovr={"penalties": (0.5,)})
    assert reason == "trained on all of train: there was nothing to choose"


def test_the_search_says_what_it_chose() -> None:
    log, data = Log(), small_dataset(instances=100)
    run = fedalc.train(data=data, callbacks=log)
    labelled = int((data.train.labels.getnnz(axis=1) > 0).sum())
    held_out = f"{min(labelled, 5 * round(labelled / 5))} held-out records"  # five splits, each a fifth
    tuning, reason = run.result["tuning"], run.result["kept"]
    chosen = run.settings
    assert reason.startswith(f"chose {chosen.client.loss} loss, penalty {chosen.server.ridge:g}, features ")
    assert f"best {tuning['metric']} {tuning['value']:.2f} of {len(tuning['tried'])} settings on {held_out}" in reason
    assert log.lines == [f"choosing settings by {tuning['metric']} on {held_out}"]
