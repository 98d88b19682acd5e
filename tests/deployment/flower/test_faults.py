"""A party answers badly or not at all: the round equals one without it, the log says so, and the run continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedalc.data.dataset import Split
from fedalc.deployment.flower import exchange, run_config
from fedalc.deployment.flower.connections import Patience, TooFew
from fedalc.deployment.flower.wire import RAW, pack
from fedalc.deployment.local import write_party
from fedalc.models.trained import TrainedModel
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    LINEAR,
    SETTINGS,
    Nodes,
    asked,
    assert_same,
    expected,
    in_round,
    notes,
    run,
)

BAD = 7  # the node that misbehaves, in round 2 of 3
Content = Callable[[RecordDict], RecordDict]


def with_arrays(record: str, change: Callable[[dict[str, np.ndarray]], Any]) -> Content:
    """Return the reply with the arrays of a record changed."""

    def changed(content: RecordDict) -> RecordDict:
        old = content[record]
        assert isinstance(old, ArrayRecord)
        arrays = {
            name: np.frombuffer(array.data, array.dtype).reshape(array.shape).copy() for name, array in old.items()
        }
        new = change(arrays) or arrays
        return RecordDict({**content, record: new if isinstance(new, ArrayRecord) else pack(new)})

    return changed


def with_number(value: float) -> Content:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["1"].flat[0] = value

    return with_arrays("change", change)


def with_first(make: Callable[[Array], Array]) -> Content:
    """Replace the first array of the change."""

    def changed(content: RecordDict) -> RecordDict:
        old = dict(content["change"])
        return RecordDict({**content, "change": ArrayRecord({**old, "0": make(old["0"])})})

    return changed


def with_outcome(**values: Any) -> Content:
    return lambda content: RecordDict({**content, "outcome": ConfigRecord({**content["outcome"], **values})})


def with_answer(**values: Any) -> Content:
    return lambda content: RecordDict({**content, "answer": ConfigRecord({**content["answer"], **values})})


def without(record: str) -> Content:
    return lambda content: RecordDict({name: part for name, part in content.items() if name != record})


FAULTS: dict[str, tuple[Content, str]] = {
    "nan": (with_number(np.nan), "not finite"),
    "infinite": (with_number(np.inf), "not finite"),
    "wrong shape": (with_arrays("change", lambda a: a | {"1": a["1"].T}), "should be float32 8 × 5"),
    "a dimension more": (with_arrays("change", lambda a: a | {"1": a["1"][None]}), "should be float32 8 × 5"),
    "wrong type": (with_arrays("change", lambda a: a | {"1": a["1"].astype(np.float64)}), "is float64"),
    "missing array": (with_arrays("change", lambda a: {k: v for k, v in a.items() if k != "1"}), "should have"),
    "extra array": (with_arrays("change", lambda a: a | {"9": a["1"]}), "should have"),
    "too few bytes": (with_first(lambda a: Array(a.dtype, a.shape, RAW, a.data[:-1])), "cannot be read"),
    "too many bytes": (with_first(lambda a: Array(a.dtype, a.shape, RAW, a.data + b"x")), "cannot be read"),
    "a zip file": (with_first(lambda a: Array(a.dtype, a.shape, "numpy.ndarray", b"PK\3\4" * 9)), "cannot be read"),
    "gigantic": (with_first(lambda a: Array(a.dtype, (1 << 40, 1 << 40), RAW, b"")), "should be float32 20 × 5"),
    "negative": (with_first(lambda a: Array(a.dtype, (-20, -5), RAW, a.data)), "should be float32 20 × 5"),
    "someone else's labels": (with_outcome(labels=[b"x" * 16] * 3), "not asked for"),
    "labels in another order": (lambda c: with_outcome(labels=c["outcome"]["labels"][::-1])(c), "not asked for"),
    "a longer row": (with_arrays("rows", lambda a: {"rows": a["rows"] * 1.01}), "not of length 1"),
    "a row of nothing": (with_arrays("rows", lambda a: {"rows": a["rows"] * 0}), "not of length 1"),
    "rows of others": (with_arrays("rows", lambda a: {"rows": a["rows"][[0, 1, 2, 0]]}), "should be float32 3 × 6"),
    "no rows": (without("rows"), "no rows"),
    "loss is nan": (with_outcome(loss=float("nan")), "loss"),
    "loss is text": (with_outcome(loss="0.1"), "no loss"),
    "absurdly long": (with_arrays("change", lambda a: {k: v * 1e6 for k, v in a.items()}), "credible"),
    "nothing": (lambda content: RecordDict(), "no outcome"),
    "no change": (without("change"), "no change"),
    "a record more": (lambda c: RecordDict({**c, "extra": pack({"x": np.zeros(9)})}), "not requested: extra"),
    "a value more": (with_outcome(more=b"x" * 99), "outcome has values that were not requested: more"),
    "another round": (with_answer(round="1"), "answers 'train' of round '1', and was asked 'train' of round '2'"),
    "another kind": (with_answer(kind="evaluate"), "answers 'evaluate' of round '2'"),
    "another question": (with_answer(question="message 1"), "answers another question"),
    "no question": (with_answer(question=5), "no question"),
    "a value more in the answer": (with_answer(more=5), "answer has values that were not requested"),
    "another record": (lambda content: RecordDict({**content, "change": MetricRecord({"0": 1.0})}), "no change"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_left_out_of_its_round(
    tmp_path: Path, train: Split, parties: Nodes, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, why = FAULTS[fault]
    weights = "uniform" if list(FAULTS).index(fault) % 2 else "samples"
    settings = SETTINGS | {"server.weights": weights}
    grid = LocalGrid(parties)
    grid.tampering[BAD] = in_round(2, lambda message, reply: Message(change(reply.content), reply_to=message))
    found = run(grid, tmp_path / "run", asked("fedaws", settings))
    assert_same(found.model, expected("fedaws", settings, train, parties[BAD]["key"], {2: [BAD]}))
    ((t, party, reason),) = notes(tmp_path / "run")
    assert (t, party) == (2, f"party {BAD}") and why in reason
    assert f"round 2: party {BAD} left out: {reason}\n" in capsys.readouterr().out


@pytest.mark.few(1)
@pytest.mark.parametrize("weights", ["samples", pytest.param("uniform", marks=pytest.mark.long)])
@pytest.mark.parametrize("method", ["fedalc", "flag", "fedmlh", "fedalc-fixed"])
def test_every_kind_of_method_goes_on_without_a_party(
    tmp_path: Path, train: Split, parties: Nodes, method: str, weights: str
) -> None:
    settings = SETTINGS | {"server.weights": weights}
    grid = LocalGrid(parties)
    grid.tampering[BAD] = in_round(1, lambda message, reply: Message(RecordDict(), reply_to=message))
    found = run(grid, tmp_path / "run", asked(method, settings))
    assert_same(found.model, expected(method, settings, train, parties[BAD]["key"], {1: [BAD]}))


def silent(message: Message, reply: Message) -> None:
    return None


def failed(message: Message, reply: Message) -> Message:
    return Message(Error(0, "its \x1b[31m disk\n is full"), reply_to=message)


@pytest.mark.parametrize(("answer", "why"), [(silent, "no answer within"), (failed, "its ?[31m disk is full")])
def test_no_reply_or_an_error(
    tmp_path: Path, train: Split, parties: Nodes, answer: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = LocalGrid(parties)
    grid.tampering[BAD] = in_round(2, answer)
    found = run(grid, tmp_path / "run", asked("fedalc", SETTINGS))
    assert_same(found.model, expected("fedalc", SETTINGS, train, parties[BAD]["key"], {2: [BAD]}))
    ((t, party, reason),) = notes(tmp_path / "run")
    assert (t, party) == (2, f"party {BAD}") and why in reason
    assert "\x1b" not in capsys.readouterr().out, "what parties say must not steer the terminal"


class Unreadable(LocalGrid):
    """A grid that fails to decode a node's reply, as Flower's grid does for a forged one."""

    error: Exception = ValueError("Unexpected set of `children`")

    def pull_messages(self, message_ids: Any) -> Any:
        for number in message_ids:
            message = self.sent[number]
            if message.metadata.dst_node_id == BAD and message.metadata.group_id == "2":
                raise self.error
        return super().pull_messages(message_ids)


@pytest.mark.few(2)
@pytest.mark.parametrize("error", [ValueError(), KeyError("x"), RecursionError(), MemoryError(), TypeError()])
def test_a_reply_that_flower_cannot_read(tmp_path: Path, train: Split, parties: Nodes, error: Exception) -> None:
    grid = Unreadable(parties)
    grid.error = error
    found = run(grid, tmp_path / "run", asked("fedavg", SETTINGS))
    assert_same(found.model, expected("fedavg", SETTINGS, train, parties[BAD]["key"], {2: [BAD]}))
    assert notes(tmp_path / "run") == [(2, f"party {BAD}", "its answer cannot be read")]


def test_trouble_of_the_network_itself_is_nobodys_fault(tmp_path: Path, parties: Nodes) -> None:
    grid = Unreadable(parties)
    grid.error = httpx.ConnectError("the SuperLink is gone")
    with pytest.raises(httpx.ConnectError):
        run(grid, tmp_path / "run", asked("fedavg", SETTINGS))


def test_a_reply_without_content_or_error(parties: Nodes) -> None:
    class Empty(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            for reply in replies:
                reply.__dict__["_content"] = None
            return replies

    grid = Empty(parties)
    grid.tampering[BAD] = lambda message, reply: Message(RecordDict(), reply_to=message)
    questions = exchange.Exchange(grid, "query.hello", 0, timeout=1.0, pause=0.0)
    questions.send(BAD, RecordDict())
    (reply,) = questions.replies()
    assert (reply.node, reply.content, reply.problem) == (BAD, None, "its answer is empty")


def test_nodes_that_go_between_the_look_and_the_message(tmp_path: Path, train: Split, parties: Nodes) -> None:
    """Two at once: a SuperLink returns the same empty id for both."""
    gone = [7, 55]

    class Vanishing(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            (message,) = messages
            to = message.metadata
            return [""] if to.group_id == "2" and to.dst_node_id in gone else super().push_messages(messages)

    found = run(Vanishing(parties), tmp_path / "run", asked("fedaws", SETTINGS))
    assert_same(found.model, expected("fedaws", SETTINGS, train, parties[BAD]["key"], {2: gone}))
    why = "the message could not be sent"
    assert sorted(notes(tmp_path / "run")) == [(2, "party 55", why), (2, "party 7", why)]


def test_a_late_reply_counts_in_no_round(tmp_path: Path, train: Split, parties: Nodes) -> None:
    """The grid returns the answer to round 2 together with that to round 3; the server drops it."""
    grid = LocalGrid(parties)
    late: list[Message] = []

    def keep(message: Message, reply: Message) -> None:
        late.append(reply)

    class Late(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            return [*late, *replies] if replies and replies[0].metadata.group_id == "3" else replies

    grid = Late(parties)
    grid.tampering[BAD] = in_round(2, keep)
    found = run(grid, tmp_path / "run", asked("fedalc", SETTINGS))
    assert late
    assert_same(found.model, expected("fedalc", SETTINGS, train, parties[BAD]["key"], {2: [BAD]}))


def others(parties: Nodes) -> Nodes:
    return {node: config for node, config in parties.items() if node != BAD}


def test_a_party_that_disappears_for_good(tmp_path: Path, train: Split, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    grid.script = {2: others(parties)}  # look 0 is the census, then there is one for each round
    found = run(grid, tmp_path / "run", asked("fedalc", SETTINGS))
    assert_same(found.model, expected("fedalc", SETTINGS, train, parties[BAD]["key"], {2: [BAD], 3: [BAD]}))
    assert notes(tmp_path / "run") == [(2, f"party {BAD}", "is not connected")]


@pytest.mark.parametrize("new", [BAD, 4711])
def test_a_party_that_comes_back(tmp_path: Path, train: Split, parties: Nodes, new: int) -> None:
    """Under its own or a new node id; it misses one round."""
    grid = LocalGrid(parties)
    grid.script = {2: others(parties), 3: others(parties) | {new: parties[BAD]}}
    found = run(grid, tmp_path / "run", asked("fedaws", SETTINGS))
    assert_same(found.model, expected("fedaws", SETTINGS, train, parties[BAD]["key"], {2: [BAD]}))
    assert notes(tmp_path / "run") == [(2, f"party {BAD}", "is not connected")]
    assert notes(tmp_path / "run", "is connected again") == [(3, f"party {BAD}", "")]


def test_an_impostor_is_turned_away_and_let_in_when_the_party_has_gone(
    tmp_path: Path, train: Split, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without node authentication a restarted party has a new id, and its old node seems alive for a minute."""
    grid = LocalGrid(parties)
    both = parties | {4711: parties[BAD]}
    grid.script = {2: both, 3: {node: config for node, config in both.items() if node != BAD}}
    monkeypatch.setattr(run_config, "Patience", lambda *seconds: Patience(*seconds, pause=0.0, again=0.0))
    found = run(grid, tmp_path / "run", asked("fedaws", SETTINGS))
    assert_same(found.model, expected("fedaws", SETTINGS, train, parties[BAD]["key"], {}))
    assert (2, f"party {BAD}", f"claims to be party {BAD}, which is connected already") in notes(tmp_path / "run")
    trained = [(node, group) for node, kind, group in grid.asked if node in (BAD, 4711) and kind == "train"]
    assert trained == [(BAD, "1"), (BAD, "2"), (4711, "3")]


@pytest.mark.long
def test_strangers_are_turned_away_and_hold_up_nothing(tmp_path: Path, train: Split, parties: Nodes) -> None:
    """One with uncollected labels, one that is not a fedalc party, and one that never answers."""
    grid = LocalGrid(parties)
    key = parties[BAD]["key"]
    stranger = write_party(tmp_path / "stranger", train, [0], ["a new label"])
    mute, broken, new = 31, 32, 33

    def arrive(message: Message) -> None:
        if message.metadata.message_type == "train":
            grid.nodes |= {mute: {}, broken: {"data": "/nowhere"}, new: {"data": str(stranger), "key": key}}

    grid.before_push = arrive
    grid.tampering[mute] = silent
    found = run(grid, tmp_path / "run", asked("fedaws", SETTINGS, **{"round-timeout": 60.0}))
    assert_same(found.model, expected("fedaws", SETTINGS, train, key, {}))
    said = [(party, why) for _, party, why in notes(tmp_path / "run")]
    assert len(said) == 3, "each is noted once"
    assert next(why for party, why in said if party.startswith("party-")).startswith("is no party of this run")
    assert [node for node, kind, _ in grid.asked if node in (mute, broken, new) and kind == "train"] == []
    assert len([1 for node, kind, _ in grid.asked if node == mute]) == 1, "one that never answers is asked rarely"


@pytest.mark.parametrize("participation", [0.15, 0.3])
def test_with_few_clients_a_round_an_absent_party_stops_nothing(
    tmp_path: Path, train: Split, parties: Nodes, participation: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one client per round, a drawn client whose party is away leaves the round without a change."""
    settings = SETTINGS | {"server.participation": participation, "server.optimizer": "momentum"}
    settings |= {"server.weight_decay": 0.1}  # which must not act either
    grid = LocalGrid(parties)
    grid.script = {1: others(parties)}
    found = run(grid, tmp_path / "run", asked("fedavg", settings, **{"num-server-rounds": 8}))
    absent = {t: [BAD] for t in range(1, 9)}
    assert_same(found.model, expected("fedavg", settings, train, parties[BAD]["key"], absent, 8))
    assert "changes nothing" in capsys.readouterr().out


def test_too_few_are_asked_again_and_then_it_is_said_what_to_do(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    for node in (101, 7, 55):
        grid.tampering[node] = in_round(2, failed)
    with pytest.raises(TooFew, match=r"round 2: in 3 attempts, fewer than 2 .*resume=true"):
        run(grid, tmp_path / "run", asked("fedavg", SETTINGS))
    assert [group for node, kind, group in grid.asked if node == 9 and kind == "train"] == ["1", "2", "2", "2"]


def test_a_second_attempt_is_enough_and_its_bytes_are_counted(tmp_path: Path, train: Split, parties: Nodes) -> None:
    grid, calls = LocalGrid(parties), []

    def once(message: Message, reply: Message) -> Message:
        calls.append(1)
        return failed(message, reply) if len(calls) <= 3 else reply

    for node in (101, 7, 55):
        grid.tampering[node] = in_round(2, once)
    found = run(grid, tmp_path / "run", asked("fedavg", SETTINGS))
    assert_same(found.model, expected("fedavg", SETTINGS, train, parties[BAD]["key"], {}))


@pytest.mark.parametrize("gone", [True, False])
def test_conjugate_gradients_need_everyone(tmp_path: Path, parties: Nodes, gone: bool) -> None:
    grid = LocalGrid(parties)
    if gone:
        grid.script = {5: others(parties)}  # with two looks a round: it evaluates after each
    else:
        grid.tampering[BAD] = in_round(3, failed)
    square = LINEAR | {"server.optimizer": "cg", "client.label_power": 0.3}
    wait = {"num-server-rounds": 5, "wait": 1.0}
    with pytest.raises(TooFew, match=r'round 3: .*server.optimizer = "cg".* needs every party .*resume=true'):
        run(grid, tmp_path / "run", asked("fedalc-exact", square, **wait))


NEWTON = LINEAR | {"client.loss": "logistic", "server.optimizer": "newton"}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: {k: np.full_like(v, np.nan) for k, v in a.items()}, "not finite"),
        (lambda a: {k: v[1:] for k, v in a.items()}, "product 0 is"),
        (lambda a: {k: v * 1e6 for k, v in a.items()}, "credible"),
        (lambda a: {"1": a["0"]}, "product has the arrays 1"),
    ],
)
def test_newton_steps_need_a_good_product_of_everyone(tmp_path: Path, parties: Nodes, change: Any, why: str) -> None:
    grid, alter = LocalGrid(parties), with_arrays("product", change)
    grid.tampering[BAD] = in_round(3, lambda m, reply: Message(alter(reply.content), reply_to=m), "train.curvature")
    with pytest.raises(TooFew, match=r'round 3: .*server.optimizer = "newton".* needs every party .*resume=true'):
        run(grid, tmp_path / "run", asked("fedalc-exact", NEWTON, **{"num-server-rounds": 5, "wait": 1.0}))
    assert why in notes(tmp_path / "run")[-1][2]


def test_absurd_sums_are_left_out_of_the_one_round(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    times = with_arrays("sums", lambda a: {k: v * 1e6 for k, v in a.items()})

    def absurd(message: Message, reply: Message) -> Message:
        return Message(times(reply.content), reply_to=message)

    square = LINEAR | {"client.set_size": "expected"}
    poisoned = LocalGrid(parties)
    poisoned.tampering[BAD] = in_round(1, absurd, "train.sums")
    found = run(poisoned, tmp_path / "poisoned", asked("fedalc-oneshot", square))
    grid.tampering[BAD] = in_round(1, failed, "train.sums")
    same = run(grid, tmp_path / "absent", asked("fedalc-oneshot", square))
    assert "credible" in notes(tmp_path / "poisoned")[0][2]
    assert_same(found.model, same.model)
    assert torch.isfinite(TrainedModel.load(tmp_path / "poisoned" / "model").model.W).all()
