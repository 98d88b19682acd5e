"""The ledger of ε: entries are made once, before the noise is used, never lost, and refused above a budget."""

from __future__ import annotations

import errno
import json
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import fedalc
from fedalc.errors import ConfigError, FedalcError, Interrupted
from fedalc.labels.privacy import Release, epsilon_of
from fedalc.labels.privacy.accounts import CHARGED, charge_run, deployment_account
from fedalc.labels.privacy.ledger import BudgetError, Charge, Ledger, by_subject, default_path, total
from fedalc.runs import history
from fedalc.training.base import Callback
from fedalc.training.selection import Training
from tests.cli.test_collect import run
from tests.problems import StopAfter, small_dataset

pytest.importorskip("dp_accounting")
DATA = small_dataset(instances=40)
PRIVATE: dict[str, Any] = {
    "method": "fedalc",
    "rounds": 2,
    "encoder": {"name": "linear"},
    "selection": {"every": 1},
    "privacy": {"epsilon": 1.0},
}
ONE = Release("discrete", 10.0, 7)


def charge(*marks: str, **changes: Any) -> Charge:
    return replace(Charge("dataset d", marks or ("dataset:d",), "fedalc, counts", 1e-5, 1.0, ONE), **changes)


def test_a_run_is_entered_once_for_all_its_phases(tmp_path: Path, privacy_ledger: Path) -> None:
    done = fedalc.train(data=DATA, folder=tmp_path / "run", **PRIVATE)
    (entered,) = Ledger(privacy_ledger).charges()
    assert entered.epsilon == done.result["privacy"]["epsilon"] <= 1
    assert entered.release is not None and entered.release.times == 2 * 7  # select and refit
    assert epsilon_of([entered.release], 1e-5) == entered.epsilon
    assert entered.run == str(tmp_path / "run") and entered.subject == f"dataset {DATA.name}"
    assert json.loads((tmp_path / "run" / CHARGED).read_text())["charge"] == entered.id
    assert stat.S_IMODE(privacy_ledger.stat().st_mode) == 0o600


def test_without_differential_privacy_there_is_no_ledger(privacy_ledger: Path) -> None:
    fedalc.train(data=DATA, **{**PRIVATE, "privacy": {}})
    assert not privacy_ledger.exists()


def test_the_entry_is_there_before_the_first_checkpoint_and_a_resumed_run_has_it(
    tmp_path: Path, privacy_ledger: Path
) -> None:
    settings, folder = fedalc.experiment({**PRIVATE, "dataset": DATA.name}), tmp_path / "run"

    class PowerCut(Callback):
        def phase(self, name: str, rounds: int, done: int) -> None:
            raise RuntimeError("power cut")

    for failing in ("_save_if_due", "run_phase"):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
            if failing == "_save_if_due":
                patch.setattr(Training, "_save_if_due", lambda self, force: PowerCut().phase("", 0, 0))
            again = {"resume": True} if (folder / "config.toml").exists() else {}
            fedalc.train(settings, data=DATA, folder=folder, callbacks=[PowerCut()], **again)  # type: ignore[arg-type]
        assert len(Ledger(privacy_ledger).charges()) == 1
    fedalc.train(settings, data=DATA, folder=folder, resume=True, epsilon_budget=1.0)
    assert len(Ledger(privacy_ledger).charges()) == 1


class PowerCut(Callback):
    """Raised in the middle of the second round's evaluation."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def evaluated(self, record: dict[str, Any]) -> None:
        self.told.append(record)
        if record["round"] == 2:
            raise RuntimeError("power cut")


GRADIENTS = {**PRIVATE, "rounds": 3, "dataset": DATA.name, "regularizer": {"weighting": "sigma"}}


def test_a_private_round_is_saved_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    """A kill afterwards must not redraw the noise: reported and saved values must come from one draw."""
    settings = fedalc.experiment({**GRADIENTS, "privacy": {"epsilon": 1.0, "mechanism": "gradients"}})
    cut = PowerCut()
    with pytest.raises(RuntimeError, match="power cut"):
        fedalc.train(settings, data=DATA, folder=tmp_path / "run", callbacks=[cut])
    fedalc.train(settings, data=DATA, folder=tmp_path / "run", resume=True)
    kept = history.read(tmp_path / "run" / "history.jsonl")
    assert [(record["phase"], record["round"]) for record in kept][:3] == [("select", round_) for round_ in (1, 2, 3)]
    assert [record["collapse"] for record in kept[:2]] == [record["collapse"] for record in cut.told]
    assert len(kept) == len({(record["phase"], record["round"]) for record in kept})


def test_a_round_that_was_saved_first_is_evaluated_when_the_run_is_resumed(tmp_path: Path) -> None:
    """As in an undisturbed run: the selection among rounds includes it."""
    privacy = {"epsilon": 1.0, "mechanism": "gradients", "noise": "seeded"}
    settings = fedalc.experiment({**GRADIENTS, "privacy": privacy})
    whole = fedalc.train(settings, data=DATA)
    with pytest.raises(RuntimeError, match="power cut"):
        fedalc.train(settings, data=DATA, folder=tmp_path / "run", callbacks=[PowerCut()])
    resumed = fedalc.train(settings, data=DATA, folder=tmp_path / "run", resume=True)
    assert all(resumed.result[key] == whole.result[key] for key in ("selection", "rounds", "rounds_run", "metrics"))
    assert resumed.result["collapse"] == whole.result["collapse"]


def test_an_id_stands_for_one_run(privacy_ledger: Path) -> None:
    """Earlier, a known id passed with any noise, whatever the budget."""
    ledger = Ledger(privacy_ledger)
    ledger.add(charge("dataset:old place", "data:1", id="x"))
    for act in (ledger.add, ledger.check):
        act(charge("dataset:new place", "data:1", id="x"), 0.5)  # a resumed run, whose data has moved
        with pytest.raises(FedalcError, match=r"charged with other noise.*delete privacy\.json"):
            act(charge("data:1", id="x", epsilon=50.0, release=Release("discrete", 0.5, 7)), 1.5)
        with pytest.raises(FedalcError, match="charged with other noise"):
            act(charge("data:1", id="x", epsilon=None, release=None, noise="seeded"), 1.5)
        with pytest.raises(FedalcError, match="charged on other data"):
            act(charge("data:2", id="x"), 1.5)
    assert len(ledger.charges()) == 1


@pytest.mark.parametrize("call", ["os.fsync", "lock_descriptor"])
def test_a_ledger_on_a_full_disk_is_one_clear_line(
    privacy_ledger: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    Ledger(privacy_ledger).add(charge())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"fedalc.labels.privacy.ledger.{call}", full)
    with pytest.raises(FedalcError, match=rf"{privacy_ledger.name}: cannot be written: No space left.*free some"):
        Ledger(privacy_ledger).add(charge())


def test_all_processes_hear_of_an_error_at_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one notifies the others before it stops; otherwise they would wait forever."""
    told: list[bool] = []

    def any_of(here: bool) -> bool:
        told.append(here)
        return here

    def unreadable() -> None:
        raise PermissionError(13, "Permission denied")

    training = Training(fedalc.experiment({**PRIVATE, "dataset": DATA.name}), DATA, None, []).prepare()
    monkeypatch.setattr("fedalc.training.selection.distributed.any_of", any_of)
    monkeypatch.setattr(training.budget, "open_account", unreadable)
    with pytest.raises(PermissionError):
        training.budget.charge()
    assert told == [True]


def test_neither_deleting_nor_overwriting_a_run_gives_anything_back(tmp_path: Path, privacy_ledger: Path) -> None:
    for number in (1, 2):
        fedalc.train(data=DATA, folder=tmp_path / "run", overwrite=number > 1, **PRIVATE)
        assert len(Ledger(privacy_ledger).charges()) == number


def test_a_budget_refuses_the_run_that_exceeds_it(tmp_path: Path, privacy_ledger: Path) -> None:
    fedalc.train(data=DATA, folder=tmp_path / "first", epsilon_budget=1.2, **PRIVATE)
    with pytest.raises(
        BudgetError, match=r"small.*to ε = 1\.\d+ at δ = 1e-05.*budget of 1.2.*Spent so far: ε = 1 in 1 runs"
    ):
        fedalc.train(data=DATA, folder=tmp_path / "second", epsilon_budget=1.2, **PRIVATE)
    assert not (tmp_path / "second").exists()
    assert len(Ledger(privacy_ledger).charges()) == 1
    # Tight composition: two runs of ε = 1 are less than 2.
    fedalc.train(data=DATA, folder=tmp_path / "second", epsilon_budget=1.6, **PRIVATE)
    spent = total(Ledger(privacy_ledger).charges(), 1e-5)
    assert 1.3 < spent.epsilon < 1.6 and spent.plain == pytest.approx(2, abs=0.02) and spent.plain_delta == 2e-5


def test_a_comparison_stops_at_its_budget(tmp_path: Path, privacy_ledger: Path) -> None:
    folder = tmp_path / "c"
    (tmp_path / "settings.toml").write_text('rounds = 2\n[privacy]\nmechanism = "counts"\n[encoder]\nname = "linear"\n')
    compare = ("compare", "--dataset", "demo", "--methods", "fedalc", "--seeds", "0,1", "--quiet")
    options = ("--config", str(tmp_path / "settings.toml"), "--out", str(tmp_path), "--name", "c")
    with pytest.raises(FedalcError, match="budget"):
        run(*compare, *options, "--set", "privacy.epsilon=1", "--epsilon-budget", "1")
    assert (folder / "fedalc-s0" / "result.json").exists() and not (folder / "fedalc-s1").exists()
    assert len(Ledger(privacy_ledger).charges()) == 1


def test_seeded_noise_has_no_epsilon_and_costs_nothing(tmp_path: Path, privacy_ledger: Path) -> None:
    seeded = {**PRIVATE, "privacy": {"epsilon": 1.0, "noise": "seeded"}}
    done = fedalc.train(data=DATA, epsilon_budget=0.5, **seeded)
    assert done.result["privacy"]["epsilon"] is None and "seed" in done.result["privacy"]["why"]
    (entered,) = Ledger(privacy_ledger).charges()
    assert entered.epsilon is entered.release is None and entered.noise == "seeded"
    assert total([entered], 1e-5).epsilon == 0
    assert "not private" in run("privacy")


def test_data_is_known_by_its_label_sets_under_another_name_and_order(privacy_ledger: Path) -> None:
    Y = csr_matrix((np.random.default_rng(0).random((50, 8)) < 0.3).astype(np.float32))
    mark = Ledger(privacy_ledger).mark_of(Y)
    shuffled = Y[np.random.default_rng(1).permutation(50)][:, np.random.default_rng(2).permutation(8)]
    assert Ledger(privacy_ledger).mark_of(csr_matrix(shuffled)) == mark
    assert Ledger(privacy_ledger).mark_of(Y[:-1]) != mark
    assert Ledger(privacy_ledger.with_name("another")).mark_of(Y) != mark  # says nothing without the ledger's key


@pytest.mark.long
def test_files_of_the_same_label_sets_under_another_key_are_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.test_collect import write_xmlc

    monkeypatch.chdir(tmp_path)
    write_xmlc(tmp_path / "train.txt", DATA.train)
    for key in ("k1", "k2"):
        run("key", "new", key)
        run("collect", "client", "train.txt", "--key", key, "--out", f"{key}.msg")
    run("collect", "server", "k1.msg", "--out", "one", "--epsilon", "1", "--epsilon-budget", "1.2")
    with pytest.raises(BudgetError, match="Spent so far"):
        run("collect", "server", "k2.msg", "--out", "two", "--epsilon", "1", "--epsilon-budget", "1.2")
    assert not Path("two").exists()
    with pytest.raises(FedalcError, match="need --epsilon"):
        run("collect", "server", "k2.msg", "--out", "two", "--epsilon-budget", "1")
    listed = run("privacy")
    assert "collect server" in listed and "spent in 1 runs" in listed and "plain sum" in listed


def test_published_lists_of_labels_are_counted_in_delta() -> None:
    file = charge(release=replace(ONE, selection=5e-6))
    one, two = total([file], 1e-5), total([file, file], 1e-5)
    assert one.delta == 1e-5 and one.epsilon == epsilon_of([replace(ONE, selection=5e-6)], 1e-5)
    assert two.delta == pytest.approx(1.5e-5)  # at 10⁻⁵ nothing would be left for the noise
    assert two.epsilon == pytest.approx(epsilon_of([ONE, ONE], 5e-6), abs=1e-4)
    assert total([charge(), charge()], 1e-5).delta == 1e-5


def test_charges_with_a_mark_in_common_are_on_the_same_data() -> None:
    charges = [charge("a"), charge("b"), charge("c", "b"), charge("d"), charge("a", "e"), charge("e", "f")]
    groups = [[c.marks for c in group] for group in by_subject(charges)]
    assert groups == [[("a",), ("a", "e"), ("e", "f")], [("b",), ("c", "b")], [("d",)]]


def test_runs_of_a_server_share_a_ledger_whatever_their_parties(tmp_path: Path) -> None:
    first = deployment_account(None, tmp_path / "runs" / "a", 1.2)
    second = deployment_account(None, tmp_path / "runs" / "b", 1.2)
    first.ledger.add(first.charge("fedalc, counts", 1e-5, 1.0, ONE), first.budget)
    with pytest.raises(BudgetError, match="deployment"):
        second.ledger.add(second.charge("fedalc, counts", 1e-5, 1.0, ONE), second.budget)
    elsewhere = deployment_account(tmp_path / "state" / "privacy-ledger.jsonl", tmp_path / "runs" / "b", 1.2)
    elsewhere.ledger.add(elsewhere.charge("fedalc, counts", 1e-5, 1.0, ONE), elsewhere.budget)
    assert "deployment" in run("privacy", "--state", str(tmp_path / "state"))


@pytest.mark.long
def test_processes_at_once_cannot_both_take_what_is_left(privacy_ledger: Path) -> None:
    def attempt(number: int) -> bool:
        try:
            Ledger(privacy_ledger).add(charge(), budget=1.2)
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert len(Ledger(privacy_ledger).charges()) == 1


def test_a_torn_last_line_is_dropped_and_a_damaged_one_refused(privacy_ledger: Path) -> None:
    ledger = Ledger(privacy_ledger)
    ledger.add(charge())
    whole = privacy_ledger.read_bytes()
    privacy_ledger.write_bytes(whole + b'{"subject": "data')
    assert len(ledger.charges()) == 1
    ledger.add(charge())
    assert len(ledger.charges()) == 2
    for damage in (b"[]\n", b"\xff\n", b'{"subject": 1}\n', b"[" * 100_000 + b"\n"):
        privacy_ledger.write_bytes(whole + damage)
        with pytest.raises(FedalcError, match=r":3: not a line of a privacy ledger"):
            ledger.charges()


def test_a_last_line_that_lacks_only_its_end_counts(privacy_ledger: Path) -> None:
    ledger = Ledger(privacy_ledger)
    ledger.add(charge())
    privacy_ledger.write_bytes(privacy_ledger.read_bytes().rstrip(b"\n"))
    assert len(ledger.charges()) == 1
    ledger.add(charge())
    assert len(ledger.charges()) == 2


def test_another_file_is_not_taken_for_an_empty_ledger(privacy_ledger: Path) -> None:
    privacy_ledger.write_bytes(b"\xff\xfe")
    with pytest.raises(FedalcError, match="not a privacy ledger"):
        Ledger(privacy_ledger).charges()
    assert privacy_ledger.read_bytes() == b"\xff\xfe"
    privacy_ledger.write_bytes(b'{"fedalc-priv')  # a power cut while it was made
    assert Ledger(privacy_ledger).charges() == []


@pytest.mark.few(1)
@pytest.mark.parametrize("mechanism", ["counts", "gradients"])
def test_a_copy_of_a_run_cannot_go_on_with_noise_of_its_own(
    tmp_path: Path, privacy_ledger: Path, mechanism: str
) -> None:
    keys = {**GRADIENTS, "privacy": {"epsilon": 1.0, "mechanism": mechanism}}
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "run", callbacks=[StopAfter("select", 1)], **keys)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "run", resume=True, callbacks=[StopAfter("select", 2)], **keys)
    with pytest.raises(FedalcError, match=r"copy: this run has continued since, .* delete privacy\.json"):
        fedalc.train(data=DATA, folder=tmp_path / "copy", resume=True, **keys)
    fedalc.train(data=DATA, folder=tmp_path / "run", resume=True, **keys)
    assert len(Ledger(privacy_ledger).charges()) == 1
    (tmp_path / "copy" / CHARGED).unlink()
    fedalc.train(data=DATA, folder=tmp_path / "copy", resume=True, **keys)
    assert len(Ledger(privacy_ledger).charges()) == 2


@pytest.mark.parametrize("cuts", [0, 1, 2])
def test_a_crash_between_the_folder_and_the_ledger_costs_nothing(
    tmp_path: Path, privacy_ledger: Path, cuts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = deployment_account(privacy_ledger, tmp_path)

    def enter() -> None:
        charge_run(account, account.charge("fedalc", 1e-5, 1.0, ONE), tmp_path)

    def power_cut(*_: Any) -> None:
        raise RuntimeError("power cut")

    enter()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "go_on", power_cut)
        for _ in range(cuts):
            with pytest.raises(RuntimeError):
                enter()
    enter()
    enter()
    assert len(Ledger(privacy_ledger).charges()) == 1


def test_a_budget_is_a_number_above_0(tmp_path: Path) -> None:
    for budget in (float("nan"), 0.0, -1.0):
        with pytest.raises(ConfigError, match="epsilon_budget: expected a number above 0"):
            fedalc.train(data=DATA, folder=tmp_path / "run", epsilon_budget=budget, **PRIVATE)


def test_where_the_ledger_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDALC_PRIVACY_LEDGER", str(tmp_path / "mine"))
    assert default_path() == tmp_path / "mine"
    monkeypatch.delenv("FEDALC_PRIVACY_LEDGER")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "fedalc" / "privacy-ledger.jsonl"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "state" / "fedalc" / "privacy-ledger.jsonl"


def test_a_ledger_that_cannot_be_written_stops_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDALC_PRIVACY_LEDGER", str(tmp_path / "file" / "ledger"))
    with pytest.raises(FedalcError, match="FEDALC_PRIVACY_LEDGER"):
        fedalc.train(data=DATA, **PRIVATE)


def test_nothing_spent_yet(privacy_ledger: Path, tmp_path: Path) -> None:
    assert "nothing spent yet" in run("privacy")
    assert not privacy_ledger.exists()
    with pytest.raises(FedalcError, match="no such privacy ledger"):
        run("privacy", "--state", str(tmp_path))
