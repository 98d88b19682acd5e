"""The commands as a user runs them: printed text, written files, and refusals."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import fedalc
from fedalc.cli.main import main
from fedalc.core.registry import METHODS
from fedalc.data.synthetic.demo import DemoSize, make_demo
from tests.commands import run
from tests.data.layouts import write_files

TINY = ["--set", "rounds=6", "--set", "encoder.dim=8", "--set", "selection.every=2"]


def write_xmlc(path: Path, split: object) -> None:
    X, Y = split.features, split.labels  # type: ignore[attr-defined]
    with path.open("w") as file:
        file.write(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n")
        for x, y in zip(X, Y, strict=True):
            words = " ".join(f"{i}:{v}" for i, v in zip(x.indices, x.data, strict=True))
            file.write(",".join(map(str, y.indices)) + " " + words + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a user's own dataset, and one run on it."""
    place = tmp_path_factory.mktemp("user")
    (place / "mine").mkdir()
    dataset = make_demo(DemoSize(train=150, test=40, words=300))
    write_xmlc(place / "mine" / "train.txt", dataset.train)
    write_xmlc(place / "mine" / "test.txt", dataset.test)
    (place / "mine" / "labels.txt").write_text("".join(name + "\n" for name in dataset.label_names))
    run("train", "--dataset", "mine", "--method", "fedaws", "--name", "first", *TINY, cwd=place)
    return place


def test_help_is_enough_to_start(tmp_path: Path) -> None:
    text = run("--help", cwd=tmp_path).stdout
    for command in ("train", "compare", "predict", "data"):
        assert command in text
    assert "fedavg-fixed" in run("train", "--help", cwd=tmp_path).stdout


@pytest.mark.long
def test_shells_complete_commands_and_names(tmp_path: Path) -> None:
    for typed, expected in (
        ("fedalc com", ["compare"]),
        ("fedalc train --method fedalc-", ["fedalc-fixed", "fedalc-exact"]),
    ):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_FEDALC_COMPLETE": "complete_bash"}
        command = [sys.executable, "-m", "fedalc"]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **words}, capture_output=True, text=True)
        assert done.stdout.split()[: len(expected)] == expected


def test_version(tmp_path: Path) -> None:
    """In a separate process, as a user starts it."""
    command = [sys.executable, "-m", "fedalc", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fedalc", version("fedalc")] and not done.stderr


@pytest.mark.parametrize(
    ("loaded", "slow"),
    [("fedalc.cli.main", {"torch", "matplotlib", "sklearn"}), ("fedalc.workflows.train", {"sklearn", "scipy.stats"})],
)
def test_only_what_is_needed_is_loaded(tmp_path: Path, loaded: str, slow: set[str]) -> None:
    code = f"import sys, {loaded}; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_train_writes_a_run_folder_and_says_where(folder: Path) -> None:
    result = json.loads((folder / "runs" / "first" / "result.json").read_text())
    assert result["method"] == "fedaws" and result["dataset"] == "mine"
    assert f'dataset = "{folder / "mine"}"' in (folder / "runs" / "first" / "config.toml").read_text()
    assert (folder / "runs" / "first" / "report.html").exists()


def test_predict_writes_names_and_scores_in_both_formats(folder: Path) -> None:
    table = run("predict", "runs/first", "mine/test.txt", "--top", "3", cwd=folder).stdout
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == 40 * 3
    assert [row["rank"] for row in rows[:3]] == ["1", "2", "3"]
    names = (folder / "mine" / "labels.txt").read_text().splitlines()
    assert all(row["name"] == names[int(row["label"])] for row in rows)
    scores = [float(row["score"]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True) and all(-1 <= s <= 1 for s in scores)
    run("predict", "runs/first", "mine/test.txt", "--format", "jsonl", "--out", "p.jsonl", cwd=folder)
    lines = [json.loads(line) for line in (folder / "p.jsonl").read_text().splitlines()]
    assert len(lines) == 40 and len(lines[0]["labels"]) == 5
    assert [entry["label"] for entry in lines[0]["labels"][:3]] == [int(row["label"]) for row in rows[:3]]


def test_predict_takes_files_without_labels_and_writes_through_links(folder: Path) -> None:
    lines = (folder / "mine" / "test.txt").read_text().splitlines()
    features = [line.partition(" ")[2] for line in lines[1:]]
    (folder / "new.txt").write_text("\n".join(["40 300 0", *(" " + line for line in features)]) + "\n")
    (folder / "link.csv").symlink_to(folder / "target.csv")
    run("predict", "runs/first", "new.txt", "--out", "link.csv", cwd=folder)
    labelled = run("predict", "runs/first", "mine/test.txt", cwd=folder).stdout
    assert (folder / "link.csv").is_symlink() and (folder / "target.csv").read_text() == labelled


@pytest.mark.parametrize("method", ["ovr", "sleec"])
def test_an_oracle_trains_and_predicts_like_any_method(folder: Path, method: str) -> None:
    text = run("train", "--dataset", "mine", "--method", method, "--name", method, cwd=folder).stdout
    assert f"{method} (centralised)" in text and "done" in text
    rows = list(csv.DictReader(run("predict", f"runs/{method}", "mine/test.txt", cwd=folder).stdout.splitlines()))
    assert len(rows) == 40 * 5 and float(rows[0]["score"]) >= float(rows[1]["score"])
    error = run("train", "--dataset", "mine", "--method", method, "--epsilon", "1", cwd=folder, code=2).stderr
    assert "privacy.mechanism" in error and "centralised" in error


def test_predict_refuses_other_features(folder: Path) -> None:
    (folder / "other.txt").write_text("1 3 2\n0 1:1\n")
    error = run("predict", "runs/first", "other.txt", cwd=folder, code=2).stderr
    assert "other.txt" in error and "300" in error


def test_compare_makes_table_curves_and_page_and_continues(folder: Path, draw: Callable[..., None]) -> None:
    draw("fedalc.report.plots.learning_curves")
    command = ["compare", "--dataset", "mine", "--methods", "fedavg,fedalc", "--seeds", "0,1", "--name", "c", *TINY]
    text = run(*command, cwd=folder).stdout
    assert "fedavg" in text and "fedalc" in text
    made = folder / "runs" / "c"
    assert (made / "curves.png").stat().st_size > 10_000
    assert len(json.loads((made / "results.json").read_text())) == 4
    assert "| fedavg" in (made / "table.md").read_text()
    before = (made / "fedavg-s0" / "result.json").stat().st_mtime_ns
    run(*command, cwd=folder)
    assert (made / "fedavg-s0" / "result.json").stat().st_mtime_ns == before
    error = run(*command, "--set", "rounds=8", cwd=folder, code=2).stderr
    assert "other settings" in error


@pytest.mark.long
def test_compare_leaves_out_what_the_settings_do_not_allow(tmp_path: Path) -> None:
    """Unless the user named the method, or no method would remain."""
    keys = {"data_dir": tmp_path, "folder": tmp_path / "c", "dataset": "demo", "rounds": 2}
    some = {"server.participation=0.5", "encoder.dim=8", "selection.validation=0", "fixed.steps=1"}
    comparison = fedalc.compare(overrides=sorted(some), **keys)
    solved = {"fedalc-oneshot", "fedalc-tree", "fedalc-columns", "fedalc-plda", "fedncm", "fed3r"}
    assert set(comparison.left_out) == {"fedalc-exact", *solved}
    assert "server.participation = 1" in comparison.left_out["fedalc-oneshot"]
    assert len(comparison.runs) == len(METHODS) - 7
    with pytest.raises(fedalc.ConfigError, match="participation"):
        fedalc.compare(["fedalc-exact"], overrides=sorted(some), **keys)
    with pytest.raises(fedalc.ConfigError, match="did you mean"):
        fedalc.compare(overrides=["server.participatoin=0.5"], **keys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--dataset", "bibtx"], "bibtex"),
        (["train", "--dataset", "./nowhere"], "nowhere"),
        (["train", "--method", "fedfoo"], "method"),
        (["train", "--set", "roundz=3"], "did you mean 'rounds'"),
        (["train", "--config", "absent.toml"], "absent.toml: no such file"),
        (["train", "--resume", "nowhere"], "not a run folder"),
        (["train", "--device", "abacus"], "device"),
        (["train", "--engine", "fused", "--set", "client.epochs=3"], "client.epochs"),
        (["train", "--set", "selection.validation=0.0001"], "validation"),
        (["compare", "--methods", "fedavg,foo"], "foo"),
        (["compare", "--seeds", "a"], "whole number"),
        (["compare", "--set", "seed=7"], "--seeds"),
        (["train", "--set", "encoder.dim=100000000"], "encoder: training needs"),
        (["train", "--name", "../evil"], "name"),
        (["train", "--out", "/dev/null/x"], "/dev/null/x"),
        (["data", "fetch", "demo"], "fedalc generates it"),
        (["predict", "nowhere", "x.txt"], "nowhere"),
        (["data", "info", "bibtx"], "bibtex"),
        (["data", "fetch", "bibtex"], "Mulan"),
        (["data", "check", "bibtex", "--data-dir", "nowhere"], "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_one_clear_line_and_writes_nothing(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("FEDALC_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedalc", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("begun", [True, False])
def test_stopped_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    def stopped(*_: Any, folder: Path, **__: Any) -> None:
        if begun:
            write_files(folder, {"config.toml": b""})
        raise KeyboardInterrupt

    monkeypatch.setattr("fedalc.workflows.train.train", stopped)
    monkeypatch.setattr(sys, "argv", ["fedalc", "train", "--out", str(tmp_path), "--name", "mine", "--quiet"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    hint = f" at once; continue with: fedalc train --resume {tmp_path / 'mine'}" if begun else ""
    assert capsys.readouterr().err == f"stopped{hint}\n"


@pytest.mark.filterwarnings("default:.* no effect with")
def test_a_setting_without_effect_is_noted_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--method", "fedavg", "--set", "regularizer.lambda=5", "--set", "client.margin=0.5"]
    (tmp_path / "x.toml").write_text("[fixed]\nalpha = 0.3\n")  # a file may be for several methods
    monkeypatch.setattr(
        sys, "argv", ["fedalc", "train", "--dataset", str(tmp_path), "--config", str(tmp_path / "x.toml"), *given]
    )
    with pytest.raises(SystemExit):
        main()
    note, error = capsys.readouterr().err.splitlines()
    assert note == "note: regularizer.lambda has no effect with method fedavg"
    assert error.startswith("error: ") and "no train file" in error


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_wrong_setting_is_refused_before_torch_is_loaded(tmp_path: Path, command: str) -> None:
    code = (
        "import sys\nfrom fedalc.cli.main import main\n"
        f"sys.argv = ['fedalc', '{command}', '--set', 'client.learning_rate=abc']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    print(stop.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "2 False" and "client.learning_rate: " in done.stderr


def test_a_malformed_dataset_names_file_and_line_and_writes_nothing(folder: Path) -> None:
    bad = folder / "bad"
    bad.mkdir()
    (bad / "train.txt").write_text("2 3 2\n0 1:1\n1 5:1\n")
    (bad / "test.txt").write_text("1 3 2\n0 1:1\n")
    error = run("train", "--dataset", "bad", "--name", "bad", cwd=folder, code=2).stderr
    assert "train.txt:3" in error
    assert not (folder / "runs" / "bad").exists()


def test_data_list_and_info(tmp_path: Path) -> None:
    listed = run("data", "list", cwd=tmp_path).stdout
    for name in (
        "bibtex",
        "eurlex-4k",
        "eurlex57k",
        "eurlex15k",
        "amazoncat-13k",
        "amazon-670k",
        "wikilshtc-325k",
        "demo",
    ):
        assert name in listed
    assert "4,880" in run("data", "info", "bibtex", cwd=tmp_path).stdout


@pytest.mark.long
def test_ctrl_c_saves_and_resume_finishes(folder: Path) -> None:
    command = [sys.executable, "-m", "fedalc", "train", "--dataset", "mine", "--method", "fedalc", "--name", "long"]
    command += ["--set", "rounds=100000", "--set", "encoder.dim=8", "--set", "selection.every=50"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    history = folder / "runs" / "long" / "history.jsonl"
    deadline = time.monotonic() + 300
    while not (history.exists() and history.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "fedalc train --resume runs/long" in error and "Traceback" not in error
    assert (folder / "runs" / "long" / "checkpoint" / "facts.json").exists()
    # Finishing 100,000 rounds would take long: a resumed run that is stopped again has gone on from there.
    before = json.loads((folder / "runs" / "long" / "checkpoint" / "facts.json").read_text())["federated"]["round"]
    resume = [sys.executable, "-m", "fedalc", "train", "--resume", "runs/long"]
    process = subprocess.Popen(resume, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lines = len(history.read_text().splitlines())
    deadline = time.monotonic() + 300
    while len(history.read_text().splitlines()) <= lines and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    after = json.loads((folder / "runs" / "long" / "checkpoint" / "facts.json").read_text())["federated"]["round"]
    assert after > before


def test_files_of_one_stem_are_told_apart_where_their_runs_clash(tmp_path: Path) -> None:
    """a.csv and a.tsv have the same default name."""
    rows = [f"red apples {n},fruit\nblue sky {n},sky\n" for n in range(9)]
    (tmp_path / "a.csv").write_text("text,labels\n" + "".join(rows))
    (tmp_path / "a.tsv").write_text(("text,labels\n" + "".join(rows)).replace(",", "\t"))
    run("train", "--dataset", "a.csv", "--no-tune", cwd=tmp_path)
    ended = run("train", "--dataset", "a.tsv", "--no-tune", cwd=tmp_path, code=2)
    said = f"already holds a run on other data, {tmp_path / 'a.csv'}; choose another folder (--name, in"
    assert said in ended.stderr and "--resume" not in ended.stderr
    again = run("train", "--dataset", "a.csv", "--no-tune", cwd=tmp_path, code=2).stderr
    assert "already holds a run, which is finished; replace it (--overwrite, in Python" in again
    command = ["--methods", "fedalc-oneshot", "-q", "--name", "c"]
    run("compare", "--dataset", "a.csv", *command, cwd=tmp_path)
    ended = run("compare", "--dataset", "a.tsv", *command, cwd=tmp_path, code=2)
    assert f"was made on other data, {tmp_path / 'a.csv'}; give another folder" in ended.stderr
