"""`fedalc evaluate` and `calibrate`, and the probabilities and thresholds of `fedalc predict`, as users run them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedalc
from fedalc.data.dataset import Dataset
from fedalc.data.synthetic.demo import DemoSize, make_demo
from tests.commands import run

DATA = make_demo(DemoSize(train=300, test=60, words=120))
NAMES = DATA.label_names


def write_file(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    lines = [f"{len(features)} {features.shape[1]} {labels.shape[1]}"]
    for x, y in zip(features, labels, strict=True):
        words = " ".join(f"{at}:{x[at]:.9g}" for at in np.flatnonzero(x))
        lines.append(f"{','.join(map(str, np.flatnonzero(y)))} {words}")
    path.write_text("\n".join(lines) + "\n")


def write_folder(folder: Path, data: Dataset, names: tuple[str, ...] = NAMES) -> None:
    folder.mkdir()
    for name, split in (("train", data.train), ("test", data.test)):
        write_file(folder / f"{name}.txt", split.features.toarray(), split.labels.toarray())
    (folder / "labels.txt").write_text("\n".join(names) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("user")
    write_folder(place / "mine", DATA)
    run("train", "--dataset", "mine", "--no-tune", "--name", "run", cwd=place)
    run("train", "--dataset", "mine", "--no-tune", "--name", "plain", "--set", "selection.calibrate=false", cwd=place)
    return place


def result(place: Path, name: str = "run") -> dict[str, float]:
    return dict(json.loads((place / "runs" / name / "result.json").read_text())["metrics"])


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_metrics_are_those_of_the_result(place: Path) -> None:
    for arguments in ((), ("mine",)):
        found = json.loads(run("evaluate", "runs/run", *arguments, "--json", cwd=place).stdout)
        assert found["metrics"] == pytest.approx(result(place), rel=1e-12)
        assert found["records"] == 60 and found["unknown"] == {"labels": 0, "of_records": 0}
    assert {"micro-F1", "macro-F1", "PSP@5", "R@3"} <= set(found["metrics"])
    quality = found["probabilities"]
    assert 0 < quality["brier"] < 0.05
    coverage = [row["coverage"] for row in quality["abstention"]]
    assert coverage[0] == 100 and coverage == sorted(coverage, reverse=True)


def test_a_single_file_has_all_but_propensities(place: Path) -> None:
    found = json.loads(run("evaluate", "runs/run", "mine/test.txt", "--json", cwd=place).stdout)["metrics"]
    expected = {name: value for name, value in result(place).items() if not name.startswith("PSP")}
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_table_and_the_labels(place: Path) -> None:
    printed = run("evaluate", "runs/run", "--per-label", "labels.csv", "--out", "table.txt", cwd=place)
    assert printed.stdout == ""
    table = (place / "table.txt").read_text()
    assert f"P@1       {result(place)['P@1']:6.2f}" in table and "abstain-below" in table
    found = rows((place / "labels.csv").read_text())
    positives = DATA.test.labels.getnnz(axis=0)
    assert {row["name"]: int(row["positives"]) for row in found if row["positives"] != "0"} == {
        NAMES[label]: positives[label] for label in np.flatnonzero(positives)
    }
    f1 = [float(row["F1"]) for row in found if row["positives"] != "0"]
    assert np.mean(f1) == pytest.approx(result(place)["macro-F1"], abs=1e-4)
    precisions = [float(row["AP"]) for row in found if row["AP"]]
    assert np.mean(precisions) == pytest.approx(result(place)["mAP"], abs=1e-4)
    run("evaluate", "runs/run", "--per-label", "labels.json", "--threshold", "0.5", cwd=place)
    assert {row["threshold"] for row in json.loads((place / "labels.json").read_text())} == {0.5}


def test_labels_are_matched_by_name_and_unknown_ones_are_missed(place: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(len(NAMES))
    common = int(DATA.test.labels.getnnz(axis=0).argmax())
    names = tuple("new" if label == common else NAMES[label] for label in order)
    shuffled = Dataset("x", *(fedalc.Split(s.features, s.labels[:, order]) for s in (DATA.train, DATA.test)))
    write_folder(tmp_path / "other", shuffled, names)
    found = json.loads(run("evaluate", str(place / "runs/run"), "other", "--json", cwd=tmp_path).stdout)
    missed = int(DATA.test.labels[:, common].sum())
    assert found["unknown"] == {"labels": 1, "of_records": missed}
    before = result(place)
    assert found["metrics"]["R@5"] < before["R@5"] and found["metrics"]["mAP"] < before["mAP"]
    said = run("evaluate", str(place / "runs/run"), "other/test.txt", cwd=tmp_path).stdout
    assert "1 labels are unknown to the model and count as missed: new" in said


def test_labels_that_have_nothing_in_common_are_refused(place: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "other", DATA, tuple(f"other {name}" for name in NAMES))
    ended = run("evaluate", str(place / "runs/run"), "other", cwd=tmp_path, code=2)
    assert "none of its labels is one of the model's" in ended.stderr


def test_another_separator_is_hinted_at(tmp_path: Path) -> None:
    kinds = [("red apples", "fruit", "food"), ("blue skies", "weather", "sky"), ("green pears", "fruit", "food")]
    for name, mark in (("train", "|"), ("other", "; ")):
        lines = [f"{text} of day {day},{mark.join(labels)}" for day in range(10) for text, *labels in kinds]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,labels", *lines, f"some rain,{kinds[1][1]}"]) + "\n")
    run("train", "--dataset", "train.csv", "--no-tune", "--name", "run", cwd=tmp_path)
    said = run("evaluate", "runs/run", "other.csv", cwd=tmp_path).stdout
    assert "2 labels are unknown" in said and "If ';' separates labels, give --label-separator ';'" in said
    assert "unknown" not in run("evaluate", "runs/run", "other.csv", "--label-separator", ";", cwd=tmp_path).stdout
    none = (tmp_path / "other.csv").read_text().replace("some rain,weather\n", "")
    (tmp_path / "other.csv").write_text(none)
    ended = run("evaluate", "runs/run", "other.csv", cwd=tmp_path, code=2)
    assert "none of its labels is one of the model's" in ended.stderr and "--label-separator ';'" in ended.stderr
    run("train", "--dataset", "train.csv", "--no-tune", "--name", "one", "--label-separator", "none", cwd=tmp_path)
    said = run("evaluate", "runs/one", "train.csv", "--label-separator", "|", cwd=tmp_path).stdout
    assert "If '|' is part of a label's name, give --label-separator none" in said


def test_a_model_without_probabilities(place: Path) -> None:
    assert "fedalc calibrate" in run("evaluate", "runs/plain", cwd=place).stdout
    assert "micro-F1" not in result(place, "plain")
    for option in (("--probabilities",), ("--threshold", "f1"), ("--abstain-below", "0.5")):
        ended = run("predict", "runs/plain", "mine/test.txt", *option, cwd=place, code=2)
        assert "no probabilities" in ended.stderr and ended.stdout == ""


def test_calibrating_afterwards(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs/plain", tmp_path / "plain")
    shutil.copytree(place / "mine", tmp_path / "mine")
    before = run("predict", "plain", "mine/test.txt", cwd=tmp_path).stdout
    said = run("calibrate", "plain", "mine/test.txt", cwd=tmp_path).stdout
    assert "probabilities fitted on 60 records" in said
    assert run("predict", "plain", "mine/test.txt", cwd=tmp_path).stdout == before
    found = json.loads(run("evaluate", "plain", "--json", cwd=tmp_path).stdout)
    assert found["metrics"]["micro-F1"] > 20
    assert "no validation data" in run("calibrate", "plain", "mine", cwd=tmp_path).stderr
    write_file(tmp_path / "few.txt", DATA.test.features[:3].toarray(), DATA.test.labels[:3].toarray())
    assert "need at least 20" in run("calibrate", "plain", "few.txt", cwd=tmp_path, code=2).stderr


def test_in_python(place: Path) -> None:
    trained = fedalc.load_run(place / "runs/plain")
    found = trained.evaluate(DATA)
    ranks = {name: value for name, value in result(place, "plain").items() if not name.startswith("PSP")}
    assert {name: found.metrics[name] for name in ranks} == pytest.approx(ranks, abs=0.01)  # features were rounded
    assert trained.evaluate(DATA.test).metrics["P@1"] == found.metrics["P@1"]
    assert found.probabilities is None and "F1" not in found.per_label()[0]
    again = fedalc.train(DATA, tune=False, selection={"calibrate": False}).calibrate(DATA.test)
    assert again.evaluate(DATA).metrics["micro-F1"] > 20 and again.evaluate(DATA).per_label(0.3)[0]["threshold"] == 0.3


def test_a_table_of_texts(tmp_path: Path) -> None:
    """The model's own words, and labels by name; the run's own file stands for its held-out records."""
    generator = np.random.default_rng(0)
    words = {"sports": "goal team match score", "politics": "vote party law election", "music": "song band album tune"}
    kinds = generator.choice(list(words), size=200)
    texts = [" ".join(generator.choice(words[kind].split(), size=4)) for kind in kinds]
    texts = [f"{text} number {place}" for place, text in enumerate(texts)]
    (tmp_path / "messages.csv").write_text(
        "text,labels\n" + "".join(f"{text},{kind}\n" for text, kind in zip(texts[:150], kinds, strict=False))
    )
    (tmp_path / "later.csv").write_text(
        "text,labels\n"
        + "".join(f"{text},{kind}\n" for text, kind in zip(texts[150:], kinds[150:], strict=True))
        + "unheard of things,cooking\n"
    )
    run("train", "--dataset", "messages.csv", "--no-tune", "--name", "run", cwd=tmp_path)
    own = json.loads(run("evaluate", "runs/run", "--json", cwd=tmp_path).stdout)
    assert own["metrics"] == pytest.approx(json.loads((tmp_path / "runs/run/result.json").read_text())["metrics"])
    same = json.loads(run("evaluate", "runs/run", "messages.csv", "--json", cwd=tmp_path).stdout)
    assert same == own
    later = json.loads(run("evaluate", "runs/run", "later.csv", "--json", cwd=tmp_path).stdout)
    assert later["records"] == 51 and later["unknown"] == {"labels": 1, "of_records": 1}
    assert later["metrics"]["P@1"] == pytest.approx(100 * 50 / 51)
    other = (tmp_path / "later.csv").read_text().replace("text,labels", "words,kind").replace(",cooking", ";music")
    (tmp_path / "other.csv").write_text(other.replace("things;", "things,sports;"))
    assert "no column 'text'" in run("evaluate", "runs/run", "other.csv", cwd=tmp_path, code=2).stderr
    columns = ("--text-column", "words", "--label-column", "kind", "--label-separator", ";")
    found = json.loads(run("evaluate", "runs/run", "other.csv", *columns, "--json", cwd=tmp_path).stdout)
    assert found["records"] == 51 and found["unknown"]["labels"] == 0 and found["metrics"]["R@3"] == 100
    assert "fitted on 51 records" in run("calibrate", "runs/run", "other.csv", *columns, cwd=tmp_path).stdout
    assert "fitted on 51 records" in run("calibrate", "runs/run", "later.csv", cwd=tmp_path).stdout


# --- predict ---


def test_predictions_are_as_before_without_options(place: Path) -> None:
    found = rows(run("predict", "runs/run", "mine/test.txt", "--top", "2", cwd=place).stdout)
    labels, scores = fedalc.load_run(place / "runs/run").model.predict(DATA.test.features, 2)
    assert list(found[0]) == ["instance", "rank", "label", "name", "score"] and len(found) == 120
    assert [int(row["label"]) for row in found] == labels.ravel().tolist()
    np.testing.assert_allclose([float(row["score"]) for row in found], scores.ravel(), atol=1e-5)


def test_probabilities_of_the_best_labels(place: Path) -> None:
    found = rows(run("predict", "runs/run", "mine/test.txt", "--probabilities", cwd=place).stdout)
    model = fedalc.load_run(place / "runs/run").model
    np.testing.assert_allclose(
        [float(row["probability"]) for row in found], model.predict_proba(DATA.test.features, 5)[1].ravel(), atol=1e-5
    )


@pytest.mark.parametrize("rule", ["f1", "precision=0.8", "0.4"])
def test_the_labels_that_reach_their_thresholds(place: Path, rule: str) -> None:
    expected = fedalc.load_run(place / "runs/run").model.predict_sets(DATA.test.features, rule)
    options = ("predict", "runs/run", "mine/test.txt", "--threshold", rule)
    found = rows(run(*options, cwd=place).stdout)
    assert {row["instance"] for row in found} == set(map(str, range(60)))  # those without labels too
    given = {(int(row["instance"]), int(row["label"])) for row in found if row["label"]}
    assert given == set(zip(*map(np.ndarray.tolist, expected.nonzero()), strict=True))
    lines = [json.loads(line) for line in run(*options, "--format", "jsonl", cwd=place).stdout.splitlines()]
    assert [[label["label"] for label in line["labels"]] for line in lines] == [
        [int(row["label"]) for row in found if row["instance"] == str(number) and row["label"]] for number in range(60)
    ]
    at_most = rows(run(*options, "--top", "1", cwd=place).stdout)
    assert len(at_most) == 60


def test_abstention_is_marked(place: Path) -> None:
    model = fedalc.load_run(place / "runs/run").model
    abstained = (model.predict_proba(DATA.test.features).max(1) < 0.5).tolist()
    assert True in abstained and False in abstained
    for options in ((), ("--threshold", "0.2")):
        command = ("predict", "runs/run", "mine/test.txt", "--abstain-below", "0.5", *options)
        lines = [json.loads(line) for line in run(*command, "--format", "jsonl", cwd=place).stdout.splitlines()]
        assert [line["abstained"] for line in lines] == abstained
        assert [not line["labels"] for line in lines] == abstained
        found = rows(run(*command, cwd=place).stdout)
        marks = {(int(row["instance"]), row["abstained"] == "true", row["label"] == "") for row in found}
        assert marks == {(number, mark, mark) for number, mark in enumerate(abstained)}


def test_wrong_options(place: Path) -> None:
    for options, message in (
        (("--threshold", "f2"), "expected f1, precision=0.9 or a probability"),
        (("--abstain-below", "2"), "--abstain-below"),
    ):
        assert message in run("predict", "runs/run", "mine/test.txt", *options, cwd=place, code=2).stderr
    assert "no such run folder" in run("evaluate", "nowhere", cwd=place, code=2).stderr
    assert "nothing.txt" in run("evaluate", "runs/run", "nothing.txt", cwd=place, code=2).stderr
