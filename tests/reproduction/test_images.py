"""Picture tables on small data: their contents, memory, and one run from archive to table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedalc.reproduction import table_text as text
from fedalc.reproduction.data import absent_data, client_sizes
from fedalc.reproduction.plan import Plan, make_plan
from fedalc.reproduction.results import Result
from fedalc.reproduction.table_spec import find_folder, read_table
from tests.commands import run
from tests.data.layouts import pack, picture, voc
from tests.reproduction.problems import cell, line, outcome, write_table

SMALL = ["encoder.name=resnet-small", "encoder.dim=8", "images.size=16", "selection.validation=0"]


def plan_of(name: str, out: Path, **rest: object) -> Plan:
    table = read_table(find_folder(name))
    return make_plan(table, out, presets=table.columns, **rest)  # type: ignore[arg-type]


def test_an_archive_counts_as_present(tmp_path: Path) -> None:
    plan = plan_of("voc2012", tmp_path)
    missing = f"dataset 'voc2012-leaking' is not in {tmp_path / 'voc2012'}: "
    hint = "; `fedalc data info voc2012-leaking` says how to get it"
    assert absent_data(plan, tmp_path) == f"{missing}no such folder{hint}"
    (tmp_path / "voc2012").mkdir()
    assert absent_data(plan, tmp_path) == f"{missing}the folder has neither its files nor an archive of them{hint}"
    pack(tmp_path / "voc2012" / "any.tar", {"any": b""})
    assert absent_data(plan, tmp_path) is None


@pytest.mark.parametrize("name", ["demo", "mosaics"])
def test_what_is_made_on_the_spot_is_never_absent(name: str, tmp_path: Path) -> None:
    plan = plan_of("voc2007" if name == "mosaics" else "bibtex", tmp_path, keys={"dataset": name})
    assert plan.jobs and absent_data(plan, tmp_path) is None


def test_a_folder_of_pictures_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "train.csv").write_text("picture,labels\na.png,x\n")
    plan = plan_of("voc2007", tmp_path, keys={"dataset": str(own)})
    assert plan.jobs
    assert "test.csv" in (absent_data(plan, tmp_path) or "")
    (own / "test.csv").write_text("picture,labels\nb.png,x\n")
    assert absent_data(plan, tmp_path) is None


def test_what_does_not_fit_pictures_is_left_out_with_the_reason(tmp_path: Path) -> None:
    table = plan_of("bibtex", tmp_path, keys={"dataset": "voc2012", "encoder": {"name": "resnet18"}})
    assert table.left_out["oracles/sleec"] == "method: sleec is for sparse features, but voc2012 has pictures"
    assert table.left_out["oracles/ovr"] == "method: ovr is for sparse features, but voc2012 has pictures"
    assert "strong/fedavg" not in table.left_out and not any(job.preset == "oracles" for job in table.jobs)
    other = plan_of("bibtex", tmp_path, keys={"dataset": "voc2012", "encoder": {"name": "mlp"}})
    assert other.left_out["paper/fedavg"].startswith("encoder.name: mlp does not fit: voc2012 has pictures")
    assert not other.jobs
    text_only = plan_of("voc2007", tmp_path, keys={"dataset": "demo"})
    assert text_only.left_out["paper/flag"] == (
        "encoder.name: resnet50 does not fit: demo has no pictures: use mlp or linear or random-features or squares"
    )


def test_sizes_of_clients_are_read_from_pictures_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))
    pack(tmp_path / "voc2012" / "any.tar", voc())
    keys = {"dataset": "voc2012-leaking", "encoder": {"name": "resnet-small"}, "images": {"size": 8}}
    plan = make_plan(read_table(write_table(tmp_path / "mine")), tmp_path, presets=["paper"], keys=keys)
    sizes = client_sizes(plan, tmp_path)
    assert sizes is not None and sizes.sum() == 5 and np.count_nonzero(sizes) == 4  # dog, person, cat, sofa


def test_columns_are_the_tables_metrics() -> None:
    done = cell()
    done.results = [Result(seed=0, metrics={"mAP": 40.5, "P@1": 9.0, "P@3": 20.25}, cost={})]
    lines = [
        line(
            "FedALC", "fedalc", published=(40.78, 20.41), cells={"paper": done, "clean": cell(missing={0: "not run"})}
        ),
        line("FedAwS", "fedaws", published=(37.7, 18.04), cells={"paper": cell(30.0), "clean": cell()}),
    ]
    found = outcome(lines=lines, metrics=("mAP", "P@3"), presets=["paper", "clean"], figures=[])
    assert [(column.group, column.metric) for column in text.columns(found)] == [
        ("published", "mAP"), ("published", "P@3"), ("ours, paper", "mAP"), ("ours, paper", "P@3"),
        ("ours, clean", "mAP"), ("ours, clean", "P@3"),
    ]  # fmt: skip
    written = text.markdown(found)
    assert "| FedALC |  | **40.78** | **20.41** | 40.50 | **20.25** | – not run | – |" in written
    assert "| FedAwS |  | 37.70 | 18.04 | – no mAP | 15.00 |" in written
    assert "Ours: preset paper and preset paper on the split that does not leak, mean" in written


@pytest.mark.long
def test_the_papers_split_and_the_clean_one_from_an_archive(tmp_path: Path) -> None:
    files = voc()
    files["VOCdevkit/VOC2012/JPEGImages/000003.jpg"] = picture((10, 200, 10), (300, 200))
    pack(tmp_path / "data" / "voc2012" / "VOCtrainval_11-May-2012.tar", files)
    command = ["reproduce", "voc2012", "--data-dir", "data", "--rounds", "2", "--device", "cpu", "--jobs", "1"]
    for setting in SMALL:
        command += ["--set", setting]
    printed = run(*command, "--only", "fedalc", cwd=tmp_path).stdout
    assert "[2/2]" in printed and "not run" in printed
    made = tmp_path / "runs" / "reproduce" / "voc2012"
    table = json.loads((made / "table.json").read_text())
    assert table["metrics"] == ["mAP", "P@3"] and table["command"].startswith("fedalc reproduce voc2012 --rounds 2 ")
    alc = next(line for line in table["lines"] if line["method"] == "fedalc")
    assert alc["published"] == [40.78, 20.41]
    for column, dataset, clients in (("paper", "voc2012-leaking", 4), ("clean", "voc2012", 3)):
        assert alc["cells"][column]["results"][0]["metrics"]["mAP"] >= 0
        result = json.loads((made / column / "fedalc-s0" / "result.json").read_text())
        assert (result["dataset"], result["clients"]) == (dataset, clients)
    (copies,) = (tmp_path / "cache").glob("pictures-*/pixels.u8")  # shared by the splits, of the size asked for
    assert copies.stat().st_size == 3 * 16 * 16 * 3
