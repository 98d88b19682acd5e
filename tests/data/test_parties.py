"""A folder per party: what is read, what is refused, and what a simulation makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.data.federation import form_clients, hold_out
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.load import has_parties
from fedalc.data.load import load_dataset as load_with_test_share
from fedalc.data.parties import describe_parties
from fedalc.errors import ConfigError, DataError
from fedalc.models.encoders import scale_rows
from fedalc.runs.result import read_result
from fedalc.training.federated import FederatedTraining, knowledge_for, simulated
from tests.commands import run
from tests.data.clinics import HELD, NAMES, rows_at, union, write_clinics

NORTH = "2 3 2\n0 0:1\n1 1:1\n"
SOUTH = "3 3 2\n0 0:1\n0,1 2:1\n1 1:2\n"


def load_dataset(folder: Path) -> Dataset:
    """Load all training records: hold none out for testing."""
    return load_with_test_share(folder, table=TableSettings(test_share=0.0))


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "train.txt").write_text(text)
    return folder


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    write(tmp_path / "clinics", north=NORTH, south=SOUTH)
    (tmp_path / "clinics" / "north" / "labels.txt").write_text("cough\nfever\n")
    (tmp_path / "clinics" / "south" / "labels.txt").write_text("fever\nasthma\n")
    return tmp_path / "clinics"


def test_labels_are_matched_by_name_and_rows_are_those_of_the_parties(clinics: Path) -> None:
    data = load_dataset(clinics)
    assert (data.name, data.label_names) == ("clinics", ("asthma", "cough", "fever"))
    assert data.train.parties == ("north", "north", "south", "south", "south")
    assert data.train.labels.toarray().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [1, 0, 1], [1, 0, 0]]
    assert len(data.test) == 0 and data.validation is None
    # In one place, the record that both have is one, with the labels of both.
    assert data.train.in_one_place.labels.toarray().tolist() == [[0, 1, 1], [0, 0, 1], [1, 0, 1], [1, 0, 0]]
    assert describe_parties(data) == [("north", 2, ("cough", "fever"), 1), ("south", 3, ("asthma", "fever"), 1)]


def test_clients_are_labels_at_parties(clinics: Path) -> None:
    federation = form_clients(load_dataset(clinics).train, "parties")
    assert federation.label_of.tolist() == [0, 1, 2, 2]  # in the order of labels, then of parties
    assert federation.party_of.tolist() == [1, 0, 0, 1]
    assert federation.user_of.tolist() == [0, 1, 2, 3]  # drawn for a round one by one
    assert federation.counts.tolist() == [2, 1, 1, 2] and federation.sender_count(np.array([2, 3])) == 2
    assert [federation.instances_of(client).tolist() for client in range(4)] == [[3, 4], [0], [1], [2, 3]]


def test_test_records_of_parties_and_beside_them_are_joined(clinics: Path) -> None:
    (clinics / "south" / "test.txt").write_text("2 3 2\n0 0:5\n1 1:5\n")
    (clinics / "north" / "test.txt").write_text("1 3 2\n0 0:5\n")
    (clinics / "north" / "valid.txt").write_text("1 3 2\n0 0:7\n")
    data = load_dataset(clinics)
    assert data.test.features.toarray().tolist() == [[5, 0, 0], [0, 5, 0]]
    assert data.test.labels.toarray().tolist() == [[0, 1, 1], [1, 0, 0]] and data.test.parties is None
    assert data.validation is not None and data.validation.labels.toarray().tolist() == [[0, 1, 0]]
    (clinics / "labels.txt").write_text("fever\nrash\n")
    (clinics / "test.txt").write_text("1 3 2\n1 2:5\n")
    data = load_dataset(clinics)
    assert data.label_names == ("asthma", "cough", "fever", "rash")
    assert data.test.labels.toarray().tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    write(clinics, test="1 3 1\n0 2:5\n")
    with pytest.raises(DataError, match=r"two files of test records: .*test\.txt and .*train\.txt; leave one"):
        load_dataset(clinics)
    (clinics / "test.txt").unlink()
    assert len(load_dataset(clinics).test) == 3


def test_what_is_no_folder_per_party(tmp_path: Path, clinics: Path) -> None:
    assert has_parties(clinics) and not has_parties(clinics / "north") and not has_parties("demo")
    write(tmp_path / "one", alone=NORTH)
    assert not has_parties(tmp_path / "one") and not has_parties(tmp_path / "none")
    with pytest.raises(DataError, match="no train file"):
        load_dataset(tmp_path / "one")
    (clinics / "train.txt").write_text(NORTH)
    assert not has_parties(clinics)  # a dataset of its own


def test_refusals(clinics: Path) -> None:
    (clinics / "west").mkdir()
    with pytest.raises(DataError, match=r"west: has no train file, and 2 folders beside it have one"):
        load_dataset(clinics)
    write(clinics, west="1 4 1\n0 0:1\n")
    with pytest.raises(DataError, match=r"west.train\.txt: has 4 features, and .*north.train\.txt has 3"):
        load_dataset(clinics)
    write(clinics, west="1 3 2\n0 0:1\n")
    (clinics / "west" / "labels.txt").write_text("cough\ncough\n")
    with pytest.raises(DataError, match="two labels have the same name, 'cough'"):
        load_dataset(clinics)
    with pytest.raises(ConfigError, match="not a folder with a folder per party"):
        form_clients(Split(csr_matrix((1, 2)), csr_matrix([[1]])), "parties")


def test_a_share_for_testing_is_drawn_by_record(tmp_path: Path) -> None:
    data = load_with_test_share(write_clinics(tmp_path / "clinics", union()))
    rows = {row.tobytes() for row in data.train.features.toarray()}
    assert 5 < len(data.test) < 15 and "held out for testing" in data.notes[0]
    assert not rows & {row.tobytes() for row in data.test.features.toarray()}
    assert data.train.parties is not None and data.test.parties is None


def test_a_held_out_record_is_held_out_everywhere(tmp_path: Path) -> None:
    data = load_dataset(write_clinics(tmp_path / "clinics", union()))
    train, validation = hold_out(data, 0.3, seed=4)
    assert validation is not None and validation.parties is None
    rows = {row.tobytes() for row in train.features.toarray()}
    assert not rows & {row.tobytes() for row in validation.features.toarray()}
    assert len(validation) == round(0.3 * len(data.train.in_one_place))
    whole = {
        row.tobytes(): labels for row, labels in zip(union().features.toarray(), union().labels.toarray(), strict=True)
    }
    for row, labels in zip(validation.features.toarray(), validation.labels.toarray(), strict=True):
        assert (labels <= whole[row.tobytes()]).all() and labels.any()


# --- what counts how often ---


def small(**changes: object) -> dict[str, object]:
    settings = {"method": "fedalc-oneshot", "clients": "parties", "dtype": "float64", "dataset": "small"}
    return settings | {"encoder": {"features": "raw", "dim": 7, "constant": 0.0}} | changes


def trained(data: Dataset, train: Split, **changes: object) -> FederatedTraining:
    settings = experiment(small(**changes))
    knowledge = knowledge_for(settings, train, data.label_names)
    train = replace(train, features=scale_rows(train.features, settings.encoder.features))
    training = simulated(settings, train, knowledge)
    for _ in range(1 if training.method.one_round else settings.rounds):
        training.run_round()
    return training


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("method", ["fedalc-oneshot", "fedalc-exact"])
def test_exact_methods_give_the_model_of_all_records_in_one_place(tmp_path: Path, method: str, engine: str) -> None:
    """A pair that two parties have counts once."""
    data = load_dataset(write_clinics(tmp_path / "clinics", union()))
    changes = {"method": method, "engine": engine, "rounds": 40}
    ours = trained(data, data.train, **changes)
    central = trained(data, data.train.in_one_place, **changes | {"clients": "labels"})
    assert ours.federation.parts is not None and (ours.federation.parts < 1).any()  # type: ignore[attr-defined]
    torch.testing.assert_close(ours.model.theta[0], central.model.theta[0], rtol=1e-8, atol=1e-9)
    assert ours.model.theta[0].abs().max() > 0.1


@pytest.mark.parametrize("loss", ["square", "logistic", "squared-hinge", "softmax"])
def test_engines_agree(tmp_path: Path, loss: str) -> None:
    data = load_dataset(write_clinics(tmp_path / "clinics", union()))
    one = {"client": {"loss": loss}, "server": {"optimizer": "sgd"}, "method": "fedalc-exact", "rounds": 2}
    fused, literal = (trained(data, data.train, engine=engine, **one) for engine in ("fused", "clients"))
    torch.testing.assert_close(fused.model.theta, literal.model.theta, rtol=1e-10, atol=1e-12)


def test_a_case_by_hand(clinics: Path) -> None:
    """Records x₀ = e₁ (north: cough; south: fever), x₁ = e₂ (north: fever), x₂ = e₃ (south: fever, asthma), and south's
    2 e₂ (asthma). G = diag(1, 1 + 4, 1) and b = Σ x for each label, each pair once."""
    write(clinics, south="4 3 2\n0 0:1\n0,1 2:1\n1 1:2\n0 1:1\n")  # south has north's x₁ too, also with fever
    data = load_dataset(clinics)
    settings = {"encoder": {"features": "raw", "constant": 0.0, "dim": 3}, "server": {"ridge": 1.0}}
    training = trained(data, data.train, client={"label_power": 0.0}, **settings)
    assert training.knowledge is not None and training.knowledge.set_sizes is not None
    assert training.knowledge.set_sizes.tolist() == [2, 1, 2, 2, 1, 1]  # of north's two rows and south's four
    assert training.knowledge.holders is not None  # of the pairs: only (x₁, fever) is at both
    assert training.knowledge.holders.tolist() == [1, 2, 1, 1, 1, 1, 2]
    solved = training.model.theta[0] @ training.model.W.T  # asthma, cough, fever
    expected = torch.tensor([[0, 1 / 2, 1 / 2], [2 / 6, 0, 1 / 6], [1 / 2, 0, 1 / 2]], dtype=torch.float64)
    torch.testing.assert_close(solved, expected, rtol=1e-12, atol=1e-12)


def test_the_hinge_counts_what_each_client_holds(clinics: Path) -> None:
    """R_u is a mean over the client's own records, as in the paper: nobody has to know who else has them."""
    training = trained(load_dataset(clinics), load_dataset(clinics).train, method="fedavg", rounds=1)
    assert training.federation.parts is None  # type: ignore[attr-defined]
    assert training.knowledge is None and len(training.federation.clients) == 4


def test_train_from_the_command_line(tmp_path: Path, clinics: Path) -> None:
    write_clinics(tmp_path / "many", union())
    write_clinics(tmp_path / "many" / "test", union(), {"all": range(7)})
    (tmp_path / "many" / "test" / "all" / "train.txt").rename(tmp_path / "many" / "test" / "test.txt")
    (tmp_path / "many" / "test" / "all" / "labels.txt").rename(tmp_path / "many" / "test" / "labels.txt")
    (tmp_path / "many" / "test" / "all").rmdir()
    common = ("--dataset", "many", "--out", ".")
    run("train", *common, "--no-tune", "--name", "ours", cwd=tmp_path)
    assert 'clients = "parties"' in (tmp_path / "ours" / "config.toml").read_text()
    result = read_result(tmp_path / "ours")
    assert (result["parties"], result["clients"]) == (3, sum(map(len, HELD.values())))
    assert f"{result['clients']} clients of 3 parties" in (tmp_path / "ours" / "report.html").read_text()
    run("train", *common, "--method", "ovr", "--name", "central", cwd=tmp_path)
    assert read_result(tmp_path / "central")["parties"] is None


def test_rows_of_the_problem() -> None:
    both = set(rows_at(60, 0)) & set(rows_at(60, 1))
    assert len(both) == 20 and len(NAMES) == 7


def test_a_line_says_what_the_columns_of_the_parties_are(tmp_path: Path) -> None:
    """Once if they are the same for all, else for each kind of table."""
    for party in ("north", "south", "west"):
        (tmp_path / party).mkdir()
        lines = [f"some words of {party} {n},{party}\n" for n in range(9)]
        (tmp_path / party / "train.csv").write_text("".join(["text,labels\n", *lines]))
    (note,) = load_with_test_share(tmp_path).notes
    assert note.startswith("text: column 'text'; labels: column 'labels'; 20 % held out")
    other = (
        (tmp_path / "west" / "train.csv").read_text().replace("text,labels", "body,topics").replace(",west", ",west|x")
    )
    (tmp_path / "west" / "train.csv").write_text(other)
    (note,) = load_dataset(tmp_path).notes
    assert note == (
        "north, south: text: column 'text'; labels: column 'labels'; "
        "west: text: column 'body'; labels: column 'topics', separated by '|'"
    )
