"""Real apps on a grid in one process, for each aggregation rule: θ and W equal those of engine `clients`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census
from fedalc.engines import aggregation
from fedalc.engines.aggregation.lengths import norm
from fedalc.runs.folder import read_settings
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, NAMES, ROUNDS, RUN_ID, SETTINGS, Nodes, asked, notes, overrides, run
from tests.deployment.flower.test_faults import with_arrays

AUTO = {key: value for key, value in SETTINGS.items() if key != "server.aggregation"}
BAD = 7


def twin(settings: dict[str, Any], rule: str, train: Split, folder: Path, key: str) -> Any:
    from fedalc.deployment.twin import in_one_process

    census = Census.load(folder)
    assert census is not None
    literal_settings = experiment(
        {"method": "fedalc", "engine": "clients", "rounds": ROUNDS},
        overrides=overrides(settings | {"server.aggregation": rule}),
    )
    literal = in_one_process(literal_settings, train, NAMES, key, RUN_ID, census.roster.owner)
    for _ in range(ROUNDS):
        literal.run_round()
    return literal.averaged_model()


@pytest.mark.long
@pytest.mark.parametrize("rule", [*aggregation.RULES, None])
def test_every_rule(tmp_path: Path, train: Split, parties: Nodes, rule: str | None) -> None:
    """None: no rule is set, which means clip."""
    local = {"dtype": "float64", "client.epochs": 2, "client.batch_size": 3, "server.trim": 0.25}
    settings = AUTO | local | ({"server.aggregation": rule} if rule else {})
    found = run(LocalGrid(parties), tmp_path / "run", asked("fedalc", settings))
    expected = twin(AUTO | local, rule or "clip", train, tmp_path / "run", parties[BAD]["key"])
    for ours, theirs in zip([*found.model.theta, found.model.W], [*expected.theta, expected.W], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert read_settings(tmp_path / "run").server.aggregation == (rule or "clip")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["aggregation"] == (rule or "clip")


def poisoned(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Message, Message], Message]:
    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "train":
            return reply
        return Message(with_arrays("change", change)(reply.content), reply_to=message)

    return tamper


def test_a_party_that_scales_its_change_is_cut_to_the_median(tmp_path: Path, parties: Nodes) -> None:
    """A factor of -90 passes the screen (below 100 times the median). With clip its length is the median."""
    settings = AUTO | {"server.optimizer": "sgd", "server.learning_rate": 1.0, "encoder.dropout": 0.0}
    steps = {}
    for rule in ("mean", "clip"):
        for liar in (False, True):
            grid, folder = LocalGrid(parties), tmp_path / f"{rule} {liar}"
            if liar:
                grid.tampering[BAD] = poisoned(lambda arrays: {k: v * -90 for k, v in arrays.items()})
            config = asked("fedavg-fixed", settings | {"server.aggregation": rule}, **{"num-server-rounds": 1})
            steps[rule, liar] = run(grid, folder, config).model.theta
            assert not (folder / "parties.jsonl").exists() or notes(folder) == []

    def moved(rule: str) -> float:
        return norm(a - b for a, b in zip(steps[rule, False], steps[rule, True], strict=True))

    assert moved("mean") > 20 * moved("clip")


def test_a_party_that_claims_very_many_instances_counts_less_and_the_log_says_so(
    tmp_path: Path, parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    def claims(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "query.hello":
            return reply
        said = reply.content["introduction"]
        many = ConfigRecord({**said, "counts": [count * 1000 for count in said["counts"]]})
        return Message(RecordDict({"introduction": many}), reply_to=message)

    grid = LocalGrid(parties)
    grid.tampering[BAD] = claims
    run(grid, tmp_path / "run", asked("fedavg", AUTO))
    (note,) = notes(tmp_path / "run", "counts less than its instances")
    assert note[:2] == (1, f"party {BAD}") and "times the most that one party may have" in note[2]
    assert "server.aggregation clip: changes are cut to the median length of the 4 parties'" in capsys.readouterr().out


def test_what_solves_one_objective_says_that_it_needs_the_mean(
    tmp_path: Path, parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    run(LocalGrid(parties), tmp_path / "run", asked("fedalc-oneshot", LINEAR | {"client.set_size": "expected"}))
    said = capsys.readouterr().out
    assert "server.aggregation mean: a lying party is held back only where its answer is of absurd length (a" in said
    assert read_settings(tmp_path / "run").server.aggregation == "mean"
