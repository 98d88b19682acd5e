"""A server that asks parts of the parties, one after another, so that the sums together show a single party."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalc.deployment.flower.masked_sums import MaskedSums, Unfinished
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, Nodes, asked, notes, run, write_parties
from tests.deployment.flower.test_private_model import SUMS
from tests.problems import random_split


@pytest.fixture
def seven(tmp_path: Path) -> Nodes:
    split = random_split(80, 20, 7, seed=3)
    split = split.rows(np.flatnonzero((split.labels.getnnz(axis=1) > 0) & (split.features.getnnz(axis=1) > 0)))
    nodes = write_parties(tmp_path, split, {node: [node - 1] for node in range(1, 8)})
    return {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in nodes.items()}


def cheating(patch: pytest.MonkeyPatch, lists: Sequence[Collection[int]]) -> list[bool]:
    """Let the server ask these lists of parties. Return, for each, whether its sum was unmasked."""
    total, unmasked = MaskedSums.total, []
    patch.setattr(MaskedSums, "_check_list", lambda self, server: None)

    def split(self: MaskedSums, kind: str, number: int, whom: Collection[int], *more: Any, **others: Any) -> Any:
        if not kind.startswith("train"):
            return total(self, kind, number, whom, *more, **others)
        party = {self.names[each]: each for each in whom}
        found = None
        for each in lists:
            try:
                here = total(self, kind, number, [party[f"party {one}"] for one in each], *more, **others)
                found = found or here
                unmasked.append(True)
            except Unfinished:
                unmasked.append(False)
        if found is None:
            raise Unfinished("nothing")
        return found

    patch.setattr(MaskedSums, "total", split)
    return unmasked


def test_all_and_two_parts_that_leave_one_out(seven: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmasked = cheating(monkeypatch, [range(1, 8), (2, 3, 4), (5, 6, 7)])
    config = asked("fedalc-oneshot", LINEAR, **{"secure-sums": "on", "num-parties": 7})
    run(LocalGrid(seven), tmp_path / "run", config)
    assert unmasked[:3] == [True, False, False]
    whys = {why for _, _, why in notes(tmp_path / "run")}
    assert any("asks for a sum over 3 of 7 parties that a sum was over before" in why for why in whys)


def test_a_noised_question_over_two_lists(seven: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Party 1 is in both, and the others of the second list do not know of the first. Its second draw of noise does not
    leave it."""
    unmasked = cheating(monkeypatch, [(1, 2, 3), (1, 4, 5, 6, 7)])
    config = asked("fedalc-oneshot", SUMS, **{"secure-sums": "auto", "num-parties": 7})
    run(LocalGrid(seven), tmp_path / "run", config)
    assert unmasked[:2] == [True, False]
    assert any("with other noise" in why for _, who, why in notes(tmp_path / "run") if who == "party 1")
