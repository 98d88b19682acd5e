"""What a deployment's server reconstructs: of a label alone, of a party, and of the sum over all parties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.audit.answers import ALONE, PARTY, RULE, SUM, CuriousServer, Notes, deal
from fedalc.audit.inversion import QUESTIONS, Inversion, Question, _Asked, invert
from fedalc.audit.reconstruct import matched, reconstruct
from fedalc.audit.targets import Target, choose_targets
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.data.federation import form_clients
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.engines.fused import FusedEngine
from fedalc.errors import DataError
from fedalc.models.encoders import Chance
from fedalc.models.model import Model
from fedalc.training.federated import begin_training, knowledge_for

DEMO = make_demo(DemoSize(train=300, test=20, words=400))
SMALL = ("encoder.dim=80",)


def small(question: Question) -> Question:
    return replace(question, settings=(*question.settings, *SMALL))


HINGE, LATER, SQUARE, SQUARES, SUMS, _, PRIVATE, NEWTON, CHOSEN = map(small, QUESTIONS)
CHOSEN = replace(CHOSEN, rounds=5)


@pytest.fixture(scope="module")
def found() -> Inversion:
    return invert(DEMO.train, DEMO.label_names, questions=[HINGE, SQUARE, SUMS, CHOSEN], sizes=(1, 2, 3))


def cell(found: Inversion, question: Question, size: int, view: str) -> tuple[float, bool]:
    """Return the mean cosine, and whether all records were found."""
    (row,) = (row for row in found.rows if (row.question, row.size) == (question.name, size))
    return row.cells[view].cosine, row.cells[view].found == row.cells[view].records


@pytest.mark.few(4)
@pytest.mark.parametrize("question", [HINGE, SUMS, CHOSEN], ids=lambda question: question.name)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_records_of_a_label_alone_are_found(found: Inversion, question: Question, size: int) -> None:
    """In 32 bits, as they travel. The rule of the fewest contributors does not help a label with so few records."""
    for view in (ALONE, RULE):
        cosine, all_found = cell(found, question, size, view)
        assert cosine >= 0.9999999 and all_found


def test_the_first_change_of_the_square_loss_has_the_mean_record(found: Inversion) -> None:
    assert cell(found, SQUARE, 1, ALONE)[0] >= 0.9999999
    assert 0.5 < cell(found, SQUARE, 2, ALONE)[0] < 0.9


@pytest.mark.parametrize("question", [SQUARE, SUMS, CHOSEN], ids=lambda question: question.name)
def test_a_sum_over_all_parties_still_has_a_label_of_one_record(found: Inversion, question: Question) -> None:
    """What secure sums do not hide: class embeddings tell the labels of a sum apart, exactly if D ≥ labels."""
    for view in (PARTY, SUM):
        assert cell(found, question, 1, view)[0] > 0.9999


def test_with_noise_a_label_of_one_record_is_not_in_the_sum() -> None:
    """And there is no other answer. The features of noise are all of them, so chance is lower than for mean records."""
    found = invert(DEMO.train, DEMO.label_names, questions=[SUMS, PRIVATE], sizes=(1,))
    assert cell(found, SUMS, 1, SUM)[0] > 0.99
    (row,) = (row for row in found.rows if row.question == PRIVATE.name)
    assert set(row.cells) == {SUM} and row.cells[SUM].found == 0
    assert row.cells[SUM].cosine < max(row.chance, 4 / np.sqrt(DEMO.feature_count))


def test_random_theta_finds_each_record_in_the_sum_over_all_parties(found: Inversion) -> None:
    for size in (2, 3):
        assert cell(found, CHOSEN, size, SUM)[0] > 0.999


class Kept(Notes):
    """Keeps the answers themselves."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, str], np.ndarray] = {}

    def add(self, target: Target, view: str, answers: list[torch.Tensor], model: Model) -> None:
        self.answers[target.label, view] = answers[0].detach().to_dense().double().numpy()

    def guess(self, target: Target, view: str) -> np.ndarray:
        """The inversion without class embeddings: the largest singular vector of the answer."""
        return np.linalg.svd(self.answers[target.label, view], full_matrices=False)[0][:, :1].T


def curious(notes: Notes, targets: list[Target], data: Split, method: str = "fedalc") -> tuple[CuriousServer, Model]:
    settings = experiment({"method": method}, overrides=[*SMALL, 'dtype="float64"'])
    federation, servers = form_clients(data, "labels"), []

    def server_for(method: object) -> CuriousServer:
        servers.append(
            CuriousServer(federation, method, settings, targets, deal(federation.clients, 4, 0), 8, notes)  # type: ignore[arg-type]
        )
        return servers[0]

    training = begin_training(settings, federation, server_for, knowledge_for(settings, data))
    training.run_round()
    return servers[0], training.model


def test_the_inversion_of_one_answer_is_chance_on_the_sum() -> None:
    """Without class embeddings. The guess from the sum is the same for all labels, so a label's own record is to it
    like any other record: ten of them are within four standard errors of the mean over all records."""
    data, targets = choose_targets(DEMO.train, DEMO.label_names, sizes=(1,), each=10)
    notes = Kept()
    curious(notes, targets, data)
    X = data.features.toarray() / np.linalg.norm(data.features.toarray(), axis=1, keepdims=True)
    own = np.array([X[t.records[0]] for t in targets])
    alone = [abs(float((notes.guess(t, ALONE) @ x).item())) for t, x in zip(targets, own, strict=True)]
    assert min(alone) >= 0.9999999
    guess = notes.guess(targets[0], SUM)[0]
    everyone = np.abs(X @ guess)
    assert abs(np.abs(own @ guess).mean() - everyone.mean()) < 4 * everyone.std() / 10**0.5


def test_products_of_newton_steps_are_chance_in_the_sum() -> None:
    """H p of the logistic loss does not depend on the own label, so there is nothing to tell a label's part by. Ten
    records are to their guesses like other records: the mean of ten standard scores is within four standard errors."""
    data, targets = choose_targets(DEMO.train, DEMO.label_names, sizes=(1,), each=10)
    asked = _Asked(NEWTON, data, targets, parties=4, fewest=8, seed=0)
    notes, X = asked._ask(), asked.data.features.toarray()
    scores = []
    for target in targets:
        everyone = np.abs(X @ notes.guess(target, SUM)[0])
        scores.append((everyone[target.records[0]] - everyone.mean()) / everyone.std())
        assert matched(notes.guess(target, ALONE), X[target.records]).min() >= 0.9999999
    assert abs(np.mean(scores)) < 4 / 10**0.5


def test_answers_of_parties_add_up_to_the_round() -> None:
    """The sum view is the weighted mean over all clients that the server of a simulation uses."""
    data, targets = choose_targets(DEMO.train, DEMO.label_names, sizes=(1,), each=1)
    notes = Kept()
    server, model = curious(notes, targets, data)
    settings = experiment({"method": "fedalc"}, overrides=[*SMALL, 'dtype="float64"'])
    engine = FusedEngine(server.federation, server.method, settings)
    server.run(model, server.federation.clients, Chance(settings, 2, model.W), 2)
    expected = engine.run(model, server.federation.clients, Chance(settings, 2, model.W), 2).change[0]
    np.testing.assert_allclose(notes.answers[targets[0].label, SUM], expected.numpy(), atol=1e-12)


def test_targets_have_the_wanted_numbers_of_records() -> None:
    Y = csr_matrix(
        (np.ones(13), ([0, 1, 2, 0, 1, 3, 4, 5, 0, 1, 2, 3, 5], [0] * 1 + [1] * 2 + [2] * 5 + [3] * 5)), (6, 4)
    )
    X = csr_matrix(np.arange(1.0, 13).reshape(6, 2))
    data, targets = choose_targets(Split(X, Y), "abcd", sizes=(1, 2, 3), each=1)
    assert [(t.name, len(t.records), t.had) for t in targets] == [("a", 1, 1), ("b", 2, 2), ("c", 3, 5)]
    assert data.labels.getnnz(axis=0).tolist() == [1, 2, 3, 5]
    assert (data.labels[:, 3] != Y[:, 3]).nnz == 0, "other labels keep their records"
    nothing = Split(csr_matrix((6, 2)), Y)
    with pytest.raises(DataError, match="nothing to invert"):
        choose_targets(nothing, "abcd")


def test_labels_are_dealt_once() -> None:
    parties = deal(np.arange(10), 3, 0)
    assert sorted(np.concatenate(parties)) == list(range(10)) and [len(p) for p in parties] == [4, 3, 3]
    assert len(deal(np.arange(2), 5, 0)) == 2


def test_without_flower_the_rule_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.audit.answers.find_spec", lambda name: None)
    (row,) = invert(DEMO.train, DEMO.label_names, questions=[SQUARE], sizes=(1,)).rows
    assert set(row.cells) == {ALONE, PARTY, SUM} and row.cells[ALONE].cosine > 0.9999999


def test_too_many_features_for_sums_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.audit.inversion.LARGEST_GRAM", 10)
    result = invert(DEMO.train, DEMO.label_names, questions=[SUMS], sizes=(1,))
    assert result.rows == () and "one round of sums: left out, 400 features" in result.notes[0]


@pytest.mark.long
def test_secret_rows_do_not_hide_the_sum_of_a_label_with_one_record() -> None:
    """Label sums times an unknown rotation, as a server sees the sum of a one-round method with embeddings.secret.
    Independent components find labels with one record; the best of as many other records is no close guess."""
    demo = make_demo()
    data, targets = choose_targets(demo.train, demo.label_names, sizes=(1,), each=3)
    X, random = data.features, np.random.default_rng(0)
    sums = (X.T @ data.labels).toarray()
    rotation = np.linalg.qr(random.normal(size=(sums.shape[1], sums.shape[1])))[0]
    guesses = reconstruct([(sums @ rotation).astype(np.float32)], sums.shape[1])
    for target in targets:
        x = X[target.records].toarray()[0] / np.linalg.norm(X[target.records].toarray())
        others = X[random.choice(X.shape[0], len(guesses))].toarray()
        by_chance = np.abs(others @ x / np.linalg.norm(others, axis=1)).max()
        assert np.abs(guesses @ x).max() > 0.9 > by_chance + 0.3
