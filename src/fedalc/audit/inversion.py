"""The inversion: what the server of a deployment reconstructs of labels with few records, question by question.

The deployment is simulated on the user's data: labels are dealt to parties, the server trains as it would, and keeps
what it sees. Each question is asked of each target alone (a party with this label only, without and with the rule of
`--fewest`), of its party (as the server sees it without secure sums), and of all parties (what secure sums leave). With
a private model there is no answer but the last, and it has noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fedalc.audit.answers import SUM, CuriousServer, Notes, deal, known_views
from fedalc.audit.notes import Mixtures
from fedalc.audit.reconstruct import by_chance, matched
from fedalc.audit.targets import SIZES, Target, choose_targets
from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.core.progress_events import watched
from fedalc.core.seeds import numpy_generator, torch_generator
from fedalc.data.dataset import Split
from fedalc.data.federation import form_clients
from fedalc.engines.sums import LARGEST_GRAM
from fedalc.methods import Method
from fedalc.models.encoders import scale_rows
from fedalc.training.federated import begin_training, knowledge_for

FOUND = 0.99  # the cosine from which a record counts as found
DRAWS = 20  # of other records, for the chance
MOST_AXES = 2048  # labels up to which a hostile server asks for as many columns, so that their sums do not mix
PARTIES = 5
FEWEST = 8  # a party's default for `--fewest`


@dataclass(frozen=True)
class Question:
    """What the server asks: `rounds` rounds of a training with these settings, of which it uses those from `since`."""

    name: str
    explained: str
    settings: tuple[str, ...]
    rounds: int = 1
    since: int = 1
    sums: bool = False  # whether parties answer with sums, features × features
    chosen: bool = False  # whether the server draws θ anew in each round, instead of training it
    noised: bool = False  # whether parties add noise to the sums, which they mask: the server sees the sum of all alone

    @property
    def views(self) -> tuple[str, ...]:
        return (SUM,) if self.noised else known_views()


def noised_sums(epsilon: float) -> Question:
    """Return the question of a private model."""
    settings = ("method=fedalc-oneshot", "privacy.mechanism=sums", "privacy.noise=seeded", f"privacy.epsilon={epsilon}")
    return Question(f"sums, ε = {epsilon:g}", "the same with noise, a private model", settings, noised=True)


QUESTIONS = (
    Question("hinge, round 1", "the first change of θ with the paper's loss (fedalc)", ("method=fedalc",)),
    Question("hinge, rounds 8-10", "three later changes, taken together", ("method=fedalc",), 10, 8),
    Question("square, round 1", "the first of fedalc-exact, from θ = 0: a label's mean", ("method=fedalc-exact",)),
    Question("square, rounds 1-3", "its first three changes, taken together", ("method=fedalc-exact",), 3),
    Question(
        "one round of sums",
        "Σ x xᵀ/m and the sum of each label (fedalc-oneshot)",
        ("method=fedalc-oneshot",),
        sums=True,
    ),
    noised_sums(4),
    noised_sums(1),
    Question(
        "Newton products",
        "H p of three directions (fedalc-exact, logistic)",
        ("method=fedalc-exact", 'client.loss="logistic"', 'server.optimizer="newton"'),
        4,
        2,
    ),
    Question(
        "chosen θ, 12 rounds",
        "a hostile server: random θ each round (hinge, raw output)",
        ("method=fedavg-fixed", 'encoder.output="raw"', "client.margin=1.0"),
        12,
        chosen=True,
    ),
)


@dataclass(frozen=True)
class Cell:
    """How well the records of all targets of one size were reconstructed."""

    cosine: float  # the mean over records
    found: int  # records with a cosine of at least FOUND
    records: int


@dataclass(frozen=True)
class Row:
    """One question about labels with `size` records each. A view that could not be tried is missing."""

    size: int
    question: str
    cells: dict[str, Cell]
    chance: float


@dataclass(frozen=True)
class Inversion:
    rows: tuple[Row, ...]
    targets: tuple[Target, ...]
    parties: int
    labels: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        targets = [{"label": t.name, "records": len(t.records), "records_in_data": t.had} for t in self.targets]
        rows = [asdict(row) for row in self.rows]
        return {
            "parties": self.parties,
            "labels": self.labels,
            "targets": targets,
            "rows": rows,
            "notes": [*self.notes],
        }


def invert(
    split: Split,
    names: Sequence[str],
    *,
    sizes: Sequence[int] = SIZES,
    parties: int = PARTIES,
    fewest: int = FEWEST,
    questions: Sequence[Question] | None = None,
    seed: int = 0,
) -> Inversion:
    """Attack labels with these numbers of records, with every question (None: all of QUESTIONS)."""
    questions = QUESTIONS if questions is None else questions
    data, targets = choose_targets(split, names, sizes, seed=seed)
    rows: dict[tuple[int, str], Row] = {}
    notes = []
    for question in watched("questions of a curious server", questions, len(questions)):
        if question.sums and data.features.shape[1] ** 2 > LARGEST_GRAM:
            notes.append(f"{question.name}: left out, {data.features.shape[1]:,} features are too many for one round")
            continue
        if question.noised and find_spec("dp_accounting") is None:
            notes.append(f'{question.name}: left out, noise needs pip install "fedalc[privacy]"')
            continue
        for row in _Asked(question, data, targets, parties, fewest, seed).rows():
            rows[row.size, question.name] = row
    ordered = [rows[size, q.name] for size in sizes for q in questions if (size, q.name) in rows]
    count = int((data.labels.getnnz(axis=0) > 0).sum())
    return Inversion(tuple(ordered), tuple(targets), min(parties, count), count, tuple(notes))


class _Asked:
    """One question, asked in a simulated deployment."""

    def __init__(
        self, question: Question, data: Split, targets: Sequence[Target], parties: int, fewest: int, seed: int
    ) -> None:
        self.question, self.targets, self.fewest, self.seed = question, targets, fewest, seed
        self.settings = experiment({"seed": seed}, overrides=question.settings)
        if question.chosen and self.settings.encoder.dim < data.labels.shape[1] <= MOST_AXES:
            self.settings = experiment(
                {"seed": seed, "encoder": {"dim": data.labels.shape[1]}}, overrides=question.settings
            )
        self.data = replace(data, features=scale_rows(data.features, self.settings.encoder.features))
        self.federation = form_clients(self.data, "labels")
        self.parties = deal(self.federation.clients, parties, seed)

    def rows(self) -> Iterator[Row]:
        notes = self._ask()
        X, random = self.data.features, numpy_generator(self.seed, "audit chance")
        mean = np.asarray(X.mean(axis=0)).ravel()
        for size in dict.fromkeys(len(target.records) for target in self.targets):
            cosines: dict[str, list[float]] = {view: [] for view in self.question.views}
            chance = []
            for target in (target for target in self.targets if len(target.records) == size):
                records = X[target.records].toarray()
                others = np.setdiff1d(np.arange(X.shape[0]), target.records)
                drawn = [X[random.choice(others, size)].toarray() for _ in range(DRAWS if len(others) else 0)]
                chance.append(by_chance(records, drawn, mean))
                for view in cosines:
                    cosines[view] += matched(notes.guess(target, view), records).tolist()
            cells = {view: _cell(found) for view, found in cosines.items()}
            yield Row(size, self.question.name, cells, float(np.mean(chance)))

    def _ask(self) -> Notes:
        """Train as a server does, and keep the answers."""
        notes, servers = Mixtures(self.data.features.shape[1]), []

        def server_for(method: Method) -> CuriousServer:
            servers.append(self._server(method, self.settings, notes))
            return servers[0]

        training = begin_training(self.settings, self.federation, server_for, knowledge_for(self.settings, self.data))
        for number in range(1, self.question.rounds + 1):
            servers[0].listens = number >= self.question.since
            if self.question.chosen:
                with torch.no_grad():
                    training.model.theta[0].normal_(generator=torch_generator(self.seed, "audit theta", number))
            training.run_round()
        return notes

    def _server(self, method: Method, settings: Experiment, notes: Notes) -> CuriousServer:
        return CuriousServer(self.federation, method, settings, self.targets, self.parties, self.fewest, notes)


def _cell(cosines: Sequence[float]) -> Cell:
    return Cell(float(np.mean(cosines)), int((np.array(cosines) >= FOUND).sum()), len(cosines))
