"""A server that targets single records or wastes a party's time; and a party that claims too many labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.client_app import app as client_app
from fedalc.deployment.flower.contributions import enough_contribute
from fedalc.deployment.flower.limits import BOUNDS, Limits
from fedalc.deployment.flower.party import Party
from fedalc.deployment.flower.wire import BadMessage, pack, pack_all_rows, task
from fedalc.deployment.local import write_party
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.secret_rows import turned
from fedalc.labels.privacy.ledger import Ledger
from fedalc.methods.losses import SET_LOSSES
from fedalc.models.encoders import make_encoder
from tests.deployment.flower.local_grid import LocalGrid, over_the_wire
from tests.deployment.flower.problem import LINEAR, RUN_ID, SETTINGS, Nodes, asked, notes, overrides, run
from tests.deployment.flower.test_census import said
from tests.deployment.flower.test_party import (
    NODE,
    assert_refused,
    train_message,
    with_settings,
    with_task,
)

RECORDS, FEATURES = 40, 30


class OneParty:
    """A party's app with its own memory, and a server that can send anything. One label with 40 records."""

    def __init__(self, folder: Path, lengths: np.ndarray | float = 1.0, **config: Any) -> None:
        random = np.random.default_rng(5)
        self.X = random.normal(size=(RECORDS, FEATURES)).astype(np.float32)
        self.X *= np.full((RECORDS, 1), 1, np.float32) * lengths / np.linalg.norm(self.X, axis=1, keepdims=True)
        split = Split(csr_matrix(self.X), csr_matrix(np.ones((RECORDS, 1), dtype=np.float32)))
        key = folder / "key"
        if not key.exists():
            Key(bytes(range(7, 47))).write(key)
            write_party(folder / "data", split, [0], ["flu"])
        self.config = {"data": str(folder / "data"), "key": str(key), **config}
        self.state = RecordDict()
        self.party = Party.from_node_config(self.config, run=RUN_ID)

    def ask(self, kind: str, content: RecordDict, flower_run: int = 1, state: RecordDict | None = None) -> Message:
        LocalGrid({})  # stamps messages
        message = Message(content, NODE, kind)
        message.metadata.__dict__["_message_id"] = "1"
        kept = self.state if state is None else state
        return over_the_wire(client_app(message, Context(flower_run, NODE, self.config, kept, {})))[0]

    def message(self, settings: Experiment, run_id: str = RUN_ID, **more: Any) -> RecordDict:
        party = Party.from_node_config(self.config, run=run_id)
        said = {"labels": [party.pseudonyms[0].tobytes()], "numbers": [0], "share": 0.0, **more}
        return RecordDict({"task": task(settings, run_id, **said)})

    def party_held_out(self, share: float) -> np.ndarray:
        return self.party.held_out(share)

    def told(self, content: RecordDict, shares: np.ndarray, weights: tuple[float, ...] = (1.0,)) -> RecordDict:
        return RecordDict({**content, "told": pack({"weights": np.array(weights), "shares": shares})})


def settings_of(method: str, values: dict[str, Any]) -> Experiment:
    return experiment({"method": method, "engine": "flower"}, overrides=overrides(values))


SQUARE = settings_of("fedalc-oneshot", LINEAR)


@pytest.fixture
def clinic(tmp_path: Path) -> OneParty:
    return OneParty(tmp_path)


def gram_of(reply: Message) -> np.ndarray:
    half = np.frombuffer(reply.content["sums"]["gram"].data, "f4")
    gram = np.zeros((FEATURES, FEATURES))
    gram[np.triu_indices(FEATURES)] = half
    return gram + np.triu(gram, 1).T


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(abs((a * b).sum()) / lengths) if lengths else 0.0


def closest(gram: np.ndarray, X: np.ndarray) -> float:
    return max(cosine(gram, np.outer(x, x)) for x in X)


@pytest.mark.parametrize("share", [0.0, -1.0, 1e-30, 1e6, 0.4, 1 / 3 + 1e-12, 1 / 1001])
def test_a_share_that_is_no_share_is_refused(clinic: OneParty, share: float) -> None:
    """If all but one are 0, the sum is one record's outer product."""
    shares = np.full(RECORDS, share)
    shares[7] = 1.0
    assert_refused(clinic.ask("train.sums", clinic.told(clinic.message(SQUARE), shares)), "a share of")


def test_plausible_shares_that_single_out_a_record_get_nothing(clinic: OneParty, tmp_path: Path) -> None:
    shares = np.full(RECORDS, 1 / 1000)
    shares[7] = 1.0
    content = clinic.told(clinic.message(SQUARE), shares)
    naive = OneParty(tmp_path, fewest=1)
    assert closest(gram_of(naive.ask("train.sums", content)), naive.X) > 0.999, "without the rule it is this record's"
    reply = clinic.ask("train.sums", content)
    assert not gram_of(reply).any() and not np.frombuffer(reply.content["sums"]["cross"].data, "f4").any()
    honest = OneParty(tmp_path)
    told = 1.0 / np.random.default_rng(0).integers(1, 7, RECORDS)
    assert gram_of(honest.ask("train.sums", honest.told(honest.message(SQUARE), told))).any()


def test_shares_and_weights_do_not_change_in_a_run(clinic: OneParty) -> None:
    content = clinic.message(SQUARE)
    shares = np.full(RECORDS, 0.5)
    assert clinic.ask("train.sums", clinic.told(content, shares)).has_content()
    assert clinic.ask("train.sums", clinic.told(content, shares)).has_content()
    changed = shares.copy()
    changed[7] = 1 / 3
    assert_refused(clinic.ask("train.sums", clinic.told(content, changed)), "other shares or label weights than before")
    assert_refused(clinic.ask("train.sums", clinic.told(content, shares, (0.5,))), "label weights than before")
    plain = clinic.message(settings_of("fedalc-oneshot", LINEAR | {"client.label_power": 0.0}), "plain")
    refused = clinic.ask("train.sums", clinic.told(plain, shares, (0.5,)), state=RecordDict())
    assert_refused(refused, "label_power is 0")


@pytest.mark.parametrize("weight", [0.0, -1.0, 1.5, 1e-30])
def test_a_label_weight_is_in_its_range(clinic: OneParty, weight: float) -> None:
    settings = settings_of("fedalc-oneshot", LINEAR | {"client.label_power": 0.3})
    content = clinic.told(clinic.message(settings), np.full(RECORDS, 0.5), (weight,))
    assert_refused(clinic.ask("train.sums", content), "label_weight")


def test_expected_set_sizes_are_in_their_range_and_stay(clinic: OneParty) -> None:
    settings = settings_of("fedalc-oneshot", LINEAR | {"client.set_size": "expected"})
    content = clinic.message(settings)
    for share in (0.0, 1.1, -0.5, 1e-9):
        assert_refused(clinic.ask("train.sums", clinic.told(content, np.array([share]))), "a share of")
    assert clinic.ask("train.sums", clinic.told(content, np.array([0.37]))).has_content(), "a mean is no 1/k"
    assert_refused(clinic.ask("train.sums", clinic.told(content, np.array([0.38]))), "than before")


def crafted(clinic: OneParty, loss: str, **client: Any) -> RecordDict:
    """Return a linear θ and rows for which only record 7 has a considerable loss."""
    labels = 2 if loss in SET_LOSSES else 1
    values = {"encoder.name": "linear", "encoder.dim": labels, "encoder.output": "raw", "encoder.start": "he"}
    values |= {"client.loss": loss, "client.learning_rate": 0.1}
    values |= {f"client.{name}": value for name, value in client.items()}
    wanted = np.full((RECORDS, labels), {"hinge": 0.9, "square": 1.0}.get(loss, 30.0))  # all others have no loss
    wanted[:, 1:] *= -1
    wanted[7] = 0.0
    theta = np.linalg.lstsq(clinic.X, wanted, rcond=None)[0].astype("f4")
    content = clinic.message(settings_of("fedavg-fixed", values), round=1, **{"label-count": labels})
    arrays = {"theta": pack({"0": theta}), "rows": pack({"rows": np.eye(labels, dtype="f4")[:1]})}
    content = RecordDict({**content, **arrays})
    if loss in SET_LOSSES:
        content["all-rows"] = pack_all_rows(torch.eye(labels))
    return content if loss == "hinge" else clinic.told(content, np.full(RECORDS, 1.0))


@pytest.mark.few(8)
@pytest.mark.parametrize("loss", ["hinge", "square", *SET_LOSSES])
@pytest.mark.parametrize("schedule", [{}, {"epochs": 3}, {"epochs": 2, "batch_size": 8}, {"batch_size": 13}])
def test_a_crafted_encoder_gets_nothing_of_a_single_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, schedule: dict[str, int]
) -> None:
    """The label has 40 records. Without the rule the answer is that record, to a cosine of over 0.999."""
    monkeypatch.setattr(f"{__name__}.FEATURES", 60)
    naive, careful = OneParty(tmp_path, fewest=1), OneParty(tmp_path)
    content = crafted(careful, loss, **schedule)
    found = {}
    for name, party in (("naive", naive), ("careful", careful)):
        reply = party.ask("train", content)
        change = reply.content["change"]["0"]
        found[name] = np.frombuffer(change.data, "f4").reshape(change.shape)[:, 0]
    assert max(cosine(found["naive"], x) for x in naive.X) > (0.999 if len(schedule) == 0 else 0.9)
    assert not found["careful"].any()


def one_long_record() -> np.ndarray:
    lengths = np.full((RECORDS, 1), 1e-4, np.float32)
    lengths[7] = 1
    return lengths


COLUMNS = [
    {"encoder.name": "linear", "encoder.constant": 10.0},
    {"encoder.name": "random-features", "encoder.random_features": 9, "encoder.activation": "cosine"},
    {
        "encoder.name": "random-features",
        "encoder.random_features": 40,
        "encoder.activation": "cosine",
        "encoder.linear_part": False,
    },
    {
        "encoder.name": "random-features",
        "encoder.random_features": 9,
        "encoder.constant": 10.0,
        "encoder.linear_part": False,
    },
]


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_columns_that_all_records_have_do_not_hide_that_one_alone_has_features(
    tmp_path: Path, columns: dict[str, Any]
) -> None:
    """All records contribute alike to the constant's row of θ, or to the cosines, and one alone to the features."""
    naive, careful = (OneParty(tmp_path, one_long_record(), fewest=fewest) for fewest in (1, 8))
    values = {"encoder.dim": 1, "encoder.output": "raw", "encoder.features": "raw", **columns}
    settings = settings_of("fedavg-fixed", values)
    width = make_encoder(FEATURES, settings.encoder, torch.Generator()).width
    content = naive.message(settings, round=1)
    arrays = {"theta": pack({"0": np.zeros((width, 1), "f4")}), "rows": pack({"rows": np.ones((1, 1), "f4")})}
    change, left = (
        np.frombuffer(party.ask("train", RecordDict({**content, **arrays})).content["change"]["0"].data, "f4")
        for party in (naive, careful)
    )
    assert change.any() and not left.any()
    if settings.encoder.linear_part:
        assert cosine(change[:FEATURES], naive.X[7]) > 0.99
    asking = settings_of("fedalc-oneshot", LINEAR | {"encoder.features": "raw", **columns})
    replies = [
        party.ask("train.sums", party.told(party.message(asking, "sums"), np.full(RECORDS, 0.5)), state=RecordDict())
        for party in (naive, careful)
    ]
    gram, none = (np.frombuffer(reply.content["sums"]["gram"].data, "f4") for reply in replies)
    assert len(gram) == width * (width + 1) // 2 and gram.any() and not none.any()


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_honest_columns_get_their_answer(tmp_path: Path, columns: dict[str, Any]) -> None:
    clinic = OneParty(tmp_path)
    asking = clinic.told(clinic.message(settings_of("fedalc-oneshot", LINEAR | columns)), np.full(RECORDS, 0.5))
    assert np.frombuffer(clinic.ask("train.sums", asking).content["sums"]["gram"].data, "f4").any()


@pytest.mark.parametrize(
    ("client", "why"),
    [
        ({"batch_size": 1}, "client.batch_size = 1 is below 8"),
        ({"batch_size": 8, "weight_decay": 10.0}, "rate × decay = 1 is outside"),
    ],
)
def test_schedules_that_leave_the_last_records_alone_are_refused(
    clinic: OneParty, client: dict[str, Any], why: str
) -> None:
    assert_refused(clinic.ask("train", crafted(clinic, "hinge", **client)), why)


def test_a_row_that_the_last_record_has_overwritten_is_not_sent(tmp_path: Path) -> None:
    """Four batches, the last with one record, and a rate at which every step erases the previous row."""
    naive, careful = OneParty(tmp_path, fewest=1), OneParty(tmp_path)
    values = {"encoder.name": "linear", "encoder.dim": FEATURES, "encoder.output": "raw", "client.batch_size": 13}
    values |= {"client.learning_rate": 1e-9, "client.row_learning_rate": 1000.0}
    content = careful.message(settings_of("fedavg", values), round=1)
    row = np.full((1, FEATURES), FEATURES**-0.5, dtype="f4")
    arrays = {"theta": pack({"0": 0.05 * np.eye(FEATURES, dtype="f4")}), "rows": pack({"rows": row})}
    content = RecordDict({**content, **arrays})
    rows = [np.frombuffer(p.ask("train", content).content["rows"]["rows"].data, "f4") for p in (naive, careful)]
    assert max(cosine(rows[0], x) for x in naive.X) > 0.99
    np.testing.assert_array_equal(rows[1], row[0])


@pytest.mark.parametrize(("share", "expected"), [(0.5, "enough"), (0.05, "few")])
def test_evaluation_says_nothing_of_few_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, expected: str
) -> None:
    """Neither if few are held out, nor if a crafted row gives only one of them a score."""
    monkeypatch.setattr(f"{__name__}.FEATURES", 60)
    clinic = OneParty(tmp_path)
    values = {"encoder.name": "linear", "encoder.dim": 1, "encoder.output": "raw"}
    content = clinic.message(settings_of("fedavg", values), share=share)
    out = clinic.party_held_out(share)
    alone = np.zeros(RECORDS)
    alone[np.flatnonzero(out)[0]] = 1.0
    counted = []
    for wanted in (np.ones(RECORDS), alone):
        theta = np.linalg.lstsq(clinic.X, wanted, rcond=None)[0].reshape(-1, 1).astype("f4")
        arrays = {"theta": pack({"0": theta}), "rows": pack({"rows": np.ones((1, 1), "f4")})}
        reply = clinic.ask("evaluate", RecordDict({**content, **arrays}))
        counted.append(dict(reply.content["metrics"])["num-examples"])
    assert counted == [int(out.sum()) if expected == "enough" else 0, 0]


@pytest.mark.parametrize("loss", ["hinge", "square", *SET_LOSSES])
def test_an_honest_encoder_gets_its_answer(tmp_path: Path, loss: str) -> None:
    clinic = OneParty(tmp_path)
    values = {"encoder.name": "linear", "encoder.dim": 3, "encoder.output": "raw", "client.loss": loss}
    content = clinic.message(settings_of("fedavg-fixed", values), round=1, **{"label-count": 3})
    theta = np.random.default_rng(1).normal(0, 0.3, (FEATURES, 3)).astype("f4")
    content = RecordDict({**content, "theta": pack({"0": theta}), "rows": pack({"rows": np.eye(3, dtype="f4")[:1]})})
    content = clinic.told(content, np.full(RECORDS, 0.5)) if loss != "hinge" else content
    content["all-rows"] = pack_all_rows(torch.eye(3))
    assert np.frombuffer(clinic.ask("train", content).content["change"]["0"].data, "f4").any()


# --- losses over all labels ---


def compared(clinic: OneParty, rows: np.ndarray, own: int = 0, **more: Any) -> RecordDict:
    """Return an honest server's message for the logistic loss with these rows of W."""
    labels, dim = rows.shape
    values = {"encoder.name": "linear", "encoder.dim": dim, "encoder.output": "raw", "client.loss": "logistic"}
    values |= {"client.learning_rate": 0.1, **more.pop("settings", {})}
    said = {"round": 1, "numbers": [own], "label-count": labels, **more}
    content = clinic.message(settings_of("fedavg-fixed", values), **said)
    theta = np.random.default_rng(1).normal(0, 0.3, (FEATURES, dim)).astype("f4")
    arrays = {"theta": pack({"0": theta}), "rows": pack({"rows": rows[[own]]})}
    arrays["all-rows"] = pack_all_rows(torch.from_numpy(rows))
    return clinic.told(RecordDict({**content, **arrays}), np.full(RECORDS, 0.5))


def some_rows(seed: int = 0, labels: int = 4) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(labels, 3))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("f4")


def test_rows_of_all_labels_do_not_change_in_a_run(clinic: OneParty) -> None:
    rows, other = some_rows(), some_rows(1)
    assert clinic.ask("train", compared(clinic, rows)).has_content()
    assert clinic.ask("train", compared(clinic, rows, round=2)).has_content()
    problem = "other rows of W, or another number of labels, than before"
    changed = rows.copy()
    changed[2] = other[2]
    for asking in (
        compared(clinic, changed),
        compared(clinic, np.concatenate([rows, other])),
        compared(clinic, rows, own=1),
        RecordDict({**compared(clinic, rows), "rows": pack({"rows": other[:1]})}),
    ):
        assert_refused(clinic.ask("train", asking), problem)
    assert clinic.ask("train", compared(clinic, rows, round=3)).has_content()


def test_rows_of_a_sample(clinic: OneParty) -> None:
    """The party draws the labels itself, so the server can send only as many rows as the settings say."""
    sample = {"settings": {"client.negatives": 2}}
    asking = compared(clinic, some_rows(), **sample)
    assert_refused(clinic.ask("train", asking), "all-rows rows is float32 4 × 3, and should be float32 2 × 3")
    few = RecordDict({**asking, "all-rows": pack_all_rows(torch.from_numpy(some_rows()[:2]))})
    assert clinic.ask("train", few).has_content()
    moved = RecordDict({**few, "rows": pack({"rows": some_rows(1)[:1]})})
    assert_refused(clinic.ask("train", moved), "other rows of W")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"label-count": 10**9}, "labels = 1e+09 is outside"),
        ({"label-count": 0}, "labels = 0 is outside"),
        ({"label-count": 5}, "all-rows rows is float32 4 × 3, and should be float32 5 × 3"),
        ({"numbers": [4]}, "not different ones of 4"),
        ({"numbers": [-1]}, "not different ones of 4"),
        ({"label-count": 4.0}, "task has no label-count"),
    ],
    ids=str,
)
def test_numbers_of_labels_that_cannot_be(clinic: OneParty, change: dict[str, Any], why: str) -> None:
    assert_refused(clinic.ask("train", with_task(compared(clinic, some_rows()), **change)), why)


def test_rows_that_cannot_be(clinic: OneParty, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = compared(clinic, some_rows())
    without = RecordDict({name: record for name, record in honest.items() if name != "all-rows"})
    assert_refused(clinic.ask("train", without), "there are no all-rows")
    wrong = some_rows()
    wrong[3, 1] = np.nan
    assert_refused(clinic.ask("train", RecordDict({**honest, "all-rows": pack({"rows": wrong})})), "not finite")
    axes = pack({"columns": np.array([0, 1, 2, 3], dtype=np.int32)})
    assert_refused(clinic.ask("train", RecordDict({**honest, "all-rows": axes})), "an axis outside 0 to 2")
    untold = RecordDict({name: record for name, record in honest.items() if name != "told"})
    assert_refused(clinic.ask("train", untold), "there are no told")
    weighted = clinic.told(honest, np.full(RECORDS, 0.5), (0.5,))
    assert_refused(clinic.ask("train", weighted), "label weights other than 1")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=4000))
    assert_refused(clinic.ask("train", honest), "more than half of this machine")


def test_shares_that_single_out_a_record_get_nothing_of_a_loss_over_all_labels(tmp_path: Path) -> None:
    """Softmax is all share, so with m = 1000 for all records but one the change is that record's."""
    naive, careful = OneParty(tmp_path, fewest=1), OneParty(tmp_path)
    shares = np.full(RECORDS, 1 / 1000)
    shares[7] = 1.0
    asking = careful.told(compared(careful, some_rows(), settings={"client.loss": "softmax"}), shares)
    changes = [np.frombuffer(p.ask("train", asking).content["change"]["0"].data, "f4") for p in (naive, careful)]
    change = changes[0].reshape(FEATURES, -1)
    direction = np.linalg.svd(change)[0][:, 0]
    assert max(cosine(direction, x) for x in naive.X) > 0.99 and not changes[1].any()


def columns_of(reply: Message, record: str = "change") -> np.ndarray:
    array = reply.content[record]["0"]
    return np.frombuffer(array.data, "f4").reshape(array.shape)


@pytest.mark.parametrize("loss", ["square", "logistic", "squared-hinge"])
def test_columns_that_carry_one_record_each_are_not_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """What remains (docs/deployment.md): all records contribute alike to the matrix, and one each to its columns."""
    monkeypatch.setattr(f"{__name__}.FEATURES", 60)
    clinic, labels = OneParty(tmp_path), RECORDS + 1
    values = {"encoder.name": "linear", "encoder.dim": labels, "encoder.output": "raw", "client.loss": loss}
    content = clinic.message(settings_of("fedavg-fixed", values), round=1, **{"label-count": labels})
    alone = np.eye(RECORDS) if loss == "square" else 60 * np.eye(RECORDS) - 30
    wanted = np.concatenate([np.zeros((RECORDS, 1)), alone], axis=1)
    theta = np.linalg.lstsq(clinic.X, wanted, rcond=None)[0].astype("f4")
    arrays = {"theta": pack({"0": theta}), "rows": pack({"rows": np.eye(labels, dtype="f4")[:1]})}
    content = RecordDict({**content, **arrays, "all-rows": pack_all_rows(torch.eye(labels))})
    change = columns_of(clinic.ask("train", clinic.told(content, np.full(RECORDS, 0.5))))
    assert min(cosine(change[:, record + 1], x) for record, x in enumerate(clinic.X)) > 0.999


@pytest.mark.parametrize("method", ["fedalc-exact", "fedalc-oneshot"])
def test_a_server_that_watches_single_parties_finds_secret_rows(tmp_path: Path, parties: Nodes, method: str) -> None:
    """What remains of embeddings.secret (docs/exact.md): from θ = 0 the first change of a party, or its sum, has as
    many dimensions as the party has labels, and their turned rows lie in them. Only masked sums would hide them."""
    grid = LocalGrid(parties)
    grid.keeps = True
    settings = LINEAR | {"dtype": "float64", "embeddings.secret": True}
    found = run(grid, tmp_path / "run", asked(method, settings))
    W = turned(found.model.W, Hasher("hmac-sha256", Key.read(parties[7]["key"]), run=RUN_ID)).numpy()
    part = "change" if method == "fedalc-exact" else "sums"
    first = [reply.content for reply in grid.replies if reply.metadata.group_id == "1" and part in reply.content]
    assert len(first) == len(parties)
    for content in first:
        labels = len(content["outcome"]["labels"])
        change = list(content[part].values())[-1]
        _, lengths, directions = np.linalg.svd(np.frombuffer(change.data).reshape(change.shape))
        assert (lengths > 1e-9).sum() == labels
        outside = W - W @ directions[:labels].T @ directions[:labels]
        assert (np.linalg.norm(outside, axis=1) < 1e-9).sum() == labels


def test_sums_of_each_label_are_not_told_if_rows_are_secret(clinic: OneParty) -> None:
    """For the first Newton step a party sends them otherwise: with them the server would solve for every score."""
    newton = LINEAR | {"client.loss": "logistic", "server.optimizer": "newton", "encoder.constant": 1.0}
    for secret in (False, True):
        settings = settings_of("fedalc-exact", newton | {"embeddings.secret": secret})
        content = clinic.told(clinic.message(settings, **{"label-count": 4}), np.full(RECORDS, 0.5))
        reply = clinic.ask("train.sums", content, state=RecordDict())
        if secret:
            assert_refused(reply, "asks for the sums of fedalc-exact, which does not use any")
        else:
            assert reply.content["sums"]["cross"].shape == (FEATURES + 1, 1)


def curved(clinic: OneParty, theta: np.ndarray, direction: np.ndarray, **settings: Any) -> RecordDict:
    """Return a message that asks for H p."""
    asking = compared(clinic, np.eye(theta.shape[1], dtype="f4"), settings={"client.loss": "squared-hinge"} | settings)
    asking["theta"], asking["direction"] = (pack({"0": array.astype("f4")}) for array in (theta, direction))
    return asking


@pytest.mark.parametrize("loss", SET_LOSSES)
@pytest.mark.parametrize("crafted_part", ["direction", "theta"])
def test_curvature_says_nothing_of_a_single_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, crafted_part: str
) -> None:
    """A direction along which one record alone moves, or a θ at which it alone has curvature."""
    monkeypatch.setattr(f"{__name__}.FEATURES", 60)
    naive, careful = OneParty(tmp_path, fewest=1), OneParty(tmp_path)
    random = np.random.default_rng(3)
    alone = np.zeros((RECORDS, 2))
    alone[7] = 1, -1
    saturated = np.tile([30.0, -30.0], (RECORDS, 1))  # on the right side of every margin
    saturated[7] = 0.0
    theta, direction = np.zeros((60, 2)), random.normal(size=(60, 2))
    if crafted_part == "direction":
        direction = np.linalg.lstsq(naive.X, alone, rcond=None)[0]
    else:
        theta = np.linalg.lstsq(naive.X, saturated, rcond=None)[0]
    asking = careful.told(curved(careful, theta, direction, **{"client.loss": loss}), np.full(RECORDS, 1.0))
    found, none = (columns_of(party.ask("train.curvature", asking), "product") for party in (naive, careful))
    assert max(cosine(found[:, 1], x) for x in naive.X) > 0.999 and not none.any()
    honest = OneParty(tmp_path)
    usual = curved(honest, np.zeros((60, 2)), random.normal(size=(60, 2)), **{"client.loss": loss})
    assert columns_of(honest.ask("train.curvature", usual), "product").any()


def test_what_a_direction_may_be(clinic: OneParty, tmp_path: Path) -> None:
    theta, direction = np.zeros((FEATURES, 3)), np.ones((FEATURES, 3))
    assert clinic.ask("train.curvature", curved(clinic, theta, direction)).has_content()
    for wrong, why in (
        (np.full((FEATURES, 3), np.inf), "not finite"),
        (1e9 * direction, "direction = 9.48683e+09 is outside 0 to 1e+09"),
        (direction[:, :2], "direction 0 is float32 30 × 2, and should be float32 30 × 3"),
    ):
        assert_refused(clinic.ask("train.curvature", curved(clinic, theta, wrong)), why)
    for settings in (
        {"client.loss": "square"},
        {"client.loss": "hinge"},
        {"client.negatives": 2},
        {"client.sample": 0.5},
        {"encoder.output": "unit"},
        {"encoder.name": "mlp", "encoder.embedding": 3, "encoder.hidden": [4]},
    ):
        asking = curved(clinic, theta, direction, **settings)
        assert_refused(clinic.ask("train.curvature", asking, state=RecordDict()), "needs a convex objective")
    few = OneParty(tmp_path, allow="directions=2")
    for number, answered in ((1, True), (2, True), (1, True), (3, False)):
        reply = few.ask("train.curvature", curved(few, theta, number * direction))
        assert reply.has_content() == answered
    assert_refused(reply, "directions = 3 is outside 1 to 2")


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_sums_of_the_first_newton_step(tmp_path: Path, loss: str) -> None:
    """For losses that are sums over labels; and not of a single record."""
    constant = {"client.loss": loss, "encoder.constant": 0.7, "encoder.features": "raw"}
    (tmp_path / "long").mkdir()
    for clinic, given in ((OneParty(tmp_path), True), (OneParty(tmp_path / "long", one_long_record()), False)):
        reply = clinic.ask("train.sums", compared(clinic, some_rows(), settings=constant))
        if loss == "softmax":
            assert_refused(reply, "which does not use any")
        else:
            assert np.frombuffer(reply.content["sums"]["gram"].data, "f4").any() == given


def test_a_layer_that_fires_for_one_record_alone_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All outputs are alike, but only one record activates the mlp's first layer."""
    monkeypatch.setattr(f"{__name__}.FEATURES", 60)
    clinic, naive = OneParty(tmp_path), OneParty(tmp_path, fewest=1)
    values = {"encoder.name": "mlp", "encoder.dim": 2, "encoder.embedding": 1, "encoder.hidden": [1]}
    values |= {"encoder.output": "raw", "encoder.dropout": 0.0}
    wanted = np.full(RECORDS, -1.0)
    wanted[7] = 1.0
    theta = [np.linalg.lstsq(clinic.X, wanted, rcond=None)[0].reshape(-1, 1)]  # a unit that is on for record 7 alone
    theta += [np.ones((1, 1)), np.zeros(1), np.full((2, 1), 0.1), np.full(2, -0.5)]
    content = clinic.message(settings_of("fedavg-fixed", values), round=1)
    arrays = {str(place): value.astype("f4") for place, value in enumerate(theta)}
    content = RecordDict({**content, "theta": pack(arrays), "rows": pack({"rows": np.eye(2, dtype="f4")[:1]})})
    first = {who: party.ask("train", content).content["change"]["0"] for who, party in (("n", naive), ("c", clinic))}
    assert max(cosine(np.frombuffer(first["n"].data, "f4"), x) for x in naive.X) > 0.999
    assert not np.frombuffer(first["c"].data, "f4").any()


def test_how_many_have_to_contribute() -> None:
    assert enough_contribute(np.r_[np.ones(8), np.zeros(32)], 8)
    assert not enough_contribute(np.r_[np.ones(7), np.zeros(33)], 8)
    assert not enough_contribute(np.r_[1.0, np.full(39, 0.05)], 8), "many, but one is over nine tenths of Σ c²"
    assert enough_contribute(np.r_[1.0, np.full(39, 1 / 6)], 8), "as an honest set of 1/m may be"
    assert enough_contribute(np.array([1.0]), 8) and enough_contribute(np.array([1.0, 0.0, 0.0]), 8), "rare labels"
    assert not enough_contribute(np.array([1.0, 0, 0, 0, 0, 0]), 8)
    assert enough_contribute(np.r_[1.0, np.zeros(39)], 1), "switched off"
    assert not enough_contribute(np.r_[1e-200, np.zeros(39)], 8) and not enough_contribute(np.r_[1e200, np.ones(39)], 8)


LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "epochs": ({"client__epochs": 10**12}, "client.epochs"),
    "epochs of hundreds of digits": ({"client__epochs": 10**400}, ""),
    "steps": ({"client__epochs": 100, "client__batch_size": 1}, "steps"),
    "learning rate": ({"client__learning_rate": 1e9}, "client.learning_rate"),
    "row rate": ({"client__row_learning_rate": 1e9}, "client.row_learning_rate"),
    "weight decay": ({"client__weight_decay": 1e9}, "client.weight_decay"),
    "margin": ({"client__margin": -0.5}, "client.margin"),
    "dim": ({"encoder__dim": 10**9}, "encoder.dim"),
    "embedding": ({"encoder__embedding": 10**9}, "encoder.embedding"),
    "random features": ({"encoder__random_features": 10**9}, "encoder.random_features"),
    "hidden": ({"encoder__hidden": [10**9]}, "encoder.hidden"),
    "block rows": ({"top__block_rows": 10**9}, "block_rows"),
    "buckets": ({"hashing__buckets": 10**12}, "hashing.buckets"),
}


@pytest.fixture(scope="module")
def honest(parties: Nodes) -> RecordDict:
    return train_message(parties)


def one(config: dict[str, Any], content: RecordDict) -> Message:
    LocalGrid({})
    message = Message(content, NODE, "train")
    message.metadata.__dict__["_message_id"] = "1"
    return over_the_wire(client_app(message, Context(1, NODE, config, RecordDict(), {})))[0]


@pytest.mark.parametrize("case", LARGE)
def test_what_a_server_may_not_ask_is_refused_at_once(parties: Nodes, honest: RecordDict, case: str) -> None:
    changes, why = LARGE[case]
    config = parties[NODE] | ({"allow": "steps=10"} if case == "steps" else {})
    assert_refused(one(config, with_settings(honest, **changes)), why)


@pytest.mark.long
def test_a_party_may_allow_more(parties: Nodes, honest: RecordDict) -> None:
    more = with_settings(honest, client__epochs=101)
    assert_refused(one(parties[NODE], more), "client.epochs = 101 is outside 1 to 100")
    assert one(parties[NODE] | {"allow": "client.epochs=200; seconds=100"}, more).has_content()
    for wrong in ("client.epoch=3", "client.epochs", "client.epochs=many"):
        with pytest.raises(ConfigError, match="allow"):
            Limits.from_node_config({"allow": wrong})
    with pytest.raises(ConfigError, match="fewest"):
        Limits.from_node_config({"fewest": 0})


def test_rounds_and_time_have_an_end(parties: Nodes, honest: RecordDict) -> None:
    for number in (0, -1, 10**9):
        assert_refused(one(parties[NODE], with_task(honest, round=number)), "round")
    assert_refused(one(parties[NODE] | {"allow": "seconds=0"}, honest), "longer than 0 seconds")


# --- run ids ---


def test_a_run_id_is_for_one_run(tmp_path: Path) -> None:
    """The party remembers ids in its folder, also after a restart and in another Flower run."""
    clinic = OneParty(tmp_path, state=str(tmp_path / "state"))
    settings = settings_of("fedavg", SETTINGS)
    hello = clinic.message(settings)
    assert clinic.ask("query.hello", hello).has_content()
    LocalGrid({})
    other = clinic.message(settings_of("fedavg", SETTINGS | {"seed": 1}))
    for state in (clinic.state, RecordDict()):
        assert_refused(clinic.ask("query.hello", other, state=state), "run id 'tests' was used with other settings")
    assert_refused(clinic.ask("query.hello", with_task(hello, share=0.1), state=RecordDict()), "other settings")
    assert clinic.ask("query.hello", hello, state=RecordDict()).has_content(), "a resumed run is another Flower run"
    assert_refused(clinic.ask("query.hello", clinic.message(settings, "other")), "began with 'tests'")
    assert clinic.ask("query.hello", clinic.message(settings, "other"), state=RecordDict()).has_content()
    assert_refused(clinic.ask("query.hello", hello, flower_run=2), "another Flower run")
    for wrong in ("../key", "a b", "x" * 65):
        assert_refused(clinic.ask("query.hello", with_task(hello, run=wrong), state=RecordDict()), "run id")
    assert {file.name for file in (tmp_path / "state" / "runs").glob("*.json")} == {"tests.json", "other.json"}


def test_two_runs_of_a_deployment_cannot_be_linked(clinic: OneParty) -> None:
    settings = settings_of("fedalc", SETTINGS)
    seen: list[set[bytes]] = []
    for name in ("march", "april"):
        state = RecordDict()
        arrays = clinic.ask("query.label_sets", clinic.message(settings, name), state=state).content["messages"]
        introduction = clinic.ask("query.hello", clinic.message(settings, name), state=state).content["introduction"]
        digests = np.frombuffer(arrays["digests"].data, np.uint8).reshape(-1, 16)
        seen.append({d.tobytes() for d in digests} | set(introduction["labels"]) | {introduction["client"].encode()})
    assert len(seen[0]) == RECORDS + 2 and not seen[0] & seen[1]


def test_a_run_without_an_id_needs_the_partys_word(tmp_path: Path) -> None:
    """Runs that fedalc 0.1 began can be resumed."""
    clinic, settings = OneParty(tmp_path), settings_of("fedavg", SETTINGS)
    assert_refused(clinic.ask("query.hello", clinic.message(settings, "")), "--without-run-id")
    clinic = OneParty(tmp_path, **{"without-run-id": True})
    assert clinic.ask("query.hello", clinic.message(settings, "")).has_content()


def test_a_run_that_began_without_an_id_is_resumed(tmp_path: Path, parties: Nodes) -> None:
    """Its census has none: as fedalc 0.1 wrote it."""
    older = {node: config | {"without-run-id": True} for node, config in parties.items()}
    folder = tmp_path / "run"
    grid = LocalGrid(older)

    class Crash(Exception):
        pass

    def crash(message: Message) -> None:
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            raise Crash

    grid.before_push = crash
    import fedalc.deployment.flower.server_app as server_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_app.secrets, "token_hex", lambda size: "")
        with pytest.raises(Crash):
            run(grid, folder, asked("fedavg", SETTINGS, **{"run-id": ""}))
    facts = json.loads((folder / "census" / "facts.json").read_text())
    del facts["run"], facts["roster"]["noised"]
    (folder / "census" / "facts.json").write_text(json.dumps(facts))
    (folder / "census" / "SHA256SUMS").unlink()
    run(LocalGrid(older), folder, {"resume": True, "wait": 1.0, "round-timeout": 5.0, "num-parties": 4})
    assert (folder / "result.json").exists()


def test_another_version_is_said_to_be_one(parties: Nodes, honest: RecordDict) -> None:
    old = {key: value for key, value in honest["task"].items() if key != "run"} | {"version": 1}
    reply = one(parties[NODE], RecordDict({**honest, "task": ConfigRecord(old)}))
    assert_refused(reply, "messages of version 1, and this fedalc speaks version 5")


def test_the_run_id_of_a_run_is_kept_and_said(
    tmp_path: Path, parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    run(LocalGrid(parties), tmp_path / "run", asked("fedavg", SETTINGS, **{"run-id": "", "num-server-rounds": 1}))
    census = Census.load(tmp_path / "run")
    assert census is not None and re.fullmatch("[0-9a-f]{16}", census.run)
    assert f"run id: {census.run}" in capsys.readouterr().out


# --- what a party may claim ---


def test_a_party_that_claims_too_many_labels_is_left_out(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    many = [number.to_bytes(16, "big") for number in range(20_000)]
    lie = said(labels=many, counts=[1] * 20_000, **{"held-out": [0] * 20_000})
    grid.tampering[7] = lambda message, reply: (
        lie(message, reply) if "hello" in message.metadata.message_type else reply
    )
    run(grid, tmp_path / "run", asked("fedavg", SETTINGS, **{"num-server-rounds": 1}))
    ((_, party, why),) = [note for note in notes(tmp_path / "run") if note[0] == 0]
    assert party == "party 7" and why.startswith("claims 20,000 labels, more than the 10,000")
    census = Census.load(tmp_path / "run")
    assert census is not None and census.roster.label_count == 4


def test_the_server_may_allow_fewer_labels(tmp_path: Path, parties: Nodes) -> None:
    few = {"max-labels-per-party": 2, "num-server-rounds": 1}
    run(LocalGrid(parties), tmp_path / "run", asked("fedalc", SETTINGS, **few))
    assert "claims 3 labels, more than the 2" in notes(tmp_path / "run")[0][2]


def test_a_label_without_an_instance_cannot_be_claimed(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    lie = said(counts=lambda counts: [*counts[:-1], 0])
    grid.tampering[7] = lambda message, reply: (
        lie(message, reply) if "hello" in message.metadata.message_type else reply
    )
    run(grid, tmp_path / "run", asked("fedavg", SETTINGS, **{"num-server-rounds": 1, "num-parties": 3}))
    assert "a label that it has no instance of" in notes(tmp_path / "run")[0][2]


def test_every_label_needs_a_message(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)

    def all_of_one_label(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query.label_sets":
            arrays = dict(reply.content["messages"])
            labels = np.zeros(arrays["labels"].shape, dtype=np.uint32)
            reply.content["messages"]["labels"] = pack({"labels": labels})["labels"]
        return reply

    grid.tampering[7] = all_of_one_label
    run(grid, tmp_path / "run", asked("fedalc", SETTINGS, **{"num-server-rounds": 1}))
    assert notes(tmp_path / "run")[0] == (0, "party 7", "claims 2 labels without a message")


# --- noised counts ---


def test_a_private_run_keeps_and_says_no_exact_count(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Search every byte of the folder and all printed text for the exact numbers."""
    random = np.random.default_rng(2)
    sizes = (211, 223, 307, 401)
    total = 600
    labels = np.zeros((total, 4), dtype=np.float32)
    for label, size in enumerate(sizes):
        labels[random.permutation(total)[:size], label] = 1
    split = Split(csr_matrix(random.normal(size=(total, 8)).astype(np.float32)), csr_matrix(labels))
    key = tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    names = [f"label {label}" for label in range(4)]
    nodes: Nodes = {}
    for node, own in {1: [0, 1], 2: [2], 3: [3]}.items():
        data = write_party(tmp_path / f"party {node}", split, own, [names[label] for label in own])
        nodes[node] = {"data": str(data), "key": str(key), "client": f"party-{'abc'[node - 1]}"}
    small = SETTINGS | {"encoder.dropout": 0.0, "selection.every": 1}
    private = small | {"privacy.mechanism": "counts", "privacy.epsilon": 1.0, "privacy.noise": "seeded"}
    grid = LocalGrid(nodes)
    grid.keeps = True
    for name, settings in (("open", small), ("private", private)):
        config = {"num-parties": 3, "held-out-share": 0.2, "num-server-rounds": 2}
        run(grid, tmp_path / name, asked("fedalc", settings, **config, **{"run-id": name}))
        grid.states.clear()
    out = capfd.readouterr().out.replace(str(tmp_path), "")  # pytest numbers its folders
    printed = dict(zip(("open", "private"), out.split("run id: private"), strict=True))
    introductions = [r.content["introduction"] for r in grid.replies if "introduction" in r.content]
    for name, said_ in (("open", introductions[:3]), ("private", introductions[-3:])):
        found = numbers_in(tmp_path / name, printed[name])
        exact = {count for who in said_ for key_ in ("counts", "held-out") for count in who[key_]}
        exact |= {sum(sum(who["counts"]) for who in said_), total} | {sum(who["counts"]) for who in said_}
        exact = {count for count in exact if count > 30}  # smaller ones are everywhere
        assert len(exact) > 8
        assert bool(found & exact) == (name == "open"), sorted(found & exact)
    census = Census.load(tmp_path / "private")
    assert census is not None and census.roster.is_noised and (census.roster.counts > 100).all()
    assert set(census.roster.held_out.tolist()) == {1}
    assert json.loads((tmp_path / "private" / "result.json").read_text())["metrics"]


def test_noised_counts_are_said_only_once_they_are_charged(
    tmp_path: Path, parties: Nodes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends between the census and the ledger entry reveals no noised count, so it costs no ε."""
    pytest.importorskip("dp_accounting")
    private = SETTINGS | {"encoder.dropout": 0.0, "privacy.mechanism": "counts", "privacy.epsilon": 1.0}
    config = {"min-parties": 4, "max-labels-per-party": 2, "num-server-rounds": 1}
    with pytest.raises(FedalcError, match="at least 4 are needed"):
        run(LocalGrid(parties), tmp_path / "run", asked("fedalc", private, **config))
    assert " labels and " not in capfd.readouterr().out
    assert not (tmp_path / "privacy-ledger.jsonl").exists() and not (tmp_path / "run").exists()
    kept: list[tuple[str, bool]] = []
    census = tmp_path / "run" / "census"
    monkeypatch.setattr("fedalc.deployment.flower.server_app.say", lambda line: kept.append((line, census.exists())))
    run(LocalGrid(parties), tmp_path / "run", asked("fedalc", private, **config | {"max-labels-per-party": 9}))
    ((_, in_census),) = [line for line in kept if "(noised)" in line[0]]
    assert in_census and len(Ledger(tmp_path / "privacy-ledger.jsonl").charges()) == 1


def numbers_in(folder: Path, printed: str) -> set[int]:
    """Return all whole numbers in the text and in the tensors of census and checkpoint, of any type."""
    from safetensors.torch import load_file

    found = {int(text) for text in re.findall(r"(?<![\d.])\d{1,9}(?![\d.]*\d)", printed)}
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors":
            for name, tensor in load_file(path).items():
                if tensor.dtype != torch.uint8 and "theta" not in name:
                    values = tensor.double().numpy().ravel()
                    found |= {int(value) for value in values[(values == np.rint(values)) & (np.abs(values) < 1e9)]}
        elif path.is_file():
            text = path.read_text(encoding="utf-8")
            found |= {int(value) for value in re.findall(r"(?<![\d.a-f#e-])\d{1,9}(?![\d.]*[\da-f])", text)}
    return found


def test_what_a_party_says_of_a_sample_tells_no_count(parties: Nodes, honest: RecordDict) -> None:
    reply = one(parties[NODE], with_settings(honest, client__sample=0.1))
    assert "of a label's instances on average" in str(reply.error.reason)


def test_the_bounds_themselves() -> None:
    limits = Limits({"client.epochs": 5.0})
    with pytest.raises(BadMessage, match="outside 1 to 5"):
        limits.check("client.epochs", 6)
    limits.check("client.epochs", 5)


def test_the_bounds_are_those_of_the_docs() -> None:
    docs = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
    for name, bound in BOUNDS.items():
        most = f"{bound.most:,.0f}" if bound.most >= 1 else f"{bound.most:g}"
        assert f"| `{name}` | {bound.least:g} to {most} | {bound.why} |" in docs
