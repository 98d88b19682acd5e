"""Parties with pictures, each in a folder with train.csv."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.config.schema import EncoderSettings
from fedalc.data.dataset import Split
from fedalc.data.images.images import ImageOptions, Images
from fedalc.data.load import load_held
from fedalc.data.synthetic.demo import make_demo
from fedalc.deployment.flower.held_out import read_held_out
from fedalc.deployment.flower.party import Party
from fedalc.deployment.flower.wire import encoder_tensors, pack
from fedalc.deployment.local import write_data
from fedalc.deployment.party import PartySide
from fedalc.errors import ConfigError
from fedalc.evaluation.evaluate import evaluate
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.models.encoders import make_batch, make_encoder, picture_bytes
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    NAMES,
    RUN_ID,
    Nodes,
    asked,
    kept_out,
    literal_twin,
    notes,
    overrides,
    run,
    write_parties,
)
from tests.deployment.flower.test_party import ask, assert_refused, every_byte, with_settings
from tests.problems import random_split

pytestmark = pytest.mark.long

pytest.importorskip("transformers")

SIDE = 12
NODE = 7
PICTURES: dict[str, Any] = {
    "dtype": "float64",
    "block_rows": 5,
    "encoder.name": "resnet-small",
    "encoder.dim": 8,
    "images.size": SIDE,
    "images.augment": "mirror-shift",
    "client.learning_rate": 0.5,
    "client.row_learning_rate": 0.8,
    "client.sample": 0.5,
    "server.learning_rate": 0.05,
    "server.optimizer": "momentum",
    "server.weight_decay": 0.0,
    "server.aggregation": "mean",
    "regularizer.lambda": 10.0,
    "regularizer.rate": 0.01,
    "regularizer.neighbours": 2,
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDALC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def pictures() -> Split:
    """Most are at several parties, and every label has the 16 pictures that a sample of half requires."""
    labels = random_split(40, 2, 7, seed=5, per_instance=7).labels
    labels = labels[np.flatnonzero(labels.getnnz(axis=1))]
    pixels = np.random.default_rng(3).integers(0, 256, (labels.shape[0], SIDE, SIDE, 3), dtype=np.uint8)
    return Split(Images(pixels, [str(row) for row in range(len(pixels))]), labels)


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory, pictures: Split) -> Nodes:
    nodes = write_parties(tmp_path_factory.mktemp("clinics"), pictures)
    return {node: {**config, "size": SIDE} for node, config in nodes.items()}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With statistics that are far from those of a new network."""
    settings = EncoderSettings(name="resnet-small", norm="batch")
    encoder: Any = make_encoder(3 * SIDE * SIDE, settings, torch.Generator().manual_seed(9))
    with torch.no_grad():
        for name, buffer in encoder.backbone.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    folder = tmp_path_factory.mktemp("published") / "weights of the server"
    encoder.backbone.save_pretrained(folder)
    return str(folder)


def assert_equal(folder: Path, pictures: Split, grid: LocalGrid, method: str, settings: dict[str, Any]) -> None:
    found = run(grid, folder, asked(method, settings, **{"num-server-rounds": 2}))
    literal_settings = experiment({"method": method, "engine": "clients"}, overrides=overrides(settings))
    literal = literal_twin(literal_settings, pictures, grid.nodes[NODE]["key"])
    start = [parameter.clone() for parameter in literal.model.theta]
    for _ in range(2):
        literal.run_round()
    expected = literal.averaged_model()
    moved = max((before - after).abs().max().item() for before, after in zip(start, expected.theta, strict=True))
    assert moved > 1e-3, "nothing was learnt"
    ours, theirs = ([*encoder_tensors(model), model.W] for model in (found.model, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-exact"])
def test_the_same_as_in_one_process(tmp_path: Path, pictures: Split, clinics: Nodes, method: str) -> None:
    assert_equal(tmp_path / "run", pictures, LocalGrid(clinics), method, PICTURES)


def test_frozen_statistics_come_with_the_message(
    tmp_path: Path, pictures: Split, clinics: Nodes, pretrained: str
) -> None:
    grid = LocalGrid(clinics)
    grid.keeps = True
    frozen = PICTURES | {"encoder.norm": "frozen", "encoder.pretrained": pretrained}
    assert_equal(tmp_path / "run", pictures, grid, "fedavg", frozen)
    assert b"weights of the server" not in every_byte(grid, tmp_path / "nothing"), "the server's folder is told nobody"
    content = next(m.content for m in grid.pushed if m.metadata.message_type == "train" and _is_for(m, NODE))
    elsewhere = with_settings(content, encoder__pretrained="/etc/weights")
    assert ask(clinics[NODE], "train", elsewhere).has_content(), "a folder that is not there is not missed"
    without = RecordDict({name: part for name, part in content.items() if name != "statistics"})
    assert_refused(ask(clinics[NODE], "train", without), "there are no statistics")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["bytes_down"] - result["bytes_up"] == 2 * 4 * 8 * _statistics()


def _is_for(message: Any, node: int) -> bool:
    return bool(message.metadata.dst_node_id == node)


def _statistics() -> int:
    """Return the number of means and variances, two for each normalised channel.

    The stem has one normalisation and each stage two; three stages have a third, in the shortcut that changes channels.
    """
    return 2 * (32 + 2 * (32 + 64 + 128 + 256) + 64 + 128 + 256)


def test_batch_statistics_are_refused_on_both_sides(tmp_path: Path, clinics: Nodes) -> None:
    why = re.escape('parties do not send their statistics of batch normalisation; use norm = "group" or "frozen"')
    with pytest.raises(ConfigError, match=why):
        run(LocalGrid(clinics), tmp_path / "run", asked("fedavg", PICTURES | {"encoder.norm": "batch"}))
    assert_refused(ask(clinics[NODE], "query.hello", hello(encoder__norm="batch")), "do not send their statistics")


def hello(**changes: Any) -> RecordDict:
    from fedalc.deployment.flower.census import question

    settings = experiment({"method": "fedavg", "engine": "flower"}, overrides=overrides(PICTURES))
    return with_settings(question(settings, 0.0, RUN_ID), **changes)


def test_what_a_party_of_pictures_says_of_itself(clinics: Nodes) -> None:
    said = ask(clinics[NODE], "query.hello", hello()).content["introduction"]
    assert said["features"] == 3 * SIDE * SIDE and len(said["labels"]) == 3


@pytest.mark.parametrize(("own", "size"), [({"size": 9}, 9), ({}, 96)])
def test_a_party_makes_copies_of_its_own_size_only(
    clinics: Nodes, own: dict[str, int], size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a server could make a party store copies in a thousand sizes."""
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path))
    sized = {key: value for key, value in clinics[NODE].items() if key != "size"} | own
    assert ask(sized, "query.hello", hello(images__size=size)).content["introduction"]["features"] == 3 * size * size
    made = {path for path in tmp_path.rglob("*") if path.is_file()}
    for asked_for in (12, 13):
        why = f"of {asked_for} pixels a side (images.size), and this party's have {size} (--size)"
        assert_refused(ask(sized, "query.hello", hello(images__size=asked_for)), why)
    assert made and {path for path in tmp_path.rglob("*") if path.is_file()} == made


def test_encoder_and_data_have_to_fit(clinics: Nodes, parties: Nodes) -> None:
    assert_refused(ask(parties[NODE], "query.hello", hello()), "its encoder is resnet-small, and this party has no")
    text = hello(encoder__name="mlp")
    assert_refused(ask(clinics[NODE], "query.hello", text), "its encoder is mlp, and this party has pictures")
    assert_refused(ask(clinics[NODE], "train.sums", text), "")


def test_nothing_is_solved_for_in_one_round_with_a_resnet() -> None:
    with pytest.raises(ConfigError, match="solves for a linear encoder, and resnet-small is not one; use fedalc-exact"):
        experiment({"method": "fedalc-oneshot", "engine": "flower", "encoder": {"name": "resnet-small"}})


@pytest.mark.parametrize("method", ["fedalc", "fedavg-fixed"])
def test_pictures_are_read_block_by_block(
    tmp_path: Path, clinics: Nodes, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """In training, in evaluation and ranking at the parties, and in between."""
    read: list[int] = []
    pixels = Images.pixels

    def counted(images: Images) -> np.ndarray:
        read.append(len(images))
        return pixels(images)

    monkeypatch.setattr(Images, "pixels", counted)
    all_of_few = {"block_rows": 2, "client.sample": 1.0}
    config = asked(method, PICTURES | all_of_few, **{"num-server-rounds": 1, "held-out-share": 0.5})
    run(LocalGrid(clinics), tmp_path / "run", config)
    assert max(read) == 2


def test_the_pictures_encoded_at_a_time_have_to_fit(
    tmp_path: Path, clinics: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.device("meta"):
        encoder = make_encoder(432, EncoderSettings(name="resnet-small", norm="group"), torch.Generator("cpu"))
    each = picture_bytes(encoder.double(), SIDE)
    stem, pools = 3 * 32 * 6 * 6, 32 * 3 * 3 + 256
    stages = 8 * 32 * 3 * 3 + 9 * 64 * 2 * 2 + 9 * 128 + 9 * 256  # layers × channels × pixels: a shortcut has one more
    assert each == 8 * (stem + pools + stages)
    grid = LocalGrid(clinics)
    grid.keeps = True
    run(grid, tmp_path / "run", asked("fedavg", PICTURES, **{"num-server-rounds": 1}))
    content = next(m.content for m in grid.pushed if m.metadata.message_type == "train" and _is_for(m, NODE))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=10 * each))
    assert ask(clinics[NODE], "train", content).has_content()
    assert_refused(
        ask(clinics[NODE], "train", with_settings(content, top__block_rows=6)), "more than half of this machine"
    )


def test_evaluation_at_the_parties(tmp_path: Path, pictures: Split, clinics: Nodes) -> None:
    """Compare with scores computed one picture at a time, for all held-out pictures of the parties."""
    config = asked("fedavg", PICTURES | {"client.sample": 1.0}, **{"held-out-share": 0.5})
    found = run(LocalGrid(clinics), tmp_path / "run", config)
    measured = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["party score"]
    hasher = Hasher("hmac-sha256", Key.read(clinics[NODE]["key"]), run=RUN_ID)
    row_of = {name: row for row, name in enumerate(found.label_names)}
    out = kept_out(clinics[NODE]["key"], pictures.features, 0.5, f"content/{pictures.features.size}px")
    scores = []
    for instance in np.flatnonzero(out).tolist():
        batch = make_batch(pictures.features[instance], np.zeros(1), torch.float64, "cpu")
        g = found.model.encoder(batch)[0]
        for label in pictures.labels[[instance]].indices:
            pseudonym = hasher.labels([NAMES[label]])[0].tobytes().hex()
            scores.append((g @ found.model.W[row_of[pseudonym]]).item())
    assert len(scores) > 10 and measured == pytest.approx(np.mean(scores), rel=1e-9)


def test_ranking_at_the_parties(tmp_path: Path, pictures: Split, clinics: Nodes) -> None:
    """The figures of all held-out pictures in one place."""
    settings = PICTURES | {"client.sample": 1.0, "selection.metric": "P@3"}
    found = run(LocalGrid(clinics), tmp_path / "run", asked("fedavg-fixed", settings, **{"held-out-share": 0.5}))
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    hasher = Hasher("hmac-sha256", Key.read(clinics[NODE]["key"]), run=RUN_ID)
    out = kept_out(clinics[NODE]["key"], pictures.features, 0.5, f"content/{pictures.features.size}px")
    rows = np.flatnonzero(out & (pictures.labels.getnnz(axis=1) > 0))
    column = {pseudonym.tobytes().hex(): label for label, pseudonym in enumerate(hasher.labels(NAMES))}
    order = [column[name] for name in found.label_names]
    wanted = evaluate(found.model, Split(pictures.features[rows], pictures.labels[rows][:, order]), found.held)
    assert len(rows) > 10 and metrics == pytest.approx({name: wanted[name.removeprefix("party ")] for name in metrics})


def test_held_out_pictures_at_the_server(tmp_path: Path, pictures: Split, clinics: Nodes) -> None:
    folder = write_data(tmp_path / "held out", pictures.rows(np.arange(9)), NAMES)
    (folder / "train.csv").rename(folder / "test.csv")
    naming = {node: {**config, "share-names": True} for node, config in clinics.items()}
    config = asked("fedavg", PICTURES, **{"held-out": str(folder), "num-server-rounds": 1})
    run(LocalGrid(naming), tmp_path / "run", config)
    line = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert line["metrics"]["test mAP"] == result["metrics"]["mAP"] > 0


def test_held_out_data_by_name_is_the_names_test_data() -> None:
    split, _ = read_held_out("demo", Experiment())
    assert len(split) == len(make_demo().test) != len(make_demo().train)
    with pytest.raises(ConfigError, match="resnet-small does not fit: held-out has no pictures"):
        read_held_out("demo", experiment({"encoder": {"name": "resnet-small"}}))


def test_a_folder_with_what_it_trains_on_is_enough(tmp_path: Path, pictures: Split) -> None:
    write_data(tmp_path / "clinic", pictures.rows(np.arange(6)), NAMES)
    assert not (tmp_path / "clinic" / "test.csv").exists()
    split, names = load_held(tmp_path / "clinic", images=ImageOptions(SIDE))
    np.testing.assert_array_equal(split.features.pixels(), pictures.features[np.arange(6)].pixels())
    np.testing.assert_array_equal(split.labels.toarray(), pictures.labels[:6].toarray())
    assert list(names) == NAMES


def test_a_broken_picture(tmp_path: Path, pictures: Split, clinics: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    """The party's own check goes on, and says so; what the server then gets is for it to say."""
    folder = write_data(tmp_path / "clinic", pictures.rows(np.arange(6)), NAMES)
    (folder / "000002.png").write_bytes(b"no picture")
    config: dict[str, Any] = {"data": str(folder), "key": clinics[NODE]["key"], "size": SIDE}
    said = PartySide(config, "127.0.0.1:1", None, None, tmp_path / "state").check()
    assert "1 of 6 pictures left out: 000002.png" in said and "5 instances" in said
    assert_refused(ask(config, "query.hello", hello()), "see its own log")
    assert "000002.png" in caplog.text
    skipping = ask(config, "query.hello", hello(images__broken="skip")).content["introduction"]
    assert sum(skipping["counts"]) == pictures.rows(np.array([0, 1, 3, 4, 5])).labels.nnz


def test_a_catalog_name_restricted_to_labels(clinics: Nodes) -> None:
    party = Party.from_node_config({"data": "mosaics", "key": clinics[NODE]["key"], "labels": "digit 3, digit 8"})
    split = party.holding.split
    assert isinstance(split.features, Images) and split.labels.shape[1] == 2
    assert 0 < len(split) < 3000 and set(party.holding.names) == {"digit 3", "digit 8"}


def test_a_resnet50_travels_in_small_pieces() -> None:
    """θ has 98 MB and its longest tensor 9.4 MB. Flower splits arrays, so no piece comes near its size limit."""
    with torch.device("meta"):
        encoder = make_encoder(3 * 224 * 224, EncoderSettings(name="resnet50", dim=512), torch.Generator("cpu"))
    sizes = [parameter.numel() for parameter in encoder.parameters()]
    assert sum(sizes) == 24_557_120 and max(sizes) == 512 * 512 * 9
    longest = pack({"0": np.random.default_rng(0).random(max(sizes), dtype=np.float32)})
    pieces = [len(part.deflate()) for part in get_all_nested_objects(RecordDict({"theta": longest})).values()]
    assert sum(pieces) > 4 * max(sizes) and max(pieces) < FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 1000 < 6e6


def test_a_party_that_holds_text_is_left_out(tmp_path: Path, clinics: Nodes, parties: Nodes) -> None:
    grid = LocalGrid({**clinics, 77: parties[9]})
    run(grid, tmp_path / "run", asked("fedavg", PICTURES, **{"num-server-rounds": 1}))
    ((_, party, why),) = notes(tmp_path / "run")
    assert party == "node 77" and "has no pictures: use linear or mlp" in why


@pytest.mark.parametrize(("size", "why"), [(7, "greater than or equal to 8"), (1025, "less than or equal to 1024")])
def test_a_size_that_no_server_can_ask_for(clinics: Nodes, size: int, why: str) -> None:
    with pytest.raises(ConfigError, match=f"size: Input should be {why}, and is {size}"):
        PartySide({**clinics[NODE], "size": size}, "127.0.0.1:1", None, None, Path("state")).check()
