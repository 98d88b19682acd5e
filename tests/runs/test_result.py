"""The schema of result.json: defined in one place, documented, and readable by every version."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import fedalc
from fedalc.errors import FedalcError
from fedalc.runs.result import Result, read_partial_result, read_result
from tests.problems import small_dataset

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "tests" / "kept").glob("*/*/result.json"))


def test_every_field_is_documented_in_the_order_of_the_file() -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text().split("## result.json")[1]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(Result.model_fields)


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_results_of_older_versions_are_read_and_written_as_they_are(file: Path) -> None:
    found = read_result(file.parent)
    assert json.dumps(Result(**found).to_dict()) == json.dumps(found) == json.dumps(json.loads(file.read_text()))


@pytest.mark.parametrize("method", ["fedalc", "ovr"])
def test_a_run_fills_every_field_in_order(tmp_path: Path, method: str) -> None:
    run = fedalc.train(data=small_dataset(), method=method, rounds=2, folder=tmp_path / "run")
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert list(written) == [
        name for name in Result.model_fields if name not in ("generated", "tuning", "verification")
    ]
    assert written == dict(run.result) == dict(fedalc.load_run(tmp_path / "run").result)
    assert (written["engine"], written["clients"] > 0) == ((None, False) if method == "ovr" else ("fused", True))
    assert written["peak_memory_mb"] > 0


def test_fields_of_a_newer_version_are_kept(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"metrics": {"P@1": 3}, "carbon": {"kg": 1}, "seed": null}')
    assert read_result(tmp_path) == {"metrics": {"P@1": 3}, "carbon": {"kg": 1}, "seed": None}


def test_an_error_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"metrics": {"P@1": 3.0}, "bytes_up": "many"}')
    with pytest.raises(FedalcError, match=r"damaged: `bytes_up`: .*valid integer; .*--resume"):
        read_partial_result(tmp_path)


@pytest.mark.parametrize("method", ["fedalc-oneshot", "ovr"])
def test_the_size_of_the_test_set_is_in_the_result(method: str) -> None:
    data = small_dataset()
    found = fedalc.train(data, method=method).result
    assert found["test_records"] == len(data.test)
    assert found["test_labels"] == len(set(data.test.labels.indices.tolist()))
    without = fedalc.train(fedalc.Dataset("train only", data.train), method=method).result
    assert not {"test_records", "test_labels"} & set(without)
