"""embeddings.secret with real parties: the same training, and a server that cannot score with what it keeps.

What a server that watches single parties finds nevertheless is in test_trust.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedalc
from fedalc.cli.app import app
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.wire import pack
from fedalc.deployment.local import write_party
from fedalc.errors import ConfigError, FedalcError
from fedalc.evaluation.evaluate import evaluate
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.secret_rows import turned
from fedalc.methods.losses import SET_LOSSES
from fedalc.models.encoders import scale_rows
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from fedalc.workflows.predict import predict_file
from fedalc.workflows.prediction_files import Answer
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    LINEAR,
    NAMES,
    ROUNDS,
    RUN_ID,
    SETTINGS,
    Nodes,
    asked,
    literal_twin,
    overrides,
    run,
)
from tests.deployment.flower.test_equality import DESIGNS, SGD
from tests.deployment.flower.test_ranking import EVERY, HELD_OUT, centralised, union
from tests.deployment.flower.test_resume import Crash

SECRET = {"embeddings.secret": True, "dtype": "float64"}
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


def hasher(parties: Nodes) -> Hasher:
    return Hasher("hmac-sha256", Key.read(parties[7]["key"]), run=RUN_ID)


def with_key(found: TrainedModel, parties: Nodes) -> TrainedModel:
    """The model as a holder of the key has it."""
    rows = turned(found.model.W, hasher(parties))
    return replace(found, model=Model(found.model.encoder, rows), secret_rows=False)


def assert_as_simulated(
    folder: Path, train: Split, parties: Nodes, method: str, settings: dict[str, Any], rounds: int = ROUNDS
) -> None:
    settings = settings | SECRET
    found = run(LocalGrid(parties), folder, asked(method, settings, **{"num-server-rounds": rounds}))
    with_file = settings | {"collection.key": parties[7]["key"]}
    wanted = experiment({"method": method, "engine": "clients", "rounds": rounds}, overrides=overrides(with_file))
    literal = literal_twin(wanted, train, parties[7]["key"])
    start = [parameter.clone() for parameter in literal.model.theta]
    for _ in range(1 if literal.method.one_round else rounds):
        literal.run_round()
    expected = literal.averaged_model()
    moved = max((one - other).abs().max().item() for one, other in zip(start, expected.theta, strict=True))
    assert moved > 1e-3, "nothing was learnt"
    for ours, theirs in zip(found.model.theta, expected.theta, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    assert found.secret_rows and not torch.allclose(found.model.W, expected.W)
    torch.testing.assert_close(with_key(found, parties).model.W, expected.W, **CLOSE)


@pytest.mark.few(1)
@pytest.mark.parametrize("dim", [8, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("loss", SET_LOSSES)
def test_losses_over_all_labels(tmp_path: Path, train: Split, parties: Nodes, loss: str, dim: int) -> None:
    """With 8 dimensions the server's rows are axes, which it sends as numbers; those of the parties are not."""
    settings = LINEAR | SGD | {"client.loss": loss, "encoder.dim": dim, "embeddings.start": "by-frequency"}
    assert_as_simulated(tmp_path / "run", train, parties, "fedalc-exact", settings)


@pytest.mark.long
@pytest.mark.parametrize("design", ["constant", pytest.param("linear", marks=pytest.mark.long)])
@pytest.mark.parametrize("loss", SET_LOSSES)
def test_newton_steps(tmp_path: Path, train: Split, parties: Nodes, loss: str, design: str) -> None:
    newton = {"client.loss": loss, "server.optimizer": "newton", "server.newton_rounds": 2, "server.ridge": 0.3}
    settings = LINEAR | newton | DESIGNS[design] | {"embeddings.start": "by-frequency"}
    assert_as_simulated(tmp_path / "run", train, parties, "fedalc-exact", settings, rounds=6)


@pytest.mark.few(3)
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("method", ["fedalc-exact", "fedalc-oneshot"])
def test_the_square_loss(tmp_path: Path, train: Split, parties: Nodes, method: str, design: str) -> None:
    square = {"client.label_power": 0.3} | ({"server.optimizer": "cg"} if method == "fedalc-exact" else {})
    assert_as_simulated(tmp_path / "run", train, parties, method, LINEAR | square | DESIGNS[design])


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fedavg-fixed", "fedalc-fixed", "flag", "fedetf"])
def test_other_fixed_rows_with_an_mlp(tmp_path: Path, train: Split, parties: Nodes, method: str) -> None:
    assert_as_simulated(tmp_path / "run", train, parties, method, SETTINGS)


def test_a_sample_of_the_labels(tmp_path: Path, train: Split, parties: Nodes) -> None:
    settings = LINEAR | SGD | {"client.loss": "logistic", "client.negatives": 3}
    assert_as_simulated(tmp_path / "run", train, parties, "fedalc-exact", settings)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fedalc-exact", "fedalc-oneshot"])
def test_parties_rank_with_the_turned_rows(tmp_path: Path, train: Split, parties: Nodes, method: str) -> None:
    """The figures in result.json, and the chosen round, are those of the model that has the key."""
    found = run(LocalGrid(parties), tmp_path / "run", asked(method, LINEAR | EVERY | SECRET, **HELD_OUT))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    wanted = centralised(with_key(found, parties), union(train, parties))
    assert {name.removeprefix("party "): value for name, value in result["metrics"].items()} == pytest.approx(wanted)
    assert wanted != centralised(found, union(train, parties))


def test_parties_evaluate_with_the_turned_rows(tmp_path: Path, train: Split, parties: Nodes) -> None:
    settings = LINEAR | {"client.loss": "hinge", "encoder.start": "he"} | SECRET
    config = {"held-out-share": 0.3, "rank-held-out": "off"}
    found = run(LocalGrid(parties), tmp_path / "run", asked("fedavg-fixed", settings, **config))
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    split = union(train, parties)
    outputs = scale_rows(split.features, found.encoder.features) @ found.model.theta[0].detach().numpy()
    scores = outputs @ with_key(found, parties).model.W.numpy().T
    assert metrics["party score"] == pytest.approx(scores[split.labels.nonzero()].mean(), rel=1e-9)


@pytest.mark.long
def test_a_resumed_run_is_the_same(tmp_path: Path, parties: Nodes) -> None:
    whole = run(LocalGrid(parties), tmp_path / "whole", asked("fedalc-exact", LINEAR | SECRET))
    grid = LocalGrid(parties)

    def crash(message: Message) -> None:
        if message.metadata.message_type == "train" and message.metadata.group_id == "3":
            raise Crash

    grid.before_push = crash
    with pytest.raises(Crash):
        run(grid, tmp_path / "run", asked("fedalc-exact", LINEAR | SECRET))
    again = LocalGrid(parties)
    again.states = grid.states
    resumed = run(again, tmp_path / "run", {"resume": True, "wait": 1.0, "round-timeout": 5.0, "num-parties": 4})
    assert resumed.secret_rows and torch.equal(resumed.model.theta[0], whole.model.theta[0])


# --- what the server has ---


def split_among(folder: Path, train: Split, names: list[str], parties: int) -> Nodes:
    Key(hashlib.sha256(b"secret rows").digest()).write(folder / "key")  # always the same rotation
    nodes = {}
    for number in range(parties):
        own = list(range(number, len(names), parties))
        data = write_party(folder / f"party {number}", train, own, [names[label] for label in own])
        nodes[number] = {"data": str(data), "key": str(folder / "key"), "client": f"party {number}", "fewest": 1}
    return nodes


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, fedalc.Dataset]:
    """A run of three parties on the demo data, its folder, the key, and the data."""
    folder, data = tmp_path_factory.mktemp("demo"), fedalc.load_dataset("demo")
    nodes = split_among(folder, data.train, list(data.label_names), 3)
    config = {"num-parties": 3, "run-id": "demo"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedalc.report.page.write_page", lambda *folder: None)
        settings = {"encoder.dim": 64, "embeddings.secret": True}
        run(LocalGrid(nodes), folder / "run", asked("fedalc-oneshot", settings, **config))
    (folder / "names.txt").write_text("\n".join(data.label_names), encoding="utf-8")
    return folder / "run", folder / "key", data


def named(demo: tuple[Path, Path, fedalc.Dataset], out: Path) -> TrainedModel:
    folder, key, _ = demo
    names = folder.parent / "names.txt"
    result = CliRunner().invoke(app, ["key", "name-model", str(folder), str(key), str(names), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "named 79 of 79 labels" in result.output
    return TrainedModel.load(out)


def precision(model: TrainedModel, rows: torch.Tensor, test: Split) -> float:
    """P@1 with these rows of W; the test's labels in the model's order."""
    scaled = Split(scale_rows(test.features, model.encoder.features), test.labels)
    return evaluate(Model(model.model.encoder, rows), scaled, model.held)["P@1"]


@pytest.mark.long
def test_the_server_cannot_predict_with_what_it_keeps(tmp_path: Path, demo: tuple[Path, Path, fedalc.Dataset]) -> None:
    """θ, W and the counts of labels: as naming a label at random; guesses are far from the key's."""
    folder, _, data = demo
    kept, complete = TrainedModel.load(folder / "model"), named(demo, tmp_path / "model")
    order = [data.label_names.index(name) for name in complete.label_names]
    test = Split(data.test.features, data.test.labels[:, order])
    share = test.labels.mean() * 100
    assert precision(complete, complete.model.W, test) > 85
    assert 2 < share < 3.5 and precision(kept, kept.model.W, test) < 3 * share
    # A guess at the rotation: match the axes along which θ is longest with those along which label sets are.
    label_sets = data.train.labels[:, order]
    rows = kept.model.W.double().numpy() * (label_sets.sum(0).A1[:, None] + 30) ** -0.2  # fedalc-oneshot's weights
    together = (label_sets.T @ label_sets).toarray()
    theta = kept.model.theta[0].detach().double().numpy()
    ours, theirs = (np.linalg.eigh(moment)[1] for moment in (theta.T @ theta, rows.T @ together @ rows))
    signs = np.sign(ours.T @ theta.mean(0)) * np.sign(theirs.T @ (rows.T @ label_sets.sum(0).A1))
    guess = torch.from_numpy(theirs @ np.diag(signs) @ ours.T)
    # Between 20 and 37 over a dozen keys; always naming the commonest label has 25, and the key 90.
    assert precision(kept, (kept.model.W.double() @ guess).float(), test) < 45


def test_who_has_labelled_records_finds_the_rotation(tmp_path: Path, demo: tuple[Path, Path, fedalc.Dataset]) -> None:
    """What the option does not protect from (docs/exact.md): 200 records with their labels, and θ fits them."""
    folder, _, data = demo
    kept, complete = TrainedModel.load(folder / "model"), named(demo, tmp_path / "model")
    order = [data.label_names.index(name) for name in complete.label_names]
    test = Split(data.test.features, data.test.labels[:, order])
    known, rest = test.rows(np.arange(200)), test.rows(np.arange(200, len(test)))
    outputs = scale_rows(known.features, kept.encoder.features) @ kept.model.theta[0].detach().numpy()
    left, _, right = np.linalg.svd((known.labels @ kept.model.W.numpy()).T @ outputs)
    found = kept.model.W @ torch.from_numpy(left @ right).float()
    assert precision(kept, found, rest) > 0.8 * precision(complete, complete.model.W, rest)


def test_the_servers_model_says_that_it_cannot_predict(tmp_path: Path, demo: tuple[Path, Path, fedalc.Dataset]) -> None:
    folder, _, data = demo
    with pytest.raises(FedalcError, match="only with the parties' key: fedalc key name-model"):
        fedalc.load_run(folder).model.predict(data.test.features)
    with pytest.raises(FedalcError, match="class embeddings of this model are secret"):
        TrainedModel.load(folder / "model").scores(data.test.features)
    (tmp_path / "x").write_text("1 1600 0\n 3:1\n")
    with pytest.raises(FedalcError, match="class embeddings of this model are secret"):
        predict_file(folder, tmp_path / "x", Answer(5), form="csv", out=None, broken="refuse", sheet=None,
                     sheet_pictures=0, device="cpu")  # fmt: skip
    Key.fresh().write(tmp_path / "other")
    names = folder.parent / "names.txt"
    arguments = ["key", "name-model", str(folder), str(tmp_path / "other"), str(names), "--out", str(tmp_path / "out")]
    assert "check the key" in str(CliRunner().invoke(app, arguments).exception)
    labels, _ = named(demo, tmp_path / "model").predict(data.test.features, 1)
    assert len(np.unique(labels)) > 20


def test_names_that_parties_share_do_not_hide_a_wrong_key(tmp_path: Path, parties: Nodes) -> None:
    sharing = {node: config | {"share-names": True} for node, config in parties.items()}
    found = run(LocalGrid(sharing), tmp_path / "run", asked("fedalc-oneshot", LINEAR | SECRET))
    assert not set(found.label_names) & set(NAMES)


def test_neither_the_key_nor_a_turned_row_is_in_what_the_server_writes_or_sends(
    tmp_path: Path, parties: Nodes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    grid = LocalGrid(parties)
    grid.keeps = True
    settings = LINEAR | {"client.loss": "logistic", "server.optimizer": "newton"} | SECRET
    with caplog.at_level(logging.DEBUG):
        found = run(grid, tmp_path / "run", asked("fedalc-exact", settings, **HELD_OUT))
    printed = capfd.readouterr()
    text = printed.out + printed.err + caplog.text
    secret = Path(parties[7]["key"]).read_text().split()[-1]
    rotation = turned(torch.eye(8, dtype=torch.float64), hasher(parties))
    hidden = torch.cat([rotation, rotation.T, turned(found.model.W, hasher(parties))])
    matrices, written = [], text.encode()
    for path in (path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        written += path.read_bytes()
        if path.suffix == ".safetensors":
            matrices += list(load_file(path).values())
    for message in grid.pushed:
        for record in message.content.array_records.values():
            matrices += [
                torch.from_numpy(np.frombuffer(a.data, a.dtype).reshape(a.shape).copy()) for a in record.values()
            ]
    assert secret.encode() not in written and bytes.fromhex(secret) not in written
    assert hasher(parties).secret("rotation") not in written
    rows = [m.double().reshape(-1, 8) for m in matrices if m.dim() and m.shape[-1] == 8]
    assert sum(map(len, rows)) > 100
    cosines = [torch.nn.functional.normalize(some) @ hidden.T for some in rows]
    assert max(float(each.abs().max()) for each in cosines) < 0.999
    assert all(row.numpy().tobytes() not in written for row in hidden)


# --- what is refused ---


def test_the_server_cannot_evaluate_on_data_of_its_own() -> None:
    config = asked("fedalc-exact", LINEAR | SECRET, **{"held-out": "demo"})
    with pytest.raises(ConfigError, match=r"held-out: the server cannot score: the class embeddings are secret"):
        read_run_config(config, 1)
    with pytest.raises(ConfigError, match=r"embeddings\.secret: the search .* leave it out, or the search"):
        read_run_config({"tune": True, "set": "embeddings.secret=true"}, 1)


def test_a_party_without_a_key_refuses(tmp_path: Path, parties: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    alone = {"num-parties": 1, "min-parties": 1}
    plain = {k: v for k, v in parties[9].items() if k != "key"} | {"algorithm": "sha256"}
    with pytest.raises(FedalcError):
        run(LocalGrid({9: plain}), tmp_path / "run", asked("fedalc-exact", LINEAR | SECRET, **alone))
    assert "this party has no key to turn them with" in caplog.text


def test_a_party_multiplies_its_sums_itself(tmp_path: Path, parties: Nodes) -> None:
    """It sends Σ x w, never Σ x for each label: with these, the server would solve for the scores of every label."""
    grid = LocalGrid(parties)
    grid.keeps = True
    run(grid, tmp_path / "run", asked("fedalc-oneshot", LINEAR | SECRET))
    sums = [reply.content["sums"]["cross"] for reply in grid.replies if "sums" in reply.content]
    assert [array.shape for array in sums] == [(20, 8)] * 4
    newton = LINEAR | {"client.loss": "logistic", "server.optimizer": "newton", "encoder.constant": 1.0}
    grid = LocalGrid(parties)
    run(grid, tmp_path / "newton", asked("fedalc-exact", newton | SECRET | {"embeddings.start": "by-frequency"}))
    assert not [kind for _, kind, _ in grid.asked if kind == "train.sums"]


def test_sums_of_another_shape_are_refused(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)

    def per_label(message: Message, reply: Message) -> Message:
        if "sums" in reply.content:
            sums = reply.content["sums"]
            gram = np.frombuffer(sums["gram"].data)
            content = RecordDict({**reply.content, "sums": pack({"gram": gram, "cross": np.zeros((20, 1))})})
            reply = Message(content, reply_to=message)
        return reply

    grid.tampering[9] = per_label
    run(grid, tmp_path / "run", asked("fedalc-oneshot", LINEAR | SECRET, **{"min-parties": 3}))
    lines = (tmp_path / "run" / "parties.jsonl").read_text()
    assert "sums cross is float64 20 × 1, and should be float64 20 × 8" in lines
