"""Files of version 0.1 load and give the same results. Never make these files again with a newer version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.core.tensor_folder import load_folder
from fedalc.data.synthetic.demo import make_demo
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.engine import FlowerEngine
from fedalc.deployment.state import ServerState
from fedalc.labels.collection.identity import make_hasher
from fedalc.labels.collection.join import read_messages
from fedalc.labels.collection.results import Collected
from fedalc.methods import Method
from fedalc.runs.folder import read_settings
from fedalc.training.federated import begin_training
from tests.commands import run
from tests.kept.__main__ import FINISHED, KEY, LINEAR, TEXTS

HERE = Path(__file__).parent / "v0.1"
OUTCOME = json.loads((HERE / "outcome.json").read_text())


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / name, tmp_path / name))


def gives(found: Any, expected: dict[str, Any]) -> bool:
    labels, scores = found.predict(make_demo(TEXTS).test.features, k=3)
    return np.array_equal(labels, expected["labels"]) and np.allclose(scores, expected["scores"], atol=1e-5)


@pytest.mark.parametrize("name", FINISHED)
def test_finished_runs(name: str) -> None:
    loaded = fedalc.load_run(HERE / name)
    assert loaded.metrics == OUTCOME[name]["metrics"]
    assert gives(loaded.model, OUTCOME[name])


def test_a_model() -> None:
    assert gives(fedalc.TrainedModel.load(HERE / "model"), OUTCOME["fedalc"])


def test_a_report_is_made_again(tmp_path: Path) -> None:
    copied("mlp", tmp_path)
    run("report", "mlp", cwd=tmp_path)
    assert "fedaws" in (tmp_path / "mlp" / "report.html").read_text()


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    texts = make_demo(TEXTS)
    settings = fedalc.experiment(file=HERE / "stopped" / "config.toml")
    again = fedalc.train(settings, data=texts, folder=copied("stopped", tmp_path), resume=True)
    then = OUTCOME["fedalc"]["metrics"]  # newer versions measure more
    assert {name: again.metrics[name] for name in then} == pytest.approx(then, abs=1e-4)
    assert gives(again.model, OUTCOME["fedalc"])


def test_a_comparison_goes_on(tmp_path: Path) -> None:
    place = copied("compared", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in place.glob("*/result.json")}
    compared = fedalc.compare(["fedavg", "fedalc"], dataset="demo", folder=place, **LINEAR)
    assert len(before) == len(compared.results) == 2
    assert before == {path: path.stat().st_mtime_ns for path in place.glob("*/result.json")}  # none was trained again


def test_what_parties_sent_and_what_was_made_of_it(tmp_path: Path) -> None:
    sent, refused = read_messages(sorted(HERE.glob("*.messages")))
    assert len(sent) == 2 and not refused
    (tmp_path / "parties.key").write_text(KEY)
    (tmp_path / "parties.key").chmod(0o600)
    names = make_demo(TEXTS).label_names
    settings = fedalc.experiment(
        {"collection": {"correlations": str(HERE / "correlations"), "key": str(tmp_path / "parties.key")}}
    )
    collected = Collected.load(HERE / "correlations")
    known = collected.for_labels(make_hasher(settings.collection, collected.protocol.run).labels(names))
    Y = make_demo(TEXTS).train.labels
    assert np.array_equal(known.counts, Y.getnnz(axis=0))


def test_a_deployments_state_and_run_folder() -> None:
    state = ServerState(HERE / "state")
    assert set(state.parties()) == {"party-0", "party-1"}
    assert state.connection()[0].startswith("127.0.0.1:")
    (submission,) = (HERE / "state" / "runs").glob("*.json")
    census = Census.load(HERE / "deployed")
    assert census is not None and len(census.roster.owner) == 44 and submission.name.startswith("deployed-")
    assert fedalc.load_run(HERE / "deployed").result["rounds"] == 2


def test_a_deployments_checkpoint() -> None:
    settings, census = read_settings(HERE / "deployed"), Census.load(HERE / "deployed")
    tensors, facts = load_folder(HERE / "deployed" / "checkpoint")
    nobody: Any = None  # no party is asked

    def engine_for(method: Method) -> FlowerEngine:
        return FlowerEngine(nobody, census, method, settings)

    training = begin_training(settings, census.roster, engine_for, census.knowledge)
    training.restore(tensors, facts["federated"])
    assert isinstance(training.engine, FlowerEngine)
    assert training.round_number == 2 and training.engine.loss == facts["federated"]["loss"]
    assert training.engine.lengths.largest == facts["federated"]["usual_length"]  # as version 0.1 called it
    assert sorted(training.engine.lengths.last) == [0, 1]
