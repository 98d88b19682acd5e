"""Attacks on noised numbers of documents: a server that wants the noise drawn again, or a party's budget spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from scipy.sparse import csr_matrix, random

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.deployment.flower import party_texts
from fedalc.deployment.flower.client_app import app
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.party_texts import noised_counts
from fedalc.deployment.flower.wire import BadMessage, task
from fedalc.labels.privacy.ledger import Ledger
from tests.deployment.flower.local_grid import LocalGrid, over_the_wire
from tests.deployment.flower.problem import Nodes, overrides

DOCUMENTS = random(300, 64, 0.03, format="csr", random_state=1)


def private(**text: Any) -> Experiment:
    """A private model of hashed texts, with noise on the numbers of documents."""
    given = {"kind": "hashing", "epsilon": 0.1, "delta": 1e-6, "terms_per_document": 4, "buckets": 64} | text
    settings = {"encoder.name": "linear", "privacy.mechanism": "sums", "privacy.epsilon": 0.1, "secure_sums.on": True}
    settings |= {f"text.{name}": value for name, value in given.items()}
    keys = {"method": "fedalc-oneshot", "engine": "flower", "rounds": 1}
    return experiment(keys, overrides=overrides(settings | {"selection.validation": 0.0}))


@pytest.fixture
def node(tmp_path: Path) -> dict[str, Any]:
    return {"state": str(tmp_path / "state")}


def asked(node: dict[str, Any], run: str, documents: csr_matrix = DOCUMENTS) -> np.ndarray:
    """Ask for numbers of documents, as a new Flower run does."""
    return noised_counts(documents, private(), Context(1, 1, node, RecordDict(), {}), run).numbers


def charges(node: dict[str, Any]) -> list[str]:
    return [charge.id for charge in Ledger(Path(node["state"]) / "privacy-ledger.jsonl").charges()]


def test_a_run_gets_one_draw_however_many_runs_came_between(
    node: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party_texts, "KEPT_RUNS", 1)  # of other things
    runs = ["r0", "r1", "r2"]
    first, second = ({run: asked(node, run).tobytes() for run in runs} for _ in range(2))
    assert first == second and len(set(first.values())) == len(runs)
    assert charges(node) == [f"documents {run}" for run in runs]


def test_forgotten_noise_is_not_drawn_again(node: dict[str, Any]) -> None:
    """The party's memory of the run is gone; its ledger is not."""
    asked(node, "r")
    (Path(node["state"]) / "runs" / "r.json").unlink()
    with pytest.raises(BadMessage, match="drawn and forgotten"):
        asked(node, "r")


def test_other_documents_are_a_second_draw(node: dict[str, Any]) -> None:
    """Two draws of one charge: the party's data has changed during the run."""
    asked(node, "r")
    with pytest.raises(BadMessage, match="documents have changed"):
        asked(node, "r", DOCUMENTS[:-1])
    assert (asked(node, "r2", DOCUMENTS[:-1]) != asked(node, "r")).any()


@pytest.mark.parametrize(
    ("allow", "text", "problem"),
    [
        ("", {"epsilon": 1000.0}, "text.epsilon = 1000 is outside 0 to 10"),
        ("privacy.epsilon=0.1", {"epsilon": 0.2}, "text.epsilon = 0.2 is outside 0 to 0.1"),
        ("", {"delta": 0.1}, "text.delta = 0.1 is outside 0 to 1e-05"),
    ],
)
def test_what_a_party_allows(allow: str, text: dict[str, Any], problem: str) -> None:
    Limits.from_node_config({"allow": allow}).check_settings(private())
    with pytest.raises(BadMessage, match=problem):
        Limits.from_node_config({"allow": allow}).check_settings(private(**text))


def test_a_party_without_texts_is_not_charged(parties: Nodes, node: dict[str, Any]) -> None:
    LocalGrid({})  # Flower's identity of a run
    question = Message(RecordDict({"task": task(private(), "drain", share=0.0)}), 7, "query.document_counts")
    question.metadata.__dict__["_run_id"] = 1
    message, _ = over_the_wire(question)
    message.metadata.__dict__["_message_id"] = "x"
    reply = app(message, Context(1, 7, parties[7] | node | {"epsilon-budget": 1.0}, RecordDict(), {}))
    assert "this party has no texts" in reply.error.reason
    assert charges(node) == []
