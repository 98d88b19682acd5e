"""Settings whose default has changed mean in an old run folder what they meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalc import experiment
from fedalc.data import ImageOptions, load_dataset
from fedalc.runs.folder import read_settings
from fedalc.workflows.train import begun_with, image_options
from tests.data.layouts import voc, write_files

KEPT = Path(__file__).parent.parent / "kept" / "v0.1"


@pytest.mark.parametrize("line", ["", "difficult = false", "difficult = true"])
def test_difficult_objects_count_in_an_old_run_as_they_did(tmp_path: Path, line: str) -> None:
    text = (KEPT / "fedalc" / "config.toml").read_text(encoding="utf-8")
    assert "difficult = false" in text
    (tmp_path / "config.toml").write_text(text.replace("difficult = false", line), encoding="utf-8")
    assert image_options(read_settings(tmp_path)).difficult is (line == "difficult = true")


def test_new_runs_write_what_they_mean(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(experiment().to_toml(), encoding="utf-8")
    assert "difficult = true" in (tmp_path / "config.toml").read_text(encoding="utf-8")
    assert read_settings(tmp_path).images.difficult


def test_an_old_folder_without_settings_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('dataset = "demo"\n[server]\nlearning_rate = 0.5\n', encoding="utf-8")
    settings = read_settings(tmp_path)
    assert not settings.images.difficult and settings.images.size == 96
    assert (settings.server.aggregation, settings.server.learning_rate) == ("mean", 0.5)


def test_an_old_comparison_goes_on_unless_its_labels_were_others(tmp_path: Path) -> None:
    write_files(tmp_path / "data" / "voc2012", voc())
    data = load_dataset("voc2012", tmp_path / "data", images=ImageOptions(size=8))
    for dataset in ("voc2012", "mosaics"):
        folder = tmp_path / dataset
        folder.mkdir()
        keys = {"dataset": dataset, "encoder": {"name": "resnet-small"}}
        before, now = (experiment({**keys, "images": {"difficult": counted}}) for counted in (False, True))
        (folder / "config.toml").write_text(before.to_toml(), encoding="utf-8")
        assert begun_with(before, folder, data) == before
        assert begun_with(now, folder, data) == (None if dataset == "voc2012" else before)
