"""Verification from end to end: train, verify, enrol and remove, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import fedalc
from fedalc.data.dataset import Dataset, Split
from fedalc.data.synthetic.identities import IdentitiesSize, make_identities
from fedalc.errors import ConfigError, DataError, FedalcError
from fedalc.methods.fedalc_plda import FedALCPlda
from fedalc.models.trained import TrainedModel
from fedalc.report.error_curves import write_comparison_curves, write_error_curves
from fedalc.report.page import write_page
from fedalc.workflows.enrol import enrol_file, enrolled, unenrol_run, unenrolled
from fedalc.workflows.run import Run
from fedalc.workflows.verify import as_json_lines, verify_file
from tests.commands import run as command
from tests.data.conftest import real_data

SMALL = make_identities(IdentitiesSize(enrolled=12, strangers=6, train=12, test=4))


def trained(method: str, folder: Path | None = None, data: Dataset = SMALL, **keys: Any) -> Run:
    keys = {"task": "verification", "method": method, "dtype": "float64", "folder": folder, **keys}
    return fedalc.train(data, **keys)


def records_of(person: int) -> csr_matrix:
    return SMALL.train.features[np.flatnonzero(SMALL.train.labels.indices == person)]


def without_last() -> Dataset:
    keep = SMALL.train.rows(np.flatnonzero(SMALL.train.labels.indices != 11))
    train = Split(keep.features, keep.labels[:, :11])
    return Dataset("eleven", train, None, SMALL.label_names[:11])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("verification")
    for name, split in (("own", records_of(0)[:3]), ("nobody", SMALL.strangers.features[:3])):  # type: ignore[union-attr]
        np.savez(folder / f"{name}.npz", X=split.toarray(), who=np.array(["person 1"] * 3))
    (folder / "claims.txt").write_text("person 1\nperson 2\nperson 1\n")
    return trained("fedalc-plda", folder / "run")


def test_the_result(run: Run) -> None:
    result = run.result["verification"]
    assert result["trials"] == {"genuine": 48, "others": 48 * 11, "strangers": 24 * 12}
    assert "TPR@FAR0.001-others" in result["not_measured"] and "TPR@FAR0.001" not in run.metrics
    assert run.metrics["EER"] < 10 < run.metrics["P@1"]
    assert run.settings.selection.metric == "EER" and run.result["selection"]["value"] < 15


@pytest.mark.usefixtures("figures")
def test_figures(run: Run, tmp_path: Path) -> None:
    write_error_curves(tmp_path, run.result)
    write_page(tmp_path, run.result)
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("det.png", "roc.png"))
    page = (tmp_path / "report.html").read_text()
    assert "There are too few trials to measure" in page and page.count("Error curve of verification") == 2
    write_comparison_curves(tmp_path / "both", [{**run.result, "name": name} for name in ("one", "two")])
    assert (tmp_path / "both" / "det.png").stat().st_size > 5000


def test_curves_pass_through_the_eer(run: Run) -> None:
    points = np.array(run.result["verification"]["curves"]["all"])
    gap = points[:, 1] - points[:, 0]
    near = points[np.argmin(np.abs(gap))]
    assert near.max() * 100 == pytest.approx(run.metrics["EER"], abs=4)


def test_verify_in_python(run: Run) -> None:
    verdicts = run.model.verify(records_of(0), "person 1")
    scores = run.model.scores(records_of(0))[:, 0]
    np.testing.assert_allclose(verdicts.scores, scores)
    assert verdicts.accepted.mean() > 0.7
    assert SMALL.strangers is not None
    assert run.model.verify(SMALL.strangers.features, "person 1").accepted.mean() < 0.1
    strict = run.model.verify(records_of(0), "person 1", far=0.0001)
    assert (strict.thresholds >= verdicts.thresholds).all() and strict.note is not None
    assert len(run.model.verify(records_of(0)[:0], "person 1")) == 0


def test_thresholds_are_those_of_persons_left_out(run: Run) -> None:
    trials = run.model.trials()
    assert trials.by_strangers
    assert trials.impostor_trials == sum(12 * n * (12 - n) for n in (3, 3, 2, 2, 2))
    assert not trained("fedavg", rounds=5, data=SMALL).model.trials().by_strangers


def test_a_model_of_another_task_cannot_verify() -> None:
    run = fedalc.train(SMALL, method="fedncm")
    with pytest.raises(FedalcError, match="no thresholds for verification: train it with --task verification"):
        run.model.verify(records_of(0), "person 1")
    assert "EER" not in run.metrics and "verification" not in run.result


def test_baseline_is_the_cosine_to_the_mean() -> None:
    run = trained("fedncm", data=SMALL)
    means = np.stack([records_of(person).toarray().mean(0) for person in range(12)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(run.model.scores(SMALL.test.features), SMALL.test.features @ means.T, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "fedaws", "feduv", "fedalc", "fedalc-fixed", "fedalc-oneshot", "ovr"])
def test_methods_run_with_the_task(method: str) -> None:
    run = trained(method, rounds=10, encoder={"dim": 32} if method != "ovr" else {})
    assert 0 < run.metrics["EER"] < 50 and run.metrics["EER-strangers"] < 50
    assert run.model.verify(records_of(0), "person 1", far=0.05).accepted.any()


def test_test_records_without_an_enrolled_label_are_strangers() -> None:
    assert SMALL.strangers is not None
    features = np.vstack([SMALL.test.features.toarray(), SMALL.strangers.features.toarray()])
    labels = np.vstack([SMALL.test.labels.toarray(), np.zeros((24, 12))])
    mixed = Dataset("mixed", SMALL.train, Split(features, labels), SMALL.label_names)
    ours, theirs = trained("fedncm", data=mixed), trained("fedncm", data=SMALL)
    for name in ("EER", "EER-others", "EER-strangers", "P@1"):
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name])


# --- enrolling and removing ---


def test_enrolling_with_fedncm_is_as_if_the_person_had_been_there() -> None:
    late = enrolled(trained("fedncm", data=without_last()).model, "person 12", records_of(11), "fedncm")
    all_along = trained("fedncm").model
    assert late.label_names == all_along.label_names
    np.testing.assert_allclose(late.scores(SMALL.test.features), all_along.scores(SMALL.test.features), atol=1e-12)


def test_enrolling_with_plda_is_the_likelihood_ratio() -> None:
    """Enrolled again under another name, a person gets its old scores."""
    model = trained("fedalc-plda").model
    twice = enrolled(model, "again", records_of(3), "fedalc-plda")
    scores = twice.scores(SMALL.test.features)
    np.testing.assert_allclose(scores[:, 12], scores[:, 3], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(scores[:, :12], model.scores(SMALL.test.features))
    assert twice.verify(records_of(3), "again").accepted.any()


def test_enrolling_with_cosines_is_the_mean_embedding() -> None:
    model = trained("feduv", rounds=5, encoder={"dim": 16}).model
    late = enrolled(model, "again", records_of(3), "feduv")
    mean = model.embed(records_of(3)).mean(0)
    expected = model.embed(SMALL.test.features) @ (mean / np.linalg.norm(mean))
    np.testing.assert_allclose(late.scores(SMALL.test.features)[:, 12], expected, atol=1e-9)


@pytest.mark.parametrize("method", ["fedncm", "fedalc-plda", "fedalc-oneshot", "feduv"])
def test_removing_leaves_the_scores_of_others(method: str, tmp_path: Path) -> None:
    model = trained(method, rounds=3).model
    less = unenrolled(model, "person 4")
    less.save(tmp_path / "model")
    again = TrainedModel.load(tmp_path / "model")
    expected = np.delete(model.scores(SMALL.test.features), 3, axis=1)
    np.testing.assert_allclose(again.scores(SMALL.test.features), expected, atol=1e-12)
    assert again.label_names == tuple(name for name in model.label_names if name != "person 4")
    assert len(again.trials().labels) < len(model.trials().labels)
    assert len(again.predict_proba(SMALL.test.features)[0]) == 11
    with pytest.raises(ConfigError, match="nobody is enrolled as 'person 4'"):
        again.verify(records_of(3), "person 4")


def test_what_cannot_be_enrolled() -> None:
    model = trained("fedncm").model
    with pytest.raises(ConfigError, match="person 1 is enrolled already; remove that person first"):
        enrolled(model, "person 1", records_of(0), "fedncm")
    with pytest.raises(ConfigError, match="cannot be a name"):
        enrolled(model, " ", records_of(0), "fedncm")
    with pytest.raises(DataError, match="trained on 64 features, but these have 5"):
        enrolled(model, "new", csr_matrix(np.ones((3, 5))), "fedncm")
    with pytest.raises(ConfigError, match="nobody is enrolled as 'new'"):
        unenrolled(model, "new")
    solved = trained("fedalc-oneshot").model
    with pytest.raises(FedalcError, match="cannot be enrolled in a model of fedalc-oneshot afterwards: its head was"):
        enrolled(solved, "new", records_of(0), "fedalc-oneshot")


def test_enrol_and_remove_in_a_run_folder(run: Run, tmp_path: Path) -> None:
    assert run.folder is not None
    file, folder = run.folder.parent / "nobody.npz", run.folder
    assert "new is enrolled with 3 records: 13 persons" in enrol_file(folder, "new", str(file), None)
    assert (folder / "model.old").is_dir()
    assert verify_file(folder, str(file), claim="new", far=0.05).accepted.all()
    enrol_file(folder, "other", str(file), tmp_path / "copy")
    assert verify_file(tmp_path / "copy", str(file), claim="other", far=0.05).accepted.all()
    said = unenrol_run(folder, "new", None)
    assert "new is removed" in said and "still count in the mean and the covariances" in said
    assert not (folder / "model.old").exists()
    assert fedalc.load_run(folder).model.label_names == SMALL.label_names


# --- the command line ---


def test_verify_on_the_command_line(run: Run) -> None:
    assert run.folder is not None
    own, nobody = (str(run.folder.parent / f"{name}.npz") for name in ("own", "nobody"))
    verdicts = verify_file(run.folder, own, claims="who")
    assert verdicts.claims == ("person 1",) * 3
    line = json.loads(as_json_lines(verdicts).splitlines()[0])
    assert line == {"record": 0, "claim": "person 1", "accepted": True} | {k: line[k] for k in ("score", "threshold")}
    mixed = verify_file(run.folder, own, claims=str(run.folder.parent / "claims.txt"))
    assert mixed.claims == ("person 1", "person 2", "person 1") and mixed.accepted.tolist() == [True, False, True]
    accepted = command("verify", str(run.folder), own, "--claim", "person 1", "--far", "0.01", cwd=run.folder.parent)
    assert "3 of 3 claims accepted, at far 0.01" in accepted.stdout
    refused = command("verify", str(run.folder), nobody, "--claim", "person 1", "--json", cwd=run.folder.parent, code=1)
    assert json.loads(refused.stdout.splitlines()[0])["accepted"] is False


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "give --claim NAME, or --claims"),
        ({"claim": "x", "claims": "y"}, "one of them"),
        ({"claims": "nowhere"}, "has no column 'nowhere'"),
        ({"claim": "zoe"}, "nobody is enrolled as 'zoe'"),
        ({"claim": "person 1", "far": 2.0}, "expected a share between 0 and 1"),
    ],
)
def test_wrong_usage(run: Run, keys: dict[str, Any], message: str) -> None:
    assert run.folder is not None
    with pytest.raises(FedalcError, match=message):
        verify_file(run.folder, str(run.folder.parent / "own.npz"), **keys)


def test_settings_of_the_task() -> None:
    assert fedalc.experiment({"task": "verification"}).selection.metric == "EER"
    assert fedalc.experiment({"task": "verification", "engine": "flower"}).selection.metric == "P@1"
    assert fedalc.experiment({"selection": {"metric": "P@3"}, "task": "verification"}).selection.metric == "P@3"
    with pytest.raises(ConfigError, match="EER is a metric of verification"):
        fedalc.experiment({"selection": {"metric": "EER"}})
    with pytest.raises(ConfigError, match="choose by EER"):
        fedalc.experiment({"selection": {"metric": "EER-strangers"}, "task": "verification"})
    with pytest.raises(ConfigError, match="leave out --tune"):
        fedalc.train(SMALL, task="verification", tune=True)
    assert fedalc.train(SMALL, task="verification").settings.method == "fedalc-plda"
    assert FedALCPlda.dim_for(512, 12) == 23


def test_the_real_speakers() -> None:
    """The baseline's published figures, and what fedalc-plda is for."""
    data = fedalc.load_dataset("speakers60", real_data("speakers60").parent)
    baseline, plda = (trained(method, data=data, dtype="float32").metrics for method in ("fedncm", "fedalc-plda"))
    assert (round(baseline["TPR@FAR0.001"], 1), round(baseline["P@1"], 2)) == (93.5, 99.75)
    assert round(baseline["EER"], 1) == 0.5
    assert plda["EER"] < baseline["EER"] and plda["TPR@FAR0.001"] > 97
