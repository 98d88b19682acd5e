"""Secure sums with the real client app: equal to the plain run, with parties lost at each step, and with cheaters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedalc.data.dataset import Split
from fedalc.deployment.flower import party_sums
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.sum_messages import MASKED, RECORD
from fedalc.deployment.flower.wire import pack, task, unpack
from fedalc.errors import ConfigError, FedalcError
from fedalc.models.trained import TrainedModel
from fedalc.secure_sums import party as party_module
from fedalc.secure_sums import server as server_module
from tests.deployment.flower.local_grid import LocalGrid, Tamper
from tests.deployment.flower.problem import (
    LINEAR,
    SETTINGS,
    Nodes,
    asked,
    assert_same,
    expected,
    fails,
    notes,
    run,
    write_parties,
)
from tests.deployment.flower.test_resume import Crash, crash_in, renamed

FIXED = {key: value for key, value in SETTINGS.items() if not key.startswith("regularizer")}
NEWTON = LINEAR | {"client.loss": "logistic", "server.optimizer": "newton", "encoder.constant": 0.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("fedavg-fixed", FIXED),
    "uniform": ("fedalc-fixed", FIXED | {"server.weights": "uniform"}),
    "cg": ("fedalc-exact", LINEAR | {"server.optimizer": "cg"}),
    "newton": ("fedalc-exact", NEWTON),
    "newton with an axis per label": ("fedalc-exact", NEWTON | {"embeddings.start": "by-frequency"}),
    "one round": ("fedalc-oneshot", LINEAR),
    "secret rows": ("fedalc-oneshot", LINEAR | {"embeddings.secret": True}),
}
ON = {"secure-sums": "on"}


def theta(model: TrainedModel) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.model.theta]


def trained(
    parties: Nodes, folder: Path, case: str = "cg", tamper: dict[int, Tamper] | None = None, **more: Any
) -> Any:
    method, settings = CASES[case]
    grid = LocalGrid(parties)
    grid.keeps = True
    grid.tampering = dict(tamper or {})
    return run(grid, folder, asked(method, settings, **(ON | more))), grid


@pytest.fixture(scope="module")
def whole(parties: Nodes, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedModel, LocalGrid]:
    """A run without an incident."""
    return trained(parties, tmp_path_factory.mktemp("whole") / "run", "mlp")


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_masks_change_nothing_and_the_run_is_the_plain_one(
    case: str, parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked, grid = trained(parties, tmp_path / "masked", case)
    assert any(MASKED in reply.content for reply in grid.replies if reply.has_content())
    assert not any("change" in reply.content or "sums" in reply.content for reply in grid.replies)
    with monkeypatch.context() as patch:
        for module in (party_module, server_module):
            patch.setattr(module, "add_mask", lambda *arguments: None)
        unmasked, _ = trained(parties, tmp_path / "unmasked", case)
    assert all(map(torch.equal, theta(masked), theta(unmasked)))
    plain, _ = trained(parties, tmp_path / "plain", case, **{"secure-sums": "off"})
    assert_same(masked.model, plain.model)
    assert not (tmp_path / "masked" / "parties.jsonl").exists()  # nobody was left out or named


def test_a_sum_takes_three_messages_and_the_first_five(whole: tuple[TrainedModel, LocalGrid]) -> None:
    _, grid = whole
    of_one = [kind for node, kind, _ in grid.asked if node == 101 and kind != "query.hello"]
    kept = [kind for kind in of_one if kind in ("query.sum", "train")]
    assert kept == ["query.sum"] * 2 + ["train", "query.sum", "query.sum"] * 3


def test_no_message_and_no_file_has_a_secret(parties: Nodes, tmp_path: Path) -> None:
    seen: set[str] = set()
    keep = party_sums._Sums._keep

    def watched(self: Any, seq: int, party: Any) -> None:
        if party is not None:
            seen.update(json.loads(party.saved())["seeds"].values())
        keep(self, seq, party)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_sums._Sums, "_keep", watched)
        _, grid = trained(parties, tmp_path / "run", "mlp")
    assert len(seen) >= 4 * 3 * 3
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    sent = b"".join(
        value
        for message in [*grid.pushed, *grid.replies]
        for record in message.content.values()
        if isinstance(record, ConfigRecord)
        for value in record.values()
        if isinstance(value, bytes)
    )
    for seed in seen:
        assert bytes.fromhex(seed) not in sent and bytes.fromhex(seed) not in written and seed.encode() not in written
    for node in parties:  # of finished sums, nothing is left
        left = [name for name in grid.states[node] if name.startswith("fedalc-sum-")]
        assert len(left) <= 1  # the sum that was prepared with the last one


def at_step(step: str, change: Callable[[Message], Message | None], times: int = 1) -> Tamper:
    """Alter a party's answer to this step of a sum, the first time."""
    left = [times]

    def tamper(question: Message, reply: Message) -> Message | None:
        record = question.content.get(RECORD)
        kind = question.metadata.message_type
        hit = (step == "masked" and kind.startswith("train")) or (
            kind == "query.sum" and isinstance(record, ConfigRecord) and step in record
        )
        if hit and left[0]:
            left[0] -= 1
            return change(reply)
        return reply

    return tamper


@pytest.mark.few(3)
@pytest.mark.parametrize("step", ["keys", "shares", "masked", "agree", "unmask"])
def test_a_party_lost_at_each_step(step: str, parties: Nodes, train: Split, tmp_path: Path) -> None:
    """It is lost once, in round 1. Lost in the first steps, it is asked again; later its change is in the sum."""
    lost = {55: at_step(step, lambda reply: None)}
    model, _ = trained(parties, tmp_path / "run", "mlp", lost, **{"num-server-rounds": 2})
    method, settings = CASES["mlp"]
    key = str(next(iter(parties.values()))["key"])
    assert_same(model.model, expected(method, settings, train, key, {}, rounds=2))
    assert {party for _, party, _ in notes(tmp_path / "run")} == {"party 55"}


@pytest.mark.few(1)
@pytest.mark.parametrize("step", ["keys", "shares", "masked"])
def test_a_party_that_misses_the_first_sum_stays_out(step: str, parties: Nodes, train: Split, tmp_path: Path) -> None:
    """With it in round 2, the two sums would show what it sent."""
    model, grid = trained(parties, tmp_path / "run", "mlp", {55: at_step(step, lambda reply: None, times=3)})
    method, settings = CASES["mlp"]
    key = str(next(iter(parties.values()))["key"])
    assert_same(model.model, expected(method, settings, train, key, {1: [55], 2: [55], 3: [55]}))
    assert not [1 for node, kind, group in grid.asked if node == 55 and kind == "train" and group in "23"]


def test_of_a_few_parties_all_are_needed_after_the_first_sum(parties: Nodes, tmp_path: Path) -> None:
    def lost_later(question: Message, reply: Message) -> Message | None:
        return None if question.metadata.group_id == "2" else reply

    with pytest.raises(TooFew, match=r"fewer than 4 parties .*secure sums over fewer would show single parties"):
        trained(parties, tmp_path / "run", "mlp", {55: lost_later})


@pytest.mark.long
def test_with_seven_parties_three_stay_out_together(train: Split, tmp_path: Path) -> None:
    """One is lost in round 2: its change cannot be told from those of two others that are left out with it."""
    seven = write_parties(tmp_path, train, {node: [node - 1] for node in range(1, 8)})

    def lost_in_round_2(question: Message, reply: Message) -> Message | None:
        return None if question.metadata.group_id == "2" else reply

    _, grid = trained(seven, tmp_path / "run", "mlp", {7: lost_in_round_2}, **{"num-parties": 7})
    asked_in = {t: [node for node, kind, group in grid.asked if (kind, group) == ("train", t)] for t in "123"}
    assert sorted(asked_in["1"]) == sorted(asked_in["3"]) == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(asked_in["2"][7:]) == [1, 2, 3, 4]


def test_where_every_party_is_needed_nothing_is_unmasked_without_it(
    parties: Nodes, train: Split, tmp_path: Path
) -> None:
    """Otherwise the same question, asked again with all of them, would give that party's answer away."""
    model, grid = trained(parties, tmp_path / "run", "cg", {55: at_step("masked", lambda reply: None)})
    key = str(next(iter(parties.values()))["key"])
    assert_same(model.model, expected(*CASES["cg"], train, key, {}))
    assert len([1 for node, kind, group in grid.asked if (node, kind, group) == (101, "train", "1")]) == 2


def with_shares(change: Callable[[bytes], bytes]) -> Callable[[Message], Message]:
    def altered(reply: Message) -> Message:
        record = reply.content[RECORD]
        assert isinstance(record, ConfigRecord)
        record["revealed"] = change(bytes(record["revealed"]))  # type: ignore[arg-type]
        return reply

    return altered


def test_a_party_that_lies_about_shares_is_named(parties: Nodes, train: Split, tmp_path: Path) -> None:
    lie = with_shares(lambda content: content[:5] + bytes(16) + content[21:])
    model, _ = trained(parties, tmp_path / "run", "mlp", {9: at_step("unmask", lie)}, **{"num-server-rounds": 2})
    key = str(next(iter(parties.values()))["key"])
    assert_same(model.model, expected(*CASES["mlp"], train, key, {}, rounds=2))
    ((_, party, why),) = notes(tmp_path / "run", "is named by a secure sum")
    assert party == "party 9" and "false share" in why


def test_a_party_with_another_key_is_named_and_left_out(parties: Nodes, train: Split, tmp_path: Path) -> None:
    """The others refuse its keys. (Its digests differ too, but a method that uses no labels does not notice.)"""
    swapped = party_sums.identity_of

    def other(context: Any, run: str, load: Any) -> Any:
        identity = swapped(context, run, load)
        strange = identity.name == "party 9"
        return type(identity)(identity.name, run, bytes(64)) if strange else identity

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_sums, "identity_of", other)
        patch.setattr("fedalc.deployment.flower.client_app.identity_of", other)
        model, _ = trained(parties, tmp_path / "run", "mlp", **{"num-server-rounds": 2})
    key = str(next(iter(parties.values()))["key"])
    assert_same(model.model, expected(*CASES["mlp"], train, key, {t: [9] for t in (1, 2)}, rounds=2))
    assert {(party, why[:42]) for _, party, why in notes(tmp_path / "run")} == {
        ("party 9", "3 other parties refuse its keys for secure")
    }


# --- a server that cheats ---


def problems(parties: Nodes, folder: Path, change: Callable[[Message], None], case: str = "cg") -> list[str]:
    """Run with a server whose messages are changed, and return why parties were left out."""
    method, settings = CASES[case]
    grid = LocalGrid(parties)
    grid.before_push = change
    with fails(TooFew):
        run(grid, folder, asked(method, settings, **ON))
    return [why for _, _, why in notes(folder)]


def test_a_question_in_the_clear_is_refused(parties: Nodes, tmp_path: Path) -> None:
    def bare(message: Message) -> None:
        if message.metadata.message_type == "train":
            message.content.pop(RECORD)

    assert any("there is no sum" in why for why in problems(parties, tmp_path / "run", bare))


def test_another_theta_for_one_party_gives_nothing(parties: Nodes, tmp_path: Path) -> None:
    """Its masks do not cancel, and the others say so."""

    def other(message: Message) -> None:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 55:
            (numbers,) = unpack(message.content, "theta", {"0": ("float32", (None, None))}).values()
            message.content["theta"] = pack({"0": numbers + np.float32(0.25)})  # the record is that of all messages

    why = problems(parties, tmp_path / "run", other)
    assert not any("masked" in one for one in why)
    named = notes(tmp_path / "run", "is named by a secure sum")
    assert {party for _, party, _ in named} == {"party 55"} and "agreed to something else" in named[0][2]


def test_other_rows_for_one_party_are_refused(parties: Nodes, tmp_path: Path) -> None:
    def other(message: Message) -> None:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 55:
            array = message.content["rows"]["rows"]
            array.data = (-np.frombuffer(array.data, "<f4")).tobytes()

    why = problems(parties, tmp_path / "run", other)
    assert any("other rows than those that all parties get" in one for one in why)


def test_an_old_sum_and_a_step_twice_are_refused(whole: tuple[TrainedModel, LocalGrid]) -> None:
    """A server that begins a sum again, or asks for the shares twice."""
    _, grid = whole
    questions = [m for m in grid.pushed if m.metadata.message_type == "query.sum" and m.metadata.dst_node_id == 101]
    first = next(m for m in questions if set(m.content[RECORD]) == {"keys"})
    problems = {"begins sum": first, "asks for step 'agree'": questions[-2], "asks for step 'unmask'": questions[-1]}
    for problem, question in problems.items():
        grid.sent["again"] = question
        (reply,) = grid.pull_messages(["again"])
        assert reply.has_error() and problem in str(reply.error.reason)


def one_more_space(message: Message) -> None:
    task = message.content["task"]
    task["settings"] = str(task["settings"]).replace(", ", ",  ")


def another_theta(message: Message) -> None:
    if "theta" in message.content:
        first = message.content["theta"]["0"]  # type: ignore[index]
        first.data = (np.frombuffer(first.data, "<f4") + np.float32(1e-6)).tobytes()


def nothing(message: Message) -> None: ...


SECOND_TIMES = {"the same again": nothing, "in other bytes": one_more_space, "with almost the same θ": another_theta}
WHY = "show what party 55 sent. To allow it, start this party with --allow sum_lists=2"


@pytest.mark.few(1)
@pytest.mark.parametrize("way", SECOND_TIMES)
def test_a_server_that_drops_a_party_twice_is_refused(way: str, parties: Nodes, tmp_path: Path) -> None:
    """It asks again without one party, so that the two sums would differ by what this one sent."""
    kept = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}
    run(LocalGrid(kept), tmp_path / "first", asked(*CASES["mlp"], **ON, **{"num-server-rounds": 1}))
    fewer = LocalGrid(kept)
    fewer.tampering = {55: at_step("masked", lambda reply: None, times=9)}
    fewer.before_push = SECOND_TIMES[way]
    with fails(TooFew):
        run(fewer, tmp_path / "second", asked(*CASES["mlp"], **ON, **{"num-server-rounds": 1}))
    assert any(WHY in why for _, _, why in notes(tmp_path / "second"))


@pytest.mark.few(1)
@pytest.mark.parametrize(("first", "second"), [("one round", "one round"), ("mlp", "mlp"), ("cg", "one round")])
def test_another_run_without_one_party_is_refused(
    first: str, second: str, parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}
    run(LocalGrid(kept), tmp_path / "first", asked(*CASES[first], **ON))
    fewer = LocalGrid({node: config for node, config in kept.items() if node != 55})
    with fails(TooFew):
        run(fewer, tmp_path / "second", asked(*CASES[second], **ON, **{"num-parties": 3, "run-id": "another"}))
    assert WHY in capsys.readouterr().out


@pytest.mark.long
def test_parties_may_allow_a_run_without_one(parties: Nodes, tmp_path: Path) -> None:
    """A party that is gone for good is no reason never to train again, if the others say so."""
    allow = {"allow": "sum_lists=2"}
    kept = {node: config | {"state": str(tmp_path / f"state {node}")} | allow for node, config in parties.items()}
    run(LocalGrid(kept), tmp_path / "first", asked(*CASES["cg"], **ON))
    fewer = LocalGrid({node: config for node, config in kept.items() if node != 55})
    again = asked(*CASES["cg"], **ON, **{"num-parties": 3, "run-id": "another"})
    assert run(fewer, tmp_path / "second", again).model.theta


def test_a_record_that_no_question_has_is_refused(parties: Nodes, tmp_path: Path) -> None:
    def more(message: Message) -> None:
        if message.metadata.message_type == "train":
            message.content["padding"] = ConfigRecord({"any": 1})

    assert any("which no question of a secure sum has" in why for why in problems(parties, tmp_path / "run", more))


def test_overflow_has_no_name(parties: Nodes, tmp_path: Path) -> None:
    """A θ for which one party's numbers do not fit: the server learns that some do not, and not which."""

    def huge(message: Message) -> None:
        if message.metadata.message_type == "train":
            (numbers,) = unpack(message.content, "theta", {"0": ("float32", (None, None))}).values()
            message.content["theta"] = pack({"0": numbers + np.float32(1e30)})

    grid = LocalGrid(parties)
    grid.keeps, grid.before_push = True, huge
    with pytest.raises(FedalcError, match=r"overflow.*or a party's are not finite"):
        run(grid, tmp_path / "run", asked(*CASES["cg"], **ON))
    assert not (tmp_path / "run" / "parties.jsonl").exists() and not any(reply.has_error() for reply in grid.replies)


@pytest.mark.parametrize("case", ["one round", "cg"])
def test_label_weights_that_single_a_party_out_are_refused(case: str, parties: Nodes, tmp_path: Path) -> None:
    """With weights of next to nothing for all parties but one, the sum would be that one's vector."""

    def light(message: Message) -> None:
        if message.metadata.message_type.startswith("train") and message.metadata.dst_node_id != 55:
            told = unpack(message.content, "told", {"weights": ("float64", (None,)), "shares": ("float64", (None,))})
            message.content["told"] = pack(told | {"weights": 1e-6 * told["weights"]})

    method, settings = CASES[case]
    grid = LocalGrid(parties)
    grid.before_push = light
    with fails(TooFew):
        run(grid, tmp_path / "run", asked(method, settings | {"client.label_power": 0.4}, **ON))
    why = {(party, why) for _, party, why in notes(tmp_path / "run")}
    assert {party for party, _ in why} == {"party 7", "party 9", "party 101"}
    assert all("do not follow from this party's own numbers of records" in one for _, one in why)


def test_a_question_about_some_of_a_partys_labels_is_refused(parties: Nodes, tmp_path: Path) -> None:
    """Asked about one label alone, all parties but one would add next to nothing. And runs could differ by a label."""

    def few(message: Message) -> None:
        task = message.content["task"]
        if "labels" in task and len(task["labels"]) == 3 and message.metadata.message_type == "train.sums":
            for name in ("labels", "numbers"):
                task[name] = list(task[name])[:1]
            for name, rows in (("rows", "rows"), ("told", "weights")):
                record = message.content[name]
                assert isinstance(record, ArrayRecord)
                array = record[rows]
                one = array.shape[0]
                array.data, array.shape = array.data[: len(array.data) // one], (1, *array.shape[1:])

    why = problems(parties, tmp_path / "run", few, "one round")
    assert any("leaves out 2 of this party's labels" in one for one in why)


def test_ranking_by_secure_sums_equals_the_plain_one(parties: Nodes, tmp_path: Path) -> None:
    kept = {node: config | {"fewest": 1} for node, config in parties.items()}
    method, settings = CASES["mlp"]
    results = []
    for name, secure in (("plain", "off"), ("secure", "on")):
        grid = LocalGrid(kept)
        grid.keeps = True
        config = asked(method, settings, **{"secure-sums": secure, "held-out-share": 0.3, "num-server-rounds": 2})
        run(grid, tmp_path / name, config)
        results.append(json.loads((tmp_path / name / "result.json").read_text(encoding="utf-8"))["metrics"])
        sent_hits = any("hits" in reply.content for reply in grid.replies if reply.has_content())
        assert sent_hits == (secure == "off")
    assert results[0] == pytest.approx(results[1]) and "party P@1" in results[0]


# --- settings ---


def settings_of(method: str = "fedavg-fixed", **config: Any) -> Any:
    return read_run_config({"method": method, "num-parties": 3, **config}, 1)[1]


@pytest.mark.parametrize(
    ("config", "on"),
    [
        ({}, True),
        ({"num-parties": 2}, False),
        ({"secure-sums": "off"}, False),
        ({"method": "fedalc"}, False),
        ({"set": "server.aggregation=median"}, False),
        ({"set": "secure_sums.on=false"}, False),
        ({"tune": True, "method": ""}, True),
        ({"method": "fedalc-oneshot"}, True),
    ],
)
def test_they_are_on_where_they_fit(config: dict[str, Any], on: bool) -> None:
    settings = settings_of(**config)
    assert settings.secure_sums.on == on
    assert settings.server.aggregation == ("mean" if on else settings.server.aggregation)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"method": "fedalc"}, "trains class embeddings"),
        ({"set": "server.participation=0.5"}, "every one takes part in every sum"),
        ({"num-parties": 2}, "--parties"),
    ],
)
def test_asked_for_they_are_refused_where_they_do_not_fit(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings_of(**(config | ON))


def test_a_party_may_insist_on_them(parties: Nodes, tmp_path: Path) -> None:
    method, settings = CASES["mlp"]
    strict = {node: config | {"require-secure-sums": True, "allow": "draws=1"} for node, config in parties.items()}
    with fails(TooFew):
        run(LocalGrid(strict), tmp_path / "off", asked(method, settings))
    run(LocalGrid(strict), tmp_path / "on", asked(method, settings, **ON, **{"num-server-rounds": 1}))


def test_a_step_in_a_run_without_secure_sums_is_refused(parties: Nodes) -> None:
    grid = LocalGrid(parties)
    question = task(settings_of(**{"secure-sums": "off"}), "plain", share=0.0)
    grid.push_messages([Message(RecordDict({"task": question, RECORD: ConfigRecord({"keys": 1})}), 101, "query.sum")])
    (reply,) = grid.pull_messages(list(grid.sent))
    assert "in a run without them" in str(reply.error.reason)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["train", "query.sum"])
def test_a_stopped_run_goes_on_to_the_same_bits(
    kind: str, parties: Nodes, whole: tuple[TrainedModel, LocalGrid], tmp_path: Path
) -> None:
    """The server crashes while it asks in round 2, or while it asks to unmask; its parties remember, and have other
    nodes afterwards."""
    kept = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}
    method, settings = CASES["mlp"]
    grid = LocalGrid(kept)
    crash_in(grid, kind, 2)
    with pytest.raises(Crash):
        run(grid, tmp_path / "run", asked(method, settings, **ON))
    again = {"resume": True, "wait": 5.0, "round-timeout": 5.0, "num-parties": 4}
    resumed = run(LocalGrid(renamed(kept)), tmp_path / "run", again)
    assert all(map(torch.equal, theta(resumed), theta(whole[0])))


def test_two_parties_of_one_name_are_an_error_that_says_so(parties: Nodes, tmp_path: Path) -> None:
    twins = parties | {9: parties[9] | {"client": "party 55"}}
    with pytest.raises(FedalcError, match=r"2 parties are named 'party 55'.*--client"):
        run(LocalGrid(twins), tmp_path / "run", asked(*CASES["mlp"], **ON))
