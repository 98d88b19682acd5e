"""Numbers of documents as a masked sum: hashed texts of three parties under secure sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.data.text.features import HashedText
from fedalc.deployment.flower import party_texts
from fedalc.deployment.flower.agreement import TEXT
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.sum_messages import MASKED
from fedalc.deployment.flower.table_seals import SEALS
from fedalc.deployment.flower.wire import unpack
from fedalc.labels.collection.keys import Key
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.secure_sums.party import CHECKS
from tests.data.test_party_texts import write_texts
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, Nodes, asked, notes, run

HASHING: dict[str, Any] = LINEAR | {"clients": "parties", "dtype": "float64"}
HASHING |= {"text.kind": "hashing", "text.buckets": 256}
NOISED = HASHING | {"text.epsilon": 4.0, "text.terms_per_document": 4}
ON = {"secure-sums": "on", "num-parties": 3}
COUNTS = "query.document_counts"


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """The nodes are in the order of the parties' names."""
    key = tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    folders = {"east": write_texts(tmp_path / "more") / "north"}
    folders |= {party: write_texts(tmp_path / party) / party for party in ("north", "south")}
    lines = (folders["east"] / "train.csv").read_text().splitlines()
    (folders["east"] / "train.csv").write_text("\n".join(lines[:-9]) + "\n")
    return {
        node: {
            "data": str(folder),
            "client": party,
            "key": str(key),
            "fewest": 1,
            "state": str(tmp_path / f"s-{party}"),
        }
        for node, (party, folder) in enumerate(folders.items(), start=1)
    }


def agreed(nodes: Nodes, folder: Path, settings: dict[str, Any], **config: Any) -> tuple[Any, LocalGrid]:
    grid = LocalGrid(nodes)
    grid.keeps = True
    run(grid, folder, asked("fedalc-oneshot", settings, **(ON | config)))
    census = Census.load(folder)
    assert census is not None and census.text is not None
    return census.text, grid


@pytest.mark.parametrize(
    "settings", [pytest.param(HASHING, id="exact"), pytest.param(NOISED, id="noised", marks=pytest.mark.long)]
)
def test_the_sum_is_that_of_a_plain_run(
    settings: dict[str, Any], nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for name, secure in (("plain", "off"), ("masked", "on")):
        seeds = iter(range(3))
        monkeypatch.setattr(party_texts, "noise_source", lambda *of, seeds=seeds: SecureGenerator.seeded(next(seeds)))
        found[name], grid = agreed(nodes, tmp_path / name, settings, **{"secure-sums": secure, "run-id": name})
        sent = {name for reply in grid.replies if reply.has_content() for name in reply.content}
        assert (TEXT in sent) == (secure == "off")
    assert found["masked"].documents == found["plain"].documents
    np.testing.assert_array_equal(found["masked"].numbers, found["plain"].numbers)
    assert found["masked"].numbers.max() > 20


def test_a_single_partys_numbers_are_not_seen(nodes: Nodes, tmp_path: Path) -> None:
    """Each of its 256 buckets is a random number of 64 bits; the plain ones are 0 to 28."""
    _, grid = agreed(nodes, tmp_path / "run", HASHING)
    replies = [reply for reply in grid.replies if reply.metadata.message_type == COUNTS]
    assert len(replies) == 3
    for reply in replies:
        numbers = unpack(reply.content, MASKED, {"numbers": ("uint64", (256 + 1 + SEALS + CHECKS,))})["numbers"]
        assert (numbers < 1 << 32).sum() == 0 and len(np.unique(numbers)) == len(numbers)


@pytest.mark.long
def test_a_vocabulary_is_no_secure_sum_and_a_party_may_refuse_it(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {name: value for name, value in HASHING.items() if not name.startswith("text")}
    counts, grid = agreed(nodes, tmp_path / "run", settings)
    assert counts.terms is not None and any(TEXT in reply.content for reply in grid.replies)
    nodes[3]["require-secure-sums"] = True
    with pytest.raises(TooFew, match="2 have introduced themselves"):
        config = ON | {"run-id": "other", "wait": 0.0}
        run(LocalGrid(nodes), tmp_path / "other", asked("fedalc-oneshot", settings, **config))
    assert "node 3 left out: refused the server's message: needs this party's terms" in capsys.readouterr().out
    agreed(nodes, tmp_path / "hashed", HASHING, **{"run-id": "hashed"})


@pytest.mark.long
def test_a_lost_party_is_not_in_the_sum(nodes: Nodes, tmp_path: Path) -> None:
    """Once a sum over all was unmasked, one over other parties is not, unless the parties allow it."""
    nodes[4] = nodes[1] | {"client": "west", "state": str(tmp_path / "west")}
    four = {"num-parties": 4, "min-parties": 3}
    whole, _ = agreed(nodes, tmp_path / "whole", HASHING, **four)

    def away(grid: LocalGrid) -> LocalGrid:
        grid.tampering[2] = lambda asked, reply: None if asked.metadata.message_type == COUNTS else reply
        return grid

    again = away(LocalGrid(nodes))
    with pytest.raises(TooFew, match="numbers of documents could not be added up"):
        run(again, tmp_path / "again", asked("fedalc-oneshot", HASHING, **(ON | four)))
    allow = {node: config | {"allow": "sum_lists=2"} for node, config in nodes.items()}
    other = asked("fedalc-oneshot", HASHING, **(ON | four | {"run-id": "other"}))
    run(away(LocalGrid(allow)), tmp_path / "other", other)
    census = Census.load(tmp_path / "other")
    assert census is not None and census.text is not None and census.text.documents == whole.documents - 28


def test_parties_with_one_name(nodes: Nodes, tmp_path: Path) -> None:
    nodes[3]["client"] = "north"
    with pytest.raises(fedalc.FedalcError, match="parties are named"):
        run(LocalGrid(nodes), tmp_path / "run", asked("fedalc-oneshot", HASHING, **ON))


def test_the_model_reads_texts(nodes: Nodes, tmp_path: Path) -> None:
    model = run(LocalGrid(nodes), tmp_path / "run", asked("fedalc-oneshot", HASHING, **ON))
    assert isinstance(model.text, HashedText) and model.text.idf is not None
    assert not (tmp_path / "run" / "parties.jsonl").exists() or not notes(tmp_path / "run")
