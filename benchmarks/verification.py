"""Verification on speakers60: every method, thresholds, and persons enrolled afterwards: docs/results/verification.md.

Run: python benchmarks/verification.py     (make verification; needs FEDALC_DATA; some ten minutes on one core)
     python benchmarks/verification.py --few     (only thresholds with few speakers; four minutes)
     python benchmarks/verification.py --few before     (the same, kept as the figures of an earlier version)
Choices are made on held-out parts of train: the round by EER on 6 of the 30 records of each speaker, the shrinkage of
fedalc-plda by trials of speakers who are left out (`training/stranger_trials.py`). Each model sees the test set once.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

import fedalc
from fedalc.data.dataset import Dataset, Split
from fedalc.evaluation.verification import error_curve, make_trials
from fedalc.models.trained import TrainedModel
from fedalc.models.verification import as_rule, middles
from fedalc.training.calibration import calibrate_on_parts
from fedalc.training.stranger_trials import stranger_trials
from fedalc.workflows.enrol import enrolled
from fedalc.workflows.run import Run

OUT = Path(__file__).parents[1] / "docs" / "results"
SEEDS = (0, 1, 2)
ROWS: dict[str, dict[str, Any]] = {
    "fedavg, preset demo": {"method": "fedavg", "preset": "demo"},
    "fedavg": {"method": "fedavg"},
    "fedavg-fixed": {"method": "fedavg-fixed"},
    "fedaws": {"method": "fedaws"},
    "feduv": {"method": "feduv"},
    "fedetf": {"method": "fedetf"},
    "fedalc": {"method": "fedalc"},
    "fedalc-fixed": {"method": "fedalc-fixed"},
    "fedalc-exact, softmax": {"method": "fedalc-exact", "client": {"loss": "softmax"}},
    "fedalc-exact, logistic": {"method": "fedalc-exact", "client": {"loss": "logistic"}},
    "fedalc-oneshot": {"method": "fedalc-oneshot"},
    "fed3r": {"method": "fed3r"},
    "fedncm (cosine to the mean)": {"method": "fedncm"},
    "fedalc-plda": {"method": "fedalc-plda"},
}
NO_SEED = ("fedalc-oneshot", "fed3r", "fedncm (cosine to the mean)", "fedalc-plda")  # nothing is drawn but thresholds
SHOWN = ("EER", "EER-others", "EER-strangers", "TPR@FAR0.01", "TPR@FAR0.001", "TPR@FAR0.0001", "P@1")
INTRODUCTION = """\
# Verification of speakers

Made by `make verification` ([benchmarks/verification.py](../../benchmarks/verification.py)). speakers60: 40 enrolled
speakers with 30 records to train on and 10 to test, 20 strangers with 40 records; 400 genuine trials, 15,600 of other
enrolled speakers and 32,000 of strangers. All figures are percent of the test set. Rounds were chosen by EER on 6 of
the 30 training records of each speaker; settings are those of the preset `strong`, except in the first rows. Mean and
standard deviation of three seeds; one figure where nothing is drawn.

"""
KEYS = {"task": "verification", "selection": {"validation": 0.2}}
FEW, CHOICES, LATE, LATE_RECORDS = (4, 6, 8, 10, 20, 40), 10, 3, (1, 5, 20)
FEW_TEXT = """\
k of the 40 speakers are enrolled, ten random choices of them (all 40: one), and the 20 strangers claim to be each of
them. Means over the choices; in brackets the choice with most. *Before*: version a1630c2c, where fewer than ten
persons had thresholds from trials among themselves. The rule was chosen on train of the 40 enrolled speakers alone,
with those who were not chosen as strangers; these strangers and the test records were not used for it.
"""
LATE_TEXT = """\
Three more speakers are enrolled in each of these models with `fedalc enrol`, with 1, 5 or 20 records; the strangers
claim to be them. A choice here is a model and its three speakers. (1 %: verification.json.)
"""


def main() -> None:
    warnings.simplefilter("ignore")
    data = fedalc.load_dataset("speakers60")
    file = OUT / "verification.json"
    if "--few" in sys.argv:
        found = json.loads(file.read_text(encoding="utf-8"))
        found["few persons" + (", before" if "before" in sys.argv else "")] = few_persons(data)
    else:
        found = measure(data) | {"few persons": few_persons(data)}
        found["few persons, before"] = json.loads(file.read_text(encoding="utf-8"))["few persons, before"]
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (OUT / "verification.md").write_text(page(found), encoding="utf-8")


def measure(data: Dataset) -> dict[str, Any]:
    """Return the figures of all methods with all speakers."""
    found: dict[str, Any] = {"methods": {}, "shrinkage": shrinkages(data)}
    runs: dict[str, Run] = {}
    for name, row in ROWS.items():
        some = [fedalc.train(data, **KEYS, **row, seed=seed) for seed in SEEDS[: 1 if name in NO_SEED else None]]
        runs[name] = some[0]
        found["methods"][name] = [describe(run) for run in some]
        print(name, [round(run.metrics["EER"], 2) for run in some], flush=True)
    both = ("fedncm (cosine to the mean)", "fedalc-plda")
    found["thresholds"] = {name: operating_points(runs[name].model, data) for name in both}
    found["thresholds by others"] = {
        name: strangers_at_thresholds_by_others(data, ROWS[name]["method"]) for name in both
    }
    found["enrolled afterwards"] = {name: enrolled_afterwards(data, ROWS[name]["method"]) for name in both}
    return found


def describe(run: Run) -> dict[str, Any]:
    collapse = (run.result["collapse"] or {}).get("max_cosine")
    metrics = {name: run.metrics[name] for name in SHOWN}
    return {**metrics, "max cosine": collapse, "rounds": run.result["rounds"], "bytes up": run.result["bytes_up"]}


def shrinkages(data: Dataset) -> dict[str, dict[str, float]]:
    """Return what trials of left-out speakers of train say about the shrinkage of fedalc-plda."""
    found = {}
    for shrinkage in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9):
        keys = {**KEYS, "method": "fedalc-plda", "options": {"shrinkage": shrinkage}}
        trials = stranger_trials(fedalc.experiment(keys), data)
        assert trials is not None
        genuine, impostors = (
            np.repeat(middles(trials.bins), kind.astype(int)) for kind in (trials.genuine, trials.impostors)
        )
        curve = error_curve(genuine, impostors)
        found[f"{shrinkage:g}"] = {"EER": 100 * curve.eer, "TPR@FAR0.001": 100 * (curve.tpr(0.001) or 0)}
    return found


def operating_points(model: TrainedModel, data: Dataset) -> dict[str, Any]:
    """Return what thresholds from held-out trials do on the test set, in percent."""
    assert data.strangers is not None
    labels, own = np.arange(data.label_count), data.test.labels.indices
    scores, unknown = model.scores(data.test.features), model.scores(data.strangers.features)
    genuine = np.zeros(scores.shape, dtype=bool)
    genuine[np.arange(len(own)), own] = True
    rules = {"far 0.01": as_rule(0.01), "far 0.001": as_rule(0.001), "genuine 0.01": as_rule(genuine=0.01)}
    found = {}
    for name, rule in rules.items():
        accepted, let_in = (each >= model.trials().thresholds(rule, len(labels)) for each in (scores, unknown))
        found[name] = {
            "genuine refused": 100 * float(1 - accepted[genuine].mean()),
            "others accepted": 100 * float(accepted[~genuine].mean()),
            "strangers accepted": 100 * float(let_in.mean()),
        }
    return found


def strangers_at_thresholds_by_others(data: Dataset, method: str) -> dict[str, float]:
    """Return the share of left-out speakers' claims on train, in percent, that thresholds accept if they come from
    held-out records of the other enrolled speakers."""
    settings = fedalc.experiment({**KEYS, "method": method})
    calibration, _ = calibrate_on_parts(settings, data, 1, False, lambda number, total: None)
    strangers = stranger_trials(settings, data)
    assert calibration is not None and calibration.trials is not None and strangers is not None
    found = {}
    for far in (0.01, 0.001):
        thresholds = calibration.trials.thresholds(as_rule(far), data.label_count)
        accepted = middles(strangers.bins) >= thresholds[strangers.labels]
        found[f"far {far:g}"] = 100 * float(strangers.impostors[accepted].sum() / strangers.impostors.sum())
    return found


def enrolled_afterwards(data: Dataset, method: str) -> dict[str, float]:
    """Train on 30 speakers, enrol the other 10 with their 30 records each, and test all 40."""
    assert data.strangers is not None
    owner, late = data.train.labels.indices, np.arange(30, 40)
    model = fedalc.train(of_speakers(data, np.arange(30)), method=method, **KEYS).model
    for label in late:
        model = enrolled(model, data.label_names[label], data.train.features[np.flatnonzero(owner == label)], method)
    scores = model.scores(data.test.features)
    trials = make_trials(scores, data.test.labels, model.held, model.scores(data.strangers.features))
    assert trials is not None
    curve = trials.curves["all"]
    hits = 100 * float((scores.argmax(1) == data.test.labels.indices).mean())
    return {"EER": 100 * curve.eer, "TPR@FAR0.001": 100 * (curve.tpr(0.001) or 0), "P@1": hits}


def of_speakers(data: Dataset, speakers: np.ndarray) -> Dataset:
    """Return the training records of some speakers."""
    train = data.train.rows(np.flatnonzero(np.isin(data.train.labels.indices, speakers)))
    kept = replace(train, labels=csr_matrix(train.labels[:, speakers]), places=None)
    nothing = Split(data.test.features[:0], csr_matrix((0, len(speakers)), dtype=np.float32))
    return Dataset("speakers60", kept, nothing, tuple(data.label_names[speaker] for speaker in speakers))


def few_persons(data: Dataset) -> dict[str, dict[str, float]]:
    """Return the shares of strangers' claims and of genuine claims, in percent, that are accepted with k enrolled
    speakers, and for speakers who were enrolled afterwards: the mean over choices, and for strangers the most."""
    found: dict[str, dict[str, list[float]]] = {}
    for method in ("fedncm", "fedalc-plda"):
        for count in FEW:
            for choice in range(CHOICES if count < 40 else 1):
                order = np.random.default_rng(choice).permutation(40)
                speakers, later = np.sort(order[:count]), order[count : count + LATE]
                model = fedalc.train(of_speakers(data, speakers), method=method, **KEYS).model
                _accepted(found, f"{method} {count}", model, data, speakers, 0)
                for records in LATE_RECORDS if len(later) else ():
                    more = model
                    for speaker in later:
                        own = np.flatnonzero(data.train.labels.indices == speaker)
                        more = enrolled(more, data.label_names[speaker], data.train.features[own[:records]], method)
                    _accepted(found, f"{method} {count} late {records}", more, data, later, count)
            print(method, count, flush=True)
    return {key: _over_choices(rows["strangers"], rows["genuine"]) for key, rows in found.items()}


def _over_choices(strangers: list[float], genuine: list[float]) -> dict[str, float]:
    return {"strangers": statistics.mean(strangers), "most": max(strangers), "genuine": statistics.mean(genuine)}


def _accepted(
    found: dict[str, dict[str, list[float]]], key: str, model: TrainedModel, data: Dataset, speakers: Any, first: int
) -> None:
    """Add the shares that are accepted of claims to be these speakers, whose labels begin with `first`."""
    assert data.strangers is not None
    scores, unknown = (model.scores(part.features)[:, first:] for part in (data.test, data.strangers))
    genuine = data.test.labels.indices[:, None] == speakers[None, :]
    for far in (0.01, 0.001):
        thresholds = model.trials().thresholds(as_rule(far), len(model.label_names))[first:]
        row = found.setdefault(f"{key} far {far:g}", {"strangers": [], "genuine": []})
        row["strangers"].append(100 * float((unknown >= thresholds).mean()))
        row["genuine"].append(100 * float((scores >= thresholds)[genuine].mean()))


def few_rows(found: dict[str, Any], late: bool) -> list[str]:
    """Return the table of strangers' and genuine claims that are accepted, before and now."""
    heads = ("method", "enrolled", *(["records"] if late else []), "asked")
    heads += ("strangers accepted, before", "now", "genuine accepted, before", "now")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for key, now in found["few persons"].items():
        if ("late" in key) != late or (late and not key.endswith("0.001")):
            continue
        before = found["few persons, before"][key]
        words = key.replace("late ", "").replace("far ", "").split()
        cells = [*words[:-1], f"{100 * float(words[-1]):g} %"]
        cells += [f"{row['strangers']:.2f} ({row['most']:.2f})" for row in (before, now)]
        cells += [f"{row['genuine']:.1f}" for row in (before, now)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def mean(rows: list[dict[str, Any]], name: str, digits: int = 2) -> str:
    values = [row[name] for row in rows]
    said = f"{statistics.mean(values):.{digits}f}"
    return said if len(values) == 1 else f"{said} ± {statistics.stdev(values):.{digits}f}"


def page(found: dict[str, Any]) -> str:
    lines = INTRODUCTION.splitlines()
    heads = ("method", "EER", "against others", "against strangers", "TPR at FAR 1 %", "0.1 %", "0.01 %")
    heads += ("identified (P@1)", "largest cosine of W", "rounds")
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, rows in found["methods"].items():
        cells = [mean(rows, metric) for metric in SHOWN]
        rounds = f"{statistics.mean(row['rounds'] for row in rows):.0f}"
        lines.append(f"| {name} | {' | '.join(cells)} | {mean(rows, 'max cosine')} | {rounds} |")
    lines += ["", "## The shrinkage of fedalc-plda", ""]
    lines += [
        "Chosen on train alone: trials of speakers who were left out, five times a fifth of them. The default is 0.5.",
        "",
    ]
    lines += ["| shrinkage | EER | TPR at FAR 0.1 % |", "|---|---|---|"]
    lines += [f"| {key} | {row['EER']:.2f} | {row['TPR@FAR0.001']:.2f} |" for key, row in found["shrinkage"].items()]
    lines += ["", "## Thresholds", ""]
    lines += ["Thresholds from held-out trials of train, and what they do on the test set.", ""]
    lines += ["| method | rule | genuine refused | others accepted | strangers accepted |", "|---|---|---|---|---|"]
    for name, rules in found["thresholds"].items():
        for rule, row in rules.items():
            lines.append(f"| {name} | {rule} | {' | '.join(f'{value:.2f}' for value in row.values())} |")
    lines += ["", "## Thresholds from other enrolled speakers", ""]
    lines += [
        "On train: thresholds from held-out records of the other enrolled speakers, without the five trainings, and",
        "the share of left-out speakers' claims that they accept.",
        "",
    ]
    lines += ["| method | rule | strangers accepted |", "|---|---|---|"]
    for name, rules in found["thresholds by others"].items():
        lines += [f"| {name} | {rule} | {value:.2f} |" for rule, value in rules.items()]
    lines += ["", "## Persons enrolled afterwards", ""]
    lines += ["Trained on 30 speakers; the other 10 were enrolled with `fedalc enrol`. All 40 are tested.", ""]
    lines += ["| method | EER | TPR at FAR 0.1 % | identified |", "|---|---|---|---|"]
    for name, row in found["enrolled afterwards"].items():
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in row.values())} |")
    if "few persons, before" in found and "few persons" in found:
        lines += ["", "## Thresholds with few speakers", "", *FEW_TEXT.splitlines(), "", *few_rows(found, late=False)]
        lines += ["", "### Enrolled afterwards", "", *LATE_TEXT.splitlines(), "", *few_rows(found, late=True)]
        lines += ["", "`python benchmarks/verification.py --few` measures these two tables."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
