"""Probabilities and thresholds from the parties' held-out records: those of one place with all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.party_scores import SCORES, SIZES
from fedalc.deployment.flower.wire import pack, unpack
from fedalc.evaluation.calibrate import fit_calibration, held_out_scores, log_shares
from fedalc.evaluation.owner_scores import in_bins
from fedalc.labels.collection.keys import Key
from fedalc.models.calibration import Calibration
from fedalc.models.scoring import Scorer
from fedalc.models.trained import TrainedModel
from fedalc.runs.result import read_result
from tests.data.clinics import union, write_clinics
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import Nodes, notes, run
from tests.deployment.flower.test_shared_labels import PARTIES, SQUARE, for_three, joined

ASKING = SQUARE | {"server.optimizer": "cg", "selection.every": 4, "encoder.features": "raw"}
CONFIG = {"held-out-share": 0.5, "num-server-rounds": 4}


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    return write_clinics(tmp_path / "clinics", union(240))


@pytest.fixture
def nodes(tmp_path: Path, clinics: Path) -> Nodes:
    key = tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    common = {"key": str(key), "fewest": 1}
    return {node: {"data": str(clinics / party), "client": party, **common} for node, party in PARTIES.items()}


def trained(grid: LocalGrid, folder: Path, **more: Any) -> TrainedModel:
    return run(grid, folder, for_three("fedalc-exact", ASKING | more, **CONFIG))


def in_one_place(model: TrainedModel, clinics: Path, key: str, share: float = 0.5) -> Calibration | None:
    """Fit on all held-out records, each once, with the labels of all parties."""
    whole, out = joined(clinics, key, share)
    held_out, rest = whole.rows(np.flatnonzero(out)), whole.rows(np.flatnonzero(~out))
    shares, count = log_shares(rest.labels), len(model.label_names)
    scorer = Scorer(model.model, held_out.features, model.held)
    scored = held_out_scores(scorer, held_out.labels, model.held, shares)
    return fit_calibration([in_bins(scored, count, shares)], count, shares)


def test_probabilities_are_those_of_one_place(tmp_path: Path, clinics: Path, nodes: Nodes) -> None:
    """Also where two parties have a record with the same label: it counts once."""
    model = trained(LocalGrid(nodes), tmp_path / "run")
    expected = in_one_place(model, clinics, nodes[7]["key"])
    assert model.calibration is not None and expected is not None
    for name, theirs in expected.parts().items():
        np.testing.assert_allclose(model.calibration.parts()[name], theirs, rtol=1e-8, atol=1e-10, err_msg=name)
    for rule in ("f1", "precision=0.8", 0.5):
        ours = model.calibration.thresholds(rule)
        np.testing.assert_allclose(ours, expected.thresholds(rule), rtol=1e-9)
    said = read_result(tmp_path / "run")["calibration"]
    assert said["records"] == expected.records > 20
    whole, _ = joined(clinics, nodes[7]["key"], 0.5)
    assert model.predict_sets(whole.features, threshold="f1").nnz > 0


@pytest.mark.long
def test_it_is_asked_once_about_the_kept_model(tmp_path: Path, nodes: Nodes) -> None:
    grid = LocalGrid(nodes)
    grid.keeps = True
    trained(grid, tmp_path / "run")
    assert [kind for _, kind, _ in grid.asked].count("evaluate.scores") == 3
    assert [kind for _, kind, _ in grid.asked][-3:] == ["evaluate.scores"] * 3
    sent = [message.content for message in grid.pushed if message.metadata.message_type == "evaluate.scores"]
    assert all(SIZES in content for content in sent)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("settings", "config", "why"),
    [
        ({"selection.calibrate": False}, {}, "selection.calibrate is false"),
        ({"client.set_size": "expected"}, {}, "parties may not know how many labels a record has"),
        ({}, {"held-out-share": 0.0}, "parties rank no labels for held-out records"),
        ({}, {"rank-held-out": "off"}, "parties rank no labels for held-out records"),
    ],
)
def test_when_there_are_none(
    tmp_path: Path, nodes: Nodes, settings: dict[str, Any], config: dict[str, Any], why: str
) -> None:
    grid = LocalGrid(nodes)
    model = run(grid, tmp_path / "run", for_three("fedalc-exact", ASKING | settings, **CONFIG | config))
    assert model.calibration is None and "evaluate.scores" not in {kind for _, kind, _ in grid.asked}
    assert why in read_result(tmp_path / "run")["calibration"]["left_out"]


@pytest.mark.few(1)
@pytest.mark.parametrize("bound", ["calibrations", "rankings"])
def test_a_party_that_refuses(tmp_path: Path, nodes: Nodes, bound: str) -> None:
    """Its labels have no threshold of their own: others score its records, but only it knows the hits."""
    nodes[7]["allow"] = f"{bound}=0"
    model = trained(LocalGrid(nodes), tmp_path / "run")
    why = [reason for _, party, reason in notes(tmp_path / "run") if party == "south"]
    assert f"{bound} = 1 is outside 1 to 0" in why[-1]
    assert model.calibration is not None
    census = Census.load(tmp_path / "run")
    assert census is not None
    south = census.roster.label_of[census.roster.owner == census.roster.parties.index("south")]
    assert not np.isin(model.calibration.counts.labels, south).any()


@pytest.mark.long
def test_too_few_held_out_records(tmp_path: Path, nodes: Nodes) -> None:
    for node in nodes.values():
        node["fewest"] = 1000
    model = trained(LocalGrid(nodes), tmp_path / "run", **{"server.optimizer": "sgd", "client.learning_rate": 0.1})
    assert model.calibration is None


@pytest.mark.long
def test_another_model_is_refused(tmp_path: Path, nodes: Nodes) -> None:
    """A party counts scores for one model of a run."""
    trained(LocalGrid(nodes), tmp_path / "run")
    for node in nodes.values():
        node["state"] = str(tmp_path / node["client"])
    trained(LocalGrid(nodes), tmp_path / "first")
    grid = LocalGrid(nodes)

    def change(message: Message) -> None:
        if message.metadata.message_type == "evaluate.scores":
            wanted = {"0": ("float64", (None, None))}
            theta = unpack(message.content, "theta", wanted)["0"].copy()  # type: ignore[arg-type]
            theta[0, 0] += 1
            message.content["theta"] = pack({"0": theta})

    grid.before_push = change
    model = trained(grid, tmp_path / "again")
    assert model.calibration is None
    assert all("calibrations = 2 is outside 1 to 1" in reason for _, _, reason in notes(tmp_path / "again"))


@pytest.mark.long
def test_other_set_sizes_are_refused(tmp_path: Path, nodes: Nodes) -> None:
    grid = LocalGrid(nodes)

    def change(message: Message) -> None:
        if message.metadata.message_type == "evaluate.scores":
            sizes = unpack(message.content, SIZES, {SIZES: ("uint32", (None,))})[SIZES].copy()
            sizes[0] = 5 if sizes[0] < 5 else 1
            message.content[SIZES] = pack({SIZES: sizes})

    grid.before_push = change
    assert trained(grid, tmp_path / "run").calibration is None
    assert all("other set sizes than for ranking" in reason for _, _, reason in notes(tmp_path / "run"))


def doubled(arrays: dict[str, np.ndarray]) -> None:
    arrays["hits"] *= 2


def one_more(arrays: dict[str, np.ndarray]) -> None:
    arrays["every"][0] += 1


def outside(arrays: dict[str, np.ndarray]) -> None:
    arrays["every-places"][-1] = 10**9


def negative(arrays: dict[str, np.ndarray]) -> None:
    arrays["hits"][0] = -1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (doubled, "more records than it has of a label"),
        (one_more, "not of the same records for every label"),
        (outside, "not one above 0 for each of ascending places"),
        (negative, "not one above 0 for each of ascending places"),
    ],
)
def test_counts_that_cannot_be(tmp_path: Path, nodes: Nodes, lie: Any, why: str) -> None:
    """They are left out by name; the others' are used."""
    grid = LocalGrid(nodes)

    def tamper(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "evaluate.scores":
            names = ("every", "hits")
            wanted = {name: ("float64", (None,)) for name in names}
            wanted |= {f"{name}-places": ("int64", (None,)) for name in names}
            arrays = {name: part.copy() for name, part in unpack(reply.content, SCORES, wanted).items()}  # type: ignore[arg-type]
            lie(arrays)
            reply.content[SCORES] = pack(arrays)
        return reply

    grid.tampering[7] = tamper
    model = trained(grid, tmp_path / "run")
    left = notes(tmp_path / "run")
    assert [party for _, party, _ in left] == ["south"] and why in left[0][2]
    assert model.calibration is not None
