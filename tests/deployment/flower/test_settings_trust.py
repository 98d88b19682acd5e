"""A server that chooses settings to single a party out, against parties that insist on secure sums."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.party_settings import check_same_settings
from fedalc.deployment.flower.sum_messages import RECORD
from fedalc.deployment.flower.wire import SEARCH, BadMessage
from fedalc.deployment.local import write_party
from fedalc.errors import FedalcError
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import NAMES, OWNED, Nodes, all_different, asked, fails, notes, run, write_parties
from tests.deployment.flower.test_private_model import SUMS
from tests.deployment.flower.test_secure_sums import CASES, ON

METHOD, SETTINGS = CASES["mlp"][0], CASES["mlp"][1] | {"encoder.dropout": 0.0}
ONE = {"num-server-rounds": 1}


@pytest.fixture
def strict(tmp_path: Path) -> Nodes:
    nodes = write_parties(tmp_path, all_different())
    more = {"require-secure-sums": True}
    return {node: config | more | {"state": str(tmp_path / f"state {node}")} for node, config in nodes.items()}


def train(nodes: Nodes, folder: Path, **changes: Any) -> None:
    run(LocalGrid(nodes), folder, asked(METHOD, SETTINGS | changes, **ON, **ONE, **{"run-id": folder.name}))


def refusals(nodes: Nodes, folder: Path, **changes: Any) -> str:
    """What the server prints and writes down."""
    printed = io.StringIO()
    with fails(TooFew), contextlib.redirect_stdout(printed):
        train(nodes, folder, **changes)
    noted = notes(folder) if (folder / "parties.jsonl").exists() else []
    return printed.getvalue() + "".join(why for _, _, why in noted)


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("client.batch_size", 20, "client.batch_size = 20, null before"),
        ("client.label_power", 0.4, "client.label_power = 0.4, 0.0 before"),
        ("seed", 5, "seed = 5, 0 before"),
    ],
)
def test_a_second_run_with_other_settings_is_refused(
    setting: str, value: Any, why: str, strict: Nodes, tmp_path: Path
) -> None:
    """With a batch just below the largest number of records, the two runs would differ by one party's part."""
    train(strict, tmp_path / "first")
    train(strict, tmp_path / "again")  # the same settings
    said = refusals(strict, tmp_path / "second", **{setting: value})
    assert why in said and "start this party with --allow sum_settings=2" in said


def test_parties_may_allow_other_settings(strict: Nodes, tmp_path: Path) -> None:
    train(strict, tmp_path / "first")
    two = {node: config | {"allow": "sum_settings=2"} for node, config in strict.items()}
    train(two, tmp_path / "second", **{"client.batch_size": 20})
    train(two, tmp_path / "third")  # those of the first
    assert "--allow sum_settings=3" in refusals(two, tmp_path / "fourth", seed=5)


def test_a_run_that_was_refused_does_not_count(strict: Nodes, tmp_path: Path) -> None:
    refusals(strict, tmp_path / "refused", **{"client.epochs": 1000})
    train(strict, tmp_path / "first")


def test_a_private_model_does_not_count(strict: Nodes, tmp_path: Path) -> None:
    """Its noise bounds what runs show together."""
    train(strict, tmp_path / "first")
    config = asked("fedalc-oneshot", SUMS, **{"secure-sums": "auto", "run-id": "private"})
    run(LocalGrid(strict), tmp_path / "private", config)
    train(strict, tmp_path / "second")


def with_records(nodes: Nodes, folder: Path, rows: np.ndarray) -> Nodes:
    """The party of node 7 has these records."""
    data = write_party(folder, all_different().rows(rows), OWNED[7], [NAMES[u] for u in OWNED[7]])
    return {**nodes, 7: nodes[7] | {"data": str(data)}}


def test_another_record_in_another_run_is_refused(strict: Nodes, tmp_path: Path) -> None:
    """The two runs would differ by that record. Another order is no other data."""
    rows = np.arange(len(all_different()))
    less = with_records(strict, tmp_path / "less", rows[1:])
    train(strict, tmp_path / "first")
    train(with_records(strict, tmp_path / "turned", rows[::-1]), tmp_path / "again")
    assert "start this party with --allow sum_records=2" in refusals(less, tmp_path / "second")
    allowed = {node: config | {"allow": "sum_records=2"} for node, config in less.items()}
    train(allowed, tmp_path / "third")


def test_the_same_records_are_held_out_in_every_run(strict: Nodes, tmp_path: Path) -> None:
    """A server that looks for run ids with other numbers of held-out records finds none."""
    counts = []
    for name in ("one", "two", "three"):
        grid = LocalGrid(strict)
        grid.keeps = True
        run(grid, tmp_path / name, asked(METHOD, SETTINGS, **ON, **ONE, **{"run-id": name, "held-out-share": 0.3}))
        said = [reply.content["introduction"] for reply in grid.replies if "introduction" in reply.content]
        counts.append(sorted(sorted(zip(one["counts"], one["held-out"], strict=True)) for one in said))
    assert counts[0] == counts[1] == counts[2]
    assert sum(out for party in counts[0] for _, out in party) > 0


def test_another_share_of_held_out_records_needs_the_partys_consent(strict: Nodes, tmp_path: Path) -> None:
    """Of two shares the difference is about few records."""

    def train_with(nodes: Nodes, name: str, share: float) -> None:
        asking = asked(METHOD, SETTINGS, **ON, **ONE, **{"run-id": name, "held-out-share": share})
        run(LocalGrid(nodes), tmp_path / name, asking)

    train_with(strict, "first", 0.3)
    train_with(strict, "again", 0.3)
    printed = io.StringIO()
    with fails(FedalcError), contextlib.redirect_stdout(printed):
        train_with(strict, "second", 0.35)
    assert "--allow held_out_shares=2" in printed.getvalue()
    allowed = {node: config | {"allow": "held_out_shares=2; sum_settings=2"} for node, config in strict.items()}
    train_with(allowed, "third", 0.35)


@pytest.mark.parametrize(("setting", "value"), [("client.sample", 0.5), ("encoder.dropout", 0.2)])
def test_random_draws_need_the_partys_consent(setting: str, value: Any, strict: Nodes, tmp_path: Path) -> None:
    """At one θ each round would add up other records, and many rounds show single ones."""
    assert "start this party with --allow draws=1" in refusals(strict, tmp_path / "drawn", **{setting: value})


def test_parties_may_allow_random_draws(strict: Nodes, tmp_path: Path) -> None:
    allowed = {node: config | {"allow": "draws=1"} for node, config in strict.items()}
    train(allowed, tmp_path / "allowed", **{"encoder.dropout": 0.2})


def test_private_runs_together_spend_what_one_may(strict: Nodes, tmp_path: Path) -> None:
    """Over many runs a server could average the noise out."""

    def private(name: str, epsilon: float, **more: Any) -> None:
        config = asked("fedalc-oneshot", SUMS | {"privacy.epsilon": epsilon}, **{"secure-sums": "auto", "run-id": name})
        run(LocalGrid({node: one | more for node, one in strict.items()}), tmp_path / name, config)

    private("first", 8.0)
    with fails(TooFew):
        private("second", 8.0)
    private("third", 8.0, **{"epsilon-budget": 20.0})


def test_to_cut_changes_needs_the_partys_consent(strict: Nodes, tmp_path: Path) -> None:
    """The longest change is cut first: scaled θ, or another norm in another run, would show whose it is, and its
    direction."""
    said = refusals(strict, tmp_path / "cut", **{"secure_sums.norm": 0.5})
    assert "secure_sums.norm = 0.5 is outside 0 to 0" in said
    allowed = {node: config | {"allow": "secure_sums.norm=1"} for node, config in strict.items()}
    train(allowed, tmp_path / "allowed", **{"secure_sums.norm": 0.5})


def divided_by(divisor: float) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        record = message.content.get(RECORD)
        if isinstance(record, ConfigRecord) and "divisor" in record:
            record["divisor"] = divisor

    return change


def test_a_server_cannot_look_for_the_largest_number_by_overflow(strict: Nodes, tmp_path: Path) -> None:
    """With these divisors and bits some party's numbers do not fit. Nobody refuses, by name or otherwise, however
    often."""
    settings = SETTINGS | {"secure_sums.bits": 60}
    for step, divisor in enumerate((1.0, 1.0, 0.5, 0.5, 0.25)):
        grid = LocalGrid(strict)
        grid.keeps, grid.before_push, name = True, divided_by(divisor), f"overflow {step}"
        with pytest.raises(FedalcError, match="overflow"):
            run(grid, tmp_path / name, asked(METHOD, settings, **ON, **ONE, **{"run-id": f"r{step}"}))
        assert not (tmp_path / name / "parties.jsonl").exists()
        assert not any(reply.has_error() for reply in grid.replies)


@pytest.mark.parametrize("divisor", [1e-10, 1e12])
def test_a_divisor_that_no_honest_server_has_is_refused(divisor: float, strict: Nodes, tmp_path: Path) -> None:
    """By a huge one numbers are rounded to 0, by a tiny one they are infinite, at one party before the others."""
    grid = LocalGrid(strict)
    grid.before_push = divided_by(divisor)
    with fails(TooFew):
        run(grid, tmp_path / "run", asked(METHOD, SETTINGS, **ON, **ONE))
    assert all("divides weights by a number that is not" in why for _, _, why in notes(tmp_path / "run"))


def test_runs_that_call_themselves_searches_do_not_get_more_trials(tmp_path: Path) -> None:
    """The server says that each run began with the known settings, and tries others in each."""
    ask = search_of(tmp_path)
    for dim in range(9):
        ask({"encoder": {"dim": dim}})
    ask({"encoder": {"dim": 3}})  # again
    with pytest.raises(BadMessage, match="trials over all runs = 9 is outside 1 to 8"):
        ask({"encoder": {"dim": 9}})


def test_searches_get_two_label_powers(tmp_path: Path) -> None:
    """As many sums with other label powers as labels would give each label's part. A search trains with one power, and
    then with the chosen one."""
    ask = search_of(tmp_path)
    for power in (0.0, 0.3, 0.0, 0.3):
        ask({"client": {"label_power": power}})
    with pytest.raises(BadMessage, match="label powers over all runs = 3 is outside 1 to 2"):
        ask({"client": {"label_power": 0.5}})
    ask({"client": {"label_power": 0.5}}, Limits({"label_powers": 3}))


def test_the_power_of_a_run_that_is_no_search_counts(tmp_path: Path) -> None:
    """With three parties, three powers gave each one's part: that of a run, and two of runs that call themselves
    searches."""
    context = Context(1, 1, {"require-secure-sums": True, "state": str(tmp_path)}, RecordDict(), {})
    began = json.dumps({"client": {"label_power": 0.1}})
    check_same_settings(context, {"settings": began, SEARCH: "", "share": 0.1}, Limits(), 0.1)

    def ask(power: float) -> None:
        trial = json.dumps({"client": {"label_power": power}})
        check_same_settings(context, {"settings": trial, SEARCH: began, "share": 0.1}, Limits(), power)

    ask(0.5)
    with pytest.raises(BadMessage, match="label powers over all runs = 3 is outside 1 to 2"):
        ask(0.9)
    ask(0.1)


def search_of(state: Path) -> Callable[..., None]:
    context = Context(1, 1, {"require-secure-sums": True, "state": str(state)}, RecordDict(), {})

    def ask(trial: dict[str, Any], limits: Limits | None = None) -> None:
        question = {"settings": json.dumps(trial), SEARCH: json.dumps({"client": {"label_power": 0.0}}), "share": 0.1}
        power = trial["client"].get("label_power") if "client" in trial else None
        check_same_settings(context, question, limits or Limits(), power)

    return ask


def test_another_divisor_within_a_run_is_refused(strict: Nodes, tmp_path: Path) -> None:
    seen: list[float] = []

    def other(message: Message) -> None:
        record = message.content.get(RECORD)
        if isinstance(record, ConfigRecord) and "divisor" in record and len(seen) < 8:
            seen.append(float(record["divisor"]))  # type: ignore[arg-type]
            record["divisor"] = seen[0] * (1 if len(seen) <= 4 else 2)

    grid = LocalGrid(strict)
    grid.before_push = other
    with fails(TooFew):
        run(grid, tmp_path / "run", asked(METHOD, SETTINGS, **ON, **{"num-server-rounds": 2}))
    assert np.unique(seen).size == 1
    assert any("divides weights by another number" in why for _, _, why in notes(tmp_path / "run"))
