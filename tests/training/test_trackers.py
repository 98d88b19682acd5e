"""Trackers with the real packages: what they logged is read back from their own files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedalc
from fedalc.config.experiment import flat
from fedalc.errors import ConfigError, FedalcError, Interrupted
from fedalc.labels.collection.keys import Key
from fedalc.runs import history
from fedalc.runs.folder import read_settings
from fedalc.training.callbacks import make_callback
from fedalc.training.callbacks.tracker import Tracker, final_figures
from tests.commands import run
from tests.problems import StopAfter, small_dataset, small_files


@pytest.fixture(autouse=True)
def no_services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


def train(folder: Path, tracker: Tracker, *more: Any, **keys: Any) -> fedalc.Run:
    settings = {"method": "fedavg", "rounds": 4, "selection": {"every": 2}, "encoder": {"name": "linear", "dim": 4}}
    callbacks = [tracker, *more]
    return fedalc.train(data=small_dataset(instances=100), folder=folder, callbacks=callbacks, **{**settings, **keys})


def expected(folder: Path) -> dict[tuple[str, int], float]:
    """The figures of history.jsonl as trackers name them."""
    found = {}
    for record in history.read(folder / "history.jsonl"):
        for name, value in {"loss": record["loss"], **record["metrics"], **record["collapse"]}.items():
            found[f"{record['phase']}/{name}", record["round"]] = value
    return found


def test_tensorboard_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra `tracking`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tmp_path / "run", make_callback("tensorboard"))
    events = EventAccumulator(str(tmp_path / "run" / "tracking" / "tensorboard"))
    events.Reload()
    logged = {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    for (name, step), value in expected(tmp_path / "run").items():
        assert logged[name.replace(" ", "_"), step] == pytest.approx(value, rel=1e-6)
    for name, value in run.metrics.items():
        assert logged[f"test/{name}", run.result["rounds"]] == pytest.approx(value, rel=1e-6)
    (text,) = events.Tensors("settings/text_summary")
    assert b"server.ridge = 1.0" in text.tensor_proto.string_val[0]
    (kept,) = events.Tensors("kept/text_summary")
    assert run.result["kept"].encode() in kept.tensor_proto.string_val[0]


@pytest.mark.long
def test_mlflow_database(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra `tracking`")
    pytest.importorskip("alembic", reason="MLflow's local database needs it")
    with pytest.raises(Interrupted):
        train(tmp_path / "runs" / "one", make_callback("mlflow"), StopAfter("select", 2))
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'fedalc small'")
    (begun,) = client.search_runs([experiment.experiment_id])
    settings = read_settings(tmp_path / "runs" / "one")
    run = fedalc.train(
        settings, data=small_dataset(instances=100), folder=tmp_path / "runs" / "one", resume=True,
        callbacks=make_callback("mlflow"),
    )  # fmt: skip
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.run_id == begun.info.run_id and logged.info.status == "FINISHED"
    assert logged.info.run_name == "one" and logged.data.tags["kept"] == run.result["kept"]
    assert logged.data.params == {name: str(value) for name, value in flat(settings.to_dict()).items()}
    for (name, step), value in expected(tmp_path / "runs" / "one").items():
        curve = client.get_metric_history(logged.info.run_id, name.replace("@", "_at_"))
        assert {point.step: point.value for point in curve}[step] == pytest.approx(value)
    assert logged.data.metrics["test/P_at_1"] == pytest.approx(run.metrics["P@1"])
    assert {item.path for item in client.list_artifacts(logged.info.run_id)} == {"result.json", "report.html"}


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records of a .wandb file: seven bytes, then a LevelDB log, whose records span blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, block, parts = file.read_bytes(), 7, 1 << 15, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if block - at % block < 7:  # a header does not fit: the next block
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.mark.long
def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra `tracking`")
    secret = Key.fresh()
    secret.write(tmp_path / "key")
    run = train(
        tmp_path / "run", make_callback("wandb"), seed=3, method="fedalc", collection={"key": str(tmp_path / "key")}
    )
    (file,) = (tmp_path / "run" / "tracking" / "wandb").glob("offline-run-*/run-*.wandb")
    logged: dict[tuple[str, int], float] = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    artifacts: list[str] = []
    for _ in range(100):  # its own process writes the file, and may be late
        if any(record.HasField("exit") for record in wandb_records(file)):
            break
        time.sleep(0.2)
    for record in wandb_records(file):
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in row.items():
            step = row.get(f"{name.partition('/')[0]}/round")
            if step is not None:
                logged[name, step] = value
        for part in (record.config, record.run.config):
            config |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in part.update}
        summary |= {item.key or "/".join(item.nested_key): item.value_json for item in record.summary.update}
        if record.request.log_artifact.artifact.name or record.artifact.name:
            artifacts.append(record.artifact.name or record.request.log_artifact.artifact.name)
    for (name, step), value in expected(tmp_path / "run").items():
        assert logged[name, step] == pytest.approx(value)
    assert config["seed"] == 3 and config["server.optimizer"] == run.settings.server.optimizer
    assert float(summary["test/P@1"]) == pytest.approx(run.metrics["P@1"])
    assert any(name.startswith("report-") for name in artifacts)
    everything = b"".join(path.read_bytes() for path in file.parent.rglob("*") if path.is_file())
    written = (tmp_path / "key").read_bytes()
    assert config["collection.key"] == str(tmp_path / "key") and len(written) > 20
    assert not any(line.strip() and line.strip() in everything for line in written.splitlines())


@pytest.mark.long
def test_every_run_of_a_comparison_is_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra `tracking`")
    small_files(tmp_path / "mine")
    command = [
        "compare",
        "--dataset",
        "mine",
        "--methods",
        "fedavg,fedavg-fixed",
        "--rounds",
        "2",
        "--name",
        "both",
        "-q",
    ]
    run(*command, "--set", "encoder.dim=5", "--track", "tensorboard", cwd=tmp_path)
    files = {path.parts[-4] for path in (tmp_path / "runs" / "both").rglob("tracking/tensorboard/events*")}
    assert files == {"fedavg-s0", "fedavg-fixed-s0"}
    run("runs", "delete", "both", "--yes", cwd=tmp_path)
    assert not (tmp_path / "runs" / "both").exists()


class Failing(Tracker):
    """Fails where it is told to."""

    package = "json"

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        self.called: list[str] = []

    def _do(self, what: str) -> None:
        self.called.append(what)
        if what == self.at:
            raise OSError("the service does not answer")

    def open(self, folder: Path, settings: Any, before: str | None) -> str:
        self._do("open")
        return "id"

    def log_settings(self, settings: Any) -> None:
        self._do("settings")
        assert settings["method"] == "fedavg"

    def log_figures(self, figures: Any, step: int) -> None:
        self._do("figures")

    def close(self, figures: Any, result: Any, report: Path | None) -> None:
        self._do("close")
        assert report is not None and figures == final_figures(result)


@pytest.mark.parametrize("at", ["figures", "close", "never"])
def test_a_tracker_that_fails_does_not_cost_the_run(tmp_path: Path, at: str) -> None:
    tracker = Failing(at)
    if at == "never":
        run = train(tmp_path / "run", tracker)
    else:
        with pytest.warns(UserWarning, match="json failed and no longer tracks this run: the service does not answer"):
            run = train(tmp_path / "run", tracker)
    assert run.metrics and tracker.called.count(at) == (at != "never")  # it is not asked again
    if at == "never":
        records = history.read(tmp_path / "run" / "history.jsonl")
        assert tracker.called == ["open", "settings", *["figures"] * len(records), "close"]


def test_what_a_tracker_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedalcError, match="json cannot track this run: the service does not answer"):
        train(tmp_path / "run", Failing("open"))
    with pytest.raises(ConfigError, match="needs a run folder"):
        fedalc.train(data=small_dataset(), method="fedavg", rounds=1, callbacks=Failing("never"))
    monkeypatch.setattr("fedalc.training.callbacks.tracker.find_spec", lambda name: None)
    with pytest.raises(FedalcError, match=r"mlflow is not installed; .*pip install 'fedalc\[tracking\]'"):
        make_callback("mlflow")
    with pytest.raises(ConfigError, match=r"--track: unknown callback 'tensorbord' \(did you mean 'tensorboard'\?\)"):
        make_callback("tensorbord", "--track")


@pytest.mark.long
def test_a_search_is_tracked_with_the_settings_that_it_chose(tmp_path: Path) -> None:
    class Keeping(Failing):
        def log_settings(self, settings: Any) -> None:
            self.logged = settings

    tracker = Keeping("never")
    run = fedalc.train(data=small_dataset(instances=100), folder=tmp_path / "run", callbacks=tracker)
    assert tracker.logged == flat(run.settings.to_dict()) and tracker.called[0] == "open"
    assert tracker.called.count("open") == 1 and tracker.called[-1] == "close"
