"""A training whose clients are parties: the same loop over rounds, with other ways to measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.checkpoint import load_folder, save_folder
from fedalc.config import Experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.data.load import load_held
from fedalc.engines.flower.collecting import Census
from fedalc.engines.flower.measuring import PartyEvaluation
from fedalc.engines.flower.parties import Parties
from fedalc.engines.flower.roster import Roster
from fedalc.engines.flower.strategy import FlowerStrategy
from fedalc.errors import DataError, FedalcError
from fedalc.evaluation import evaluate
from fedalc.federated import FederatedTraining
from fedalc.geometry import collapse
from fedalc.interrupt import Interrupt
from fedalc.ledger import Ledger
from fedalc.methods import Method
from fedalc.model import Model
from fedalc.trained import TrainedModel
from fedalc.training import Callback, Training

CENSUS = "census"  # in the run folder: who takes part and what was collected, so that a resumed run need not ask again


@dataclass(frozen=True)
class ServerData(Dataset):
    """What the server has itself: instances to measure on, or none. It never has one to train on."""

    def __post_init__(self) -> None:
        """Empty splits are in order here."""


def server_data(roster: Roster, held_out: str | None) -> ServerData:
    """Labels of held-out data are known by their pseudonyms (as hexadecimal), or by name where parties share names.

    Of instances with no label that a party has, nothing can be measured: they are left out.
    """
    features, labels = roster.feature_count, len(roster.counts)
    nothing = Split(csr_matrix((0, features), dtype=np.float32), csr_matrix((0, labels), dtype=np.float32))
    test = nothing if held_out is None else _matched(roster, held_out)
    return ServerData("parties", nothing, test, roster.names)


def _matched(roster: Roster, held_out: str) -> Split:
    split, names = load_held(held_out)
    if split.features.shape[1] != roster.feature_count:
        raise DataError(f"has {split.features.shape[1]} features, the parties' data {roster.feature_count}", held_out)
    often = Counter(roster.names)  # two labels of one name: at least one of these parties has made it up
    place = {name: label for label, name in enumerate(roster.names) if often[name] == 1}
    place |= {pseudonym.tobytes().hex(): label for label, pseudonym in enumerate(roster.pseudonyms)}
    known = [(column, place[name]) for column, name in enumerate(names) if name in place]
    if not known:
        raise DataError(
            "none of its labels is a party's; they are known by pseudonym, or by name where parties start with "
            "--share-names",
            held_out,
        )
    columns, labels = (list(part) for part in zip(*known, strict=True))
    chosen = split.labels.tocsc()[:, columns].tocoo()
    shape = (len(split), len(roster.counts))
    matched = csr_matrix((chosen.data, (chosen.row, np.array(labels)[chosen.col])), shape=shape)
    return Split(split.features, matched).rows(np.flatnonzero(matched.getnnz(axis=1)))


class PartyTraining(Training):
    """Its checkpoint is written after every round, so that none that is finished is ever lost."""

    checkpoint_seconds = 0.0

    def __init__(
        self,
        settings: Experiment,
        data: ServerData,
        census: Census,
        parties: Parties,
        max_norm: float | None,
        folder: Path | None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.census = census
        self.parties = parties
        self.max_norm = max_norm
        self._at_parties = PartyEvaluation(parties, census, settings)
        self._last: tuple[int, dict[str, float]] | None = None  # the last evaluation at the parties, and its round
        super().__init__(settings, data, folder, callbacks)

    def _run_phase(self, interrupt: Interrupt) -> None:
        if self.folder is not None:
            self.parties.write_to(self.folder)
            if not (self.folder / CENSUS).exists():
                save_folder(self.folder / CENSUS, self.census.tensors(), self.census.facts())
        super()._run_phase(interrupt)

    def _begin(self, train: Split) -> FederatedTraining:
        return Federated(self.settings, self.census.roster, self._strategy, self.census.knowledge)

    def _strategy(self, method: Method) -> FlowerStrategy:
        return FlowerStrategy(self.parties, self.census, method, self.settings, self.max_norm)

    def _evaluate(self, loss: float) -> None:
        self._save_if_due(force=True)  # parties may fail us in what follows, and the round is done
        model = self.federated.averaged_model()
        metrics = self._measured()
        if len(self.dataset.test):
            metrics = {f"test {name}": value for name, value in metrics.items()}
        record: dict[str, Any] = {"phase": self.phase, "round": self.federated.round_number, "loss": loss}
        record |= {"metrics": metrics, "collapse": collapse(model.W[self.federated.held])}
        self._evaluated(record | self.cost())

    def finish(self, interrupt: Interrupt) -> tuple[TrainedModel, dict[str, Any]]:
        trained, own = super().finish(interrupt)
        return trained, own | {"parties": len(self.census.roster.parties)}

    def test(self, trained: TrainedModel) -> dict[str, float]:
        """Of the last round, which is the one that is kept."""
        return self._measured(with_map=True)

    def _measured(self, with_map: bool = False) -> dict[str, float]:
        """At the server if it has data, else at the parties."""
        model = self.federated.averaged_model()
        if len(self.dataset.test):
            return evaluate(model, self._scaled_test, self.federated.held, with_map=with_map)
        return self._measured_at_parties(model, self.federated.round_number)

    def _measured_at_parties(self, model: Model, t: int) -> dict[str, float]:
        """Each round's model once: the result is that of the last round."""
        if self._last is None or self._last[0] != t:
            self._at_parties.traffic = Ledger()
            self._last = t, self._at_parties.evaluate(model, t)
            self.federated.ledger.add(self._at_parties.traffic)
        return self._last[1]


class Federated(FederatedTraining):
    """What length of change is usual goes into the checkpoint too: a resumed run must not judge otherwise."""

    def facts(self) -> dict[str, Any]:
        assert isinstance(self.engine, FlowerStrategy)
        return super().facts() | {"usual_length": self.engine.screen.usual}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        super().restore(tensors, facts)
        assert isinstance(self.engine, FlowerStrategy)
        self.engine.screen.usual = float(facts["usual_length"])


def load_census(folder: Path) -> Census | None:
    """Of a run that is resumed; none, if it was stopped before there was one."""
    if not (folder / CENSUS).exists():
        if any((folder / name).exists() for name in ("checkpoint", "checkpoint.old")):
            raise FedalcError(f"{folder / CENSUS}: is missing, and without it nobody knows which row is whose label")
        return None
    tensors, facts = load_folder(folder / CENSUS)
    try:
        return Census.restored(tensors, facts)
    except (KeyError, TypeError, ValueError) as error:
        raise FedalcError(f"{folder / CENSUS}: damaged, it does not fit together: {error}") from None
