"""Generated problems: sizes and means are as documented, they are reproducible, and there is something to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedalc
from fedalc.cli.data import app
from fedalc.data import load_dataset
from fedalc.data.catalog import datasets as catalog
from fedalc.data.check import check
from fedalc.data.dataset import Dataset
from fedalc.data.synthetic.shapes import make_shaped, shaped_labels, write_shaped
from fedalc.data.synthetic.world import _sizes
from fedalc.errors import FedalcError
from fedalc.report.page import sentence
from fedalc.report.summary import merge

WORDS = {"amazoncat-shaped": 71, "wikilshtc-shaped": 42, "amazon670k-shaped": 76}
MOST_LABELS = {"amazoncat-shaped": 57, "wikilshtc-shaped": 200, "amazon670k-shaped": 30}


@pytest.fixture(scope="module", params=[f"{name}-200th" for name in WORDS])
def problem(request: pytest.FixtureRequest) -> Dataset:
    return make_shaped(request.param)


def test_sizes_and_means_are_the_stated_ones(problem: Dataset) -> None:
    entry = catalog.entry(problem.name)
    whole = str(entry.like)
    lines = check(problem, entry)
    assert len(lines) == 6 and all(line.ok for line in lines)
    assert entry.statistics is not None
    for split in (problem.train, problem.test):
        per_instance = np.diff(split.labels.indptr)
        assert per_instance.mean() == pytest.approx(entry.statistics.labels_per_instance, rel=0.002)
        assert per_instance.min() >= 1 and per_instance.max() <= MOST_LABELS[whole]
        words = min(WORDS[whole], problem.feature_count / 4)
        assert entry.statistics.features_per_instance == words
        assert np.diff(split.features.indptr).mean() == pytest.approx(words, rel=0.02)
    assert problem.label_names[:2] == ("0", "1")


def test_form(problem: Dataset) -> None:
    """float32 in rows of length one, 32-bit indices, ascending."""
    for split in (problem.train, problem.test):
        X, Y = split.features, split.labels
        assert X.dtype == Y.dtype == np.float32 and X.indices.dtype == Y.indices.dtype == X.indptr.dtype == np.int32
        assert X.has_canonical_format and Y.has_canonical_format and set(Y.data) == {1.0}
        assert X.data.min() > 0
        np.testing.assert_allclose(np.sqrt(X.multiply(X).sum(axis=1)), 1, atol=1e-3)


def test_every_label_has_a_training_instance_and_few_have_many(problem: Dataset) -> None:
    held = np.sort(problem.train.labels.getnnz(axis=0))[::-1]
    assert held[-1] >= 1
    tenth = len(held) // 10
    assert held[:tenth].sum() > 0.25 * held.sum()
    assert np.median(held) < 0.8 * held.mean()
    sizes = np.diff(problem.train.labels.indptr)
    assert sizes.max() > 3 * sizes.mean()


def test_words_have_a_long_tail(problem: Dataset) -> None:
    used = np.sort(problem.train.features.getnnz(axis=0))[::-1]
    assert used[0] > 0.1 * len(problem.train)
    assert used[: len(used) // 10].sum() > 0.2 * used.sum()
    assert np.median(used) < used.mean()


def test_labels_come_in_topics(problem: Dataset) -> None:
    """If labels were shuffled among the instances, there would be far more pairs."""
    Y = problem.train.labels
    shuffled = Y.copy()
    shuffled.indices = np.random.default_rng(0).permutation(Y.indices)
    shuffled.sum_duplicates()
    shuffled.data[:] = 1
    ours, by_chance = ((labels.T @ labels).tocoo() for labels in (Y, shuffled))
    # Σ c² is large where the pairs that occur are few.
    concentration, none = (
        (c.data[c.row != c.col].astype(np.float64) ** 2).sum() / c.data[c.row != c.col].sum() ** 2
        for c in (ours, by_chance)
    )
    assert concentration > 1.3 * none


def test_a_name_and_a_seed_give_the_same_always() -> None:
    first, again = make_shaped("wikilshtc-shaped-1000th"), load_dataset("wikilshtc-shaped-1000th")
    assert first.fingerprint == again.fingerprint
    assert make_shaped("wikilshtc-shaped-1000th", seed=31).fingerprint != first.fingerprint
    # The very numbers, so that a change of the model does not go unnoticed: measurements on it would not compare.
    assert first.fingerprint.startswith("6c2e3bb8789b0d59")


def test_labels_alone_are_those_of_the_whole() -> None:
    alone, whole = shaped_labels("wikilshtc-shaped-1000th"), make_shaped("wikilshtc-shaped-1000th").train.labels
    assert alone.shape == whole.shape and (alone != whole).nnz == 0


def test_blocks_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 blocks the draws differ, but not the sizes."""
    monkeypatch.setattr("fedalc.data.synthetic.world._WORDS_AT_ONCE", 1 << 10)
    cut = make_shaped("wikilshtc-shaped-1000th")
    assert len(cut.train) == 1779 and np.diff(cut.train.features.indptr).min() > 0
    assert np.diff(cut.train.features.indptr).mean() == pytest.approx(42, rel=0.02)


@pytest.mark.long
def test_it_can_be_learnt() -> None:
    """Far better than always predicting the most frequent label, and not perfect."""
    problem = make_shaped("wikilshtc-shaped-1000th")
    result = fedalc.train(data=problem, method="fedalc-exact", selection={"validation": 0.0}).result
    commonest = np.argsort(-problem.train.labels.getnnz(axis=0), kind="stable")[0]
    named = 100 * problem.test.labels[:, commonest].mean()
    assert result["generated"] is True
    assert merge([result])[0].dataset == "wikilshtc-shaped-1000th (generated)"
    assert "on dataset wikilshtc-shaped-1000th (generated)" in sentence(result, [])
    assert named + 50 < result["metrics"]["P@1"] < 99


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    heard: list[tuple[str, int, int]] = []
    write_shaped("amazoncat-shaped-1000th", folder, progress=lambda *said: heard.append(said))
    read, made = load_dataset(folder, cache=False), make_shaped("amazoncat-shaped-1000th")
    for ours, theirs in ((read.train, made.train), (read.test, made.test)):
        for one, other in ((ours.features, theirs.features), (ours.labels, theirs.labels)):
            assert one.shape == other.shape
            for array in ("data", "indices", "indptr"):
                np.testing.assert_array_equal(getattr(one, array), getattr(other, array))
    assert heard == [("train.txt", 1187, 1187), ("test.txt", 307, 307)]
    with pytest.raises(FedalcError, match=r"train\.txt: already exists: remove it, or choose another folder"):
        write_shaped("amazoncat-shaped-1000th", folder)


def test_only_generated_problems_can_be_made() -> None:
    with pytest.raises(FedalcError, match=r"^bibtex is not a generated problem; there are amazoncat-shaped, wikilshtc"):
        make_shaped("bibtex")


def test_sizes_by_hand() -> None:
    """Seven labels for three instances, one of which must have four: the others share the rest."""
    sizes = _sizes(np.array([0, 4, 0]), 5, 0.0, 6, np.random.default_rng(0))
    assert sizes.tolist() == [1, 4, 1]
    assert _sizes(np.array([0, 0, 0]), 5, 0.5, 10, np.random.default_rng(0)).sum() == 10
    assert _sizes(np.array([0, 0]), 2, 3.0, 100, np.random.default_rng(0)).tolist() == [2, 2]


def test_commands_say_that_it_is_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == 0, result.output
        return result.stdout

    line = next(line for line in run("list").splitlines() if "wikilshtc-shaped" in line)
    assert line.split() == [
        "wikilshtc-shaped", "1,778,351", "587,084", "1,617,899", "325,056", "3.19", "generated",
    ]  # fmt: skip
    said = run("info", "wikilshtc-shaped-1000th")
    assert "wikilshtc-shaped-1000th: GENERATED, not the real WikiLSHTC-325K" in said
    assert "1,779 train, 588 test, 1,618 features, 326 labels" in said
    assert run("check", "wikilshtc-shaped-1000th").count(" ok ") == 6
    folder = tmp_path / "files"
    said = run("generate", "wikilshtc-shaped-1000th", str(folder))
    assert said == f"{folder}: wikilshtc-shaped-1000th, generated: made up, not the real data\n"
    assert (folder / "test.txt").read_text().startswith("588 1618 326\n")
