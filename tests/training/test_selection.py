"""The loop: seeds, selection, refit, interruption, resuming to the same bits, and the run folder's contract."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.core.tensor_folder import load_folder
from fedalc.errors import ConfigError, DataError, FedalcError, Interrupted, Locked
from fedalc.runs import history
from fedalc.runs.folder import only_writer
from fedalc.training.base import Callback
from fedalc.training.selection import Training
from fedalc.workflows import train as runs
from tests.problems import StopAfter, random_split, small_dataset

DATA = small_dataset()
SMALL: dict[str, Any] = {
    "rounds": 12,
    "encoder": {"name": "mlp", "dim": 8, "embedding": 6, "hidden": (9,), "dropout": 0.2},
    "server": {"ema": 0.5, "participation": 0.7, "optimizer": "adam", "learning_rate": 0.02},
    "selection": {"every": 2, "validation": 0.2},
}


def weights(run: fedalc.Run) -> list[torch.Tensor]:
    return [*run.model.model.theta, run.model.model.W]


def same_bits(a: fedalc.Run, b: fedalc.Run) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def test_same_seed_same_bits_another_seed_others() -> None:
    first, again = (fedalc.train(data=DATA, **SMALL, seed=5) for _ in range(2))
    other = fedalc.train(data=DATA, **SMALL, seed=6)
    assert same_bits(first, again) and first.metrics == again.metrics
    assert not same_bits(first, other)


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize(("phase", "number"), [("select", 1), ("select", 5), ("refit", 2)])
def test_interrupted_and_resumed_gives_the_same_bits(
    tmp_path: Path, phase: str, number: int, refit: bool, optimizer: str
) -> None:
    if phase == "refit" and not refit:
        pytest.skip("there is no such phase")
    keys = {**SMALL, "server": {**SMALL["server"], "optimizer": optimizer}}
    keys["selection"] = {**SMALL["selection"], "refit": refit}
    whole = fedalc.train(data=DATA, folder=tmp_path / "whole", **keys)
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "cut", callbacks=[StopAfter(phase, number)], **keys)
    assert not (tmp_path / "cut" / "result.json").exists()
    resumed = fedalc.train(data=DATA, folder=tmp_path / "cut", resume=True, **keys)
    assert same_bits(whole, resumed)
    assert whole.metrics == resumed.metrics
    unbroken, continued = (history.read(tmp_path / name / "history.jsonl") for name in ("whole", "cut"))
    for record in unbroken + continued:
        del record["seconds"]
    assert unbroken == continued


def test_killed_after_a_checkpoint_goes_on_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash the history may be ahead of the checkpoint: it is truncated, and the result is unchanged."""
    whole = fedalc.train(data=DATA, folder=tmp_path / "whole", **SMALL)

    class Crash(Callback):
        def round(self, number: int, loss: float) -> None:
            if number == 7:
                raise RuntimeError("power cut")
            # a checkpoint is due after round 3 and not again
            monkeypatch.setattr(Training, "checkpoint_seconds", -1.0 if number == 3 else 1e9)

    with pytest.raises(RuntimeError):
        fedalc.train(data=DATA, folder=tmp_path / "cut", callbacks=[Crash()], **SMALL)
    assert load_folder(tmp_path / "cut" / "checkpoint")[1]["federated"]["round"] == 3
    assert history.read(tmp_path / "cut" / "history.jsonl")[-1]["round"] == 6
    assert same_bits(whole, fedalc.train(data=DATA, folder=tmp_path / "cut", resume=True, **SMALL))


def test_the_run_folder_keeps_its_contract(tmp_path: Path) -> None:
    run = fedalc.train(data=DATA, folder=tmp_path / "run", method="fedaws", **SMALL)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.toml", "history.jsonl", "result.json", "model", "checkpoint", "report.html"}
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result == run.result
    for key in ("dataset", "method", "engine", "rounds", "seed", "metrics", "collapse", "seconds_per_round"):
        assert key in result
    for key in ("peak_memory_mb", "bytes_up", "bytes_down", "versions"):
        assert key in result
    assert {"P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "mAP"} <= result["metrics"].keys()
    for record in history.read(tmp_path / "run" / "history.jsonl"):
        assert {"round", "loss", "metrics", "seconds", "bytes_up", "bytes_down"} <= record.keys()
    again = fedalc.train(fedalc.experiment(file=tmp_path / "run" / "config.toml"), data=DATA)
    assert same_bits(run, again) and again.metrics == run.metrics
    assert same_bits(run, fedalc.load_run(tmp_path / "run"))


def test_the_chosen_round_is_the_best_on_validation_and_the_test_set_is_not_asked() -> None:
    """Two datasets that differ only in their test sets: everything but the test metrics is the same."""
    other = fedalc.Dataset("small", DATA.train, random_split(30, 20, 7, seed=77), DATA.label_names)
    a, b = (fedalc.train(data=data, **SMALL) for data in (DATA, other))
    assert same_bits(a, b) and a.result["selection"] == b.result["selection"]
    assert a.metrics != b.metrics


def test_selection_without_refit_keeps_the_best_round(tmp_path: Path) -> None:
    keys = {**SMALL, "selection": {**SMALL["selection"], "refit": False, "every": 1}}
    run = fedalc.train(data=DATA, folder=tmp_path / "run", **keys)
    records = history.read(tmp_path / "run" / "history.jsonl")
    values = [record["metrics"]["validation P@1"] for record in records]
    assert run.result["rounds"] == 1 + int(np.argmax(values))
    shorter = fedalc.train(data=DATA, **{**keys, "rounds": run.result["rounds"]})
    assert same_bits(run, shorter)


def test_patience_stops_early() -> None:
    keys = {**SMALL, "rounds": 200, "selection": {**SMALL["selection"], "patience": 2, "refit": False}}
    result = fedalc.train(data=DATA, **keys).result
    assert result["rounds_run"] == result["rounds"] + 2 * 2 < 200


def test_without_validation_the_last_round_is_kept() -> None:
    run = fedalc.train(data=DATA, **{**SMALL, "selection": {"validation": 0}})
    assert run.result["selection"] is None and run.result["rounds"] == 12


def test_a_datasets_own_validation_is_used_and_all_of_train_is_trained_on() -> None:
    own = fedalc.Dataset("small", DATA.train, DATA.test, DATA.label_names, validation=random_split(20, 20, 7, seed=9))
    training = Training(fedalc.experiment(SMALL), own, None, ()).prepare()
    assert training.validation is not None and own.validation is not None
    assert np.array_equal(training.validation.labels.toarray(), own.validation.labels.toarray())
    assert len(training.train) == len(own.train)
    assert not training.refits


def test_labels_nobody_holds_are_reported_and_never_predicted() -> None:
    Y = DATA.train.labels.toarray()
    Y[:, 3] = 0
    from scipy.sparse import csr_matrix

    train = fedalc.Split(DATA.train.features, csr_matrix(Y))
    run = fedalc.train(data=fedalc.Dataset("small", train, DATA.test, DATA.label_names), **SMALL)
    assert run.result["labels_without_client"] == 1 and run.result["clients"] == 6
    labels, scores = run.model.predict(DATA.test.features, k=7)
    assert labels.shape == (30, 6) and 3 not in labels
    assert np.isfinite(scores).all()


def test_labels_nobody_holds_are_no_hits_even_when_few_are_held() -> None:
    from scipy.sparse import csr_matrix

    train = np.zeros((20, 8), dtype=np.float32)
    train[:, 0] = 1
    train[:10, 1] = 1
    absent = np.zeros((30, 8), dtype=np.float32)
    absent[:, 2:] = 1
    data = fedalc.Dataset(
        "few",
        fedalc.Split(DATA.train.features[:20], csr_matrix(train)),
        fedalc.Split(DATA.test.features, csr_matrix(absent)),
        tuple("abcdefgh"),
    )
    metrics = fedalc.train(data=data, **{**SMALL, "selection": {"validation": 0}}).metrics
    assert metrics["P@1"] == metrics["P@3"] == metrics["P@5"] == 0


def test_data_of_any_sparse_kind_is_brought_into_one_form() -> None:
    from scipy.sparse import coo_array

    split = fedalc.Split(coo_array(np.array([[2, 0], [0, 3]])), coo_array(np.array([[True, False], [False, True]])))
    assert split.features.dtype == split.labels.dtype == np.float32
    assert split.labels.toarray().tolist() == [[1, 0], [0, 1]]
    stored_zero = csr_with_stored_zero()
    assert fedalc.Split(split.features, stored_zero).labels.nnz == 1
    with pytest.raises(DataError, match="finite"):
        fedalc.Split(coo_array(np.array([[np.nan]])), coo_array(np.array([[1]])))
    with pytest.raises(DataError, match="validation has no instances"):
        fedalc.Dataset("x", DATA.train, DATA.test, DATA.label_names, DATA.test.rows(np.array([], dtype=int)))


def csr_with_stored_zero() -> object:
    from scipy.sparse import csr_matrix

    return csr_matrix((np.array([1.0, 0.0]), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))


def test_resuming_with_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "cut", callbacks=[StopAfter("select", 4)], **SMALL)
    for other in (small_dataset(seed=9), small_dataset(features=21)):
        with pytest.raises(FedalcError, match="other data"):
            fedalc.train(data=other, folder=tmp_path / "cut", resume=True, **SMALL)


def test_averaged_rows_have_unit_length() -> None:
    keys = {**SMALL, "server": {"ema": 0.95}, "client": {"row_learning_rate": 1.0}}
    W = fedalc.train(data=DATA, method="fedavg", **keys).model.model.W
    assert torch.allclose(W.norm(dim=1), torch.ones(7), atol=1e-6)


def test_a_checkpoint_cut_between_its_two_moves_is_still_there(tmp_path: Path) -> None:
    whole = fedalc.train(data=DATA, **SMALL)
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "cut", callbacks=[StopAfter("select", 4)], **SMALL)
    (tmp_path / "cut" / "checkpoint").rename(tmp_path / "cut" / "checkpoint.old")
    assert same_bits(whole, fedalc.train(data=DATA, folder=tmp_path / "cut", resume=True, **SMALL))


def test_keep_last_ignores_the_best() -> None:
    keys = {**SMALL, "selection": {**SMALL["selection"], "keep": "last", "refit": False, "patience": 1}}
    assert fedalc.train(data=DATA, **keys).result["rounds"] == 12


def test_no_labels_at_all_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    from scipy.sparse import csr_matrix

    empty = fedalc.Split(DATA.train.features, csr_matrix(DATA.train.labels.shape, dtype=np.float32))
    with pytest.raises(DataError, match="no training instance has a label"):
        fedalc.train(data=fedalc.Dataset("x", empty, DATA.test, DATA.label_names), folder=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_folders_are_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fedalc.train(data=DATA, folder=folder, **SMALL)
    with pytest.raises(FedalcError, match="already holds a run"):
        fedalc.train(data=DATA, folder=folder, **SMALL)
    with pytest.raises(FedalcError, match="finished"):
        fedalc.train(data=DATA, folder=folder, resume=True, **SMALL)
    fedalc.train(data=DATA, folder=folder, overwrite=True, **{**SMALL, "seed": 2})
    with pytest.raises(ConfigError, match="other settings"):
        fedalc.train(data=DATA, folder=folder, resume=True, **SMALL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FedalcError, match="not a run's"):
        fedalc.train(data=DATA, folder=tmp_path / "mine", overwrite=True, **SMALL)
    with pytest.raises(FedalcError, match="not a run folder"):
        fedalc.load_run(tmp_path / "mine")


def test_a_second_writer_is_kept_out(tmp_path: Path) -> None:
    refused: list[str] = []

    class Second(Callback):
        def round(self, number: int, loss: float) -> None:
            if number == 1 and not refused:
                with pytest.raises(FedalcError, match="another process") as error:
                    fedalc.train(data=DATA, folder=tmp_path / "run", overwrite=True, **SMALL)
                refused.append(str(error.value))

    fedalc.train(data=DATA, folder=tmp_path / "run", callbacks=[Second()], **SMALL)
    assert refused and (tmp_path / "run" / "result.json").exists()


def test_own_data_is_not_recorded_as_the_demo(tmp_path: Path) -> None:
    fedalc.train(data=DATA, folder=tmp_path / "run", **SMALL)
    assert fedalc.experiment(file=tmp_path / "run" / "config.toml").dataset == "small"


def test_a_damaged_checkpoint_or_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fedalc.train(data=DATA, folder=tmp_path / "cut", callbacks=[StopAfter("select", 4)], **SMALL)
    tensors = tmp_path / "cut" / "checkpoint" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    with pytest.raises(FedalcError, match="checkpoint: damaged"):
        fedalc.train(data=DATA, folder=tmp_path / "cut", resume=True, **SMALL)


def test_an_unusable_device_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="device: there is no device 'abacus'"):
        fedalc.train(data=DATA, device="abacus")


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        fedalc.train(data=DATA, round=3)
    with pytest.raises(ConfigError, match="not both"):
        fedalc.train(fedalc.experiment(), data=DATA, rounds=3)


def test_bytes_are_those_of_the_payload() -> None:
    """Fixed rows: θ both ways each round, the row once. Trained rows: the row also both ways each round."""
    keys = {**SMALL, "selection": {"validation": 0}, "server": {"participation": 1.0}}
    theta = 4 * (20 * 6 + 6 * 9 + 9 + 9 * 8 + 8)
    fixed = fedalc.train(data=DATA, method="fedavg-fixed", **keys).result
    assert fixed["bytes_up"] == 12 * 7 * theta
    assert fixed["bytes_down"] == 12 * 7 * theta + 7 * 4 * 8
    moving = fedalc.train(data=DATA, method="fedalc", **keys).result
    assert moving["bytes_down"] == 12 * 7 * (theta + 4 * 8)
    collected = DATA.train.labels.nnz * (16 + 4) + 7 * 16  # a digest and a label each, and seven pseudonyms
    assert moving["bytes_up"] == moving["bytes_down"] + collected


def test_divergence_is_an_error_and_leaves_no_result(tmp_path: Path) -> None:
    keys = {**SMALL, "server": {"optimizer": "sgd", "learning_rate": 1e30}, "client": {"learning_rate": 1e30}}
    with pytest.raises(FedalcError, match="training diverged"):
        fedalc.train(data=DATA, folder=tmp_path / "run", **keys)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_curve_on_the_test_set_where_nothing_is_chosen(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"method": "fedavg-fixed", "rounds": 4, "encoder": {"name": "linear", "dim": 8}}
    watched = {"validation": 0.0, "every": 2, "test_curve": True}
    run = fedalc.train(data=DATA, folder=tmp_path / "fit", selection=watched, **keys)
    records = history.read(tmp_path / "fit" / "history.jsonl")
    assert [record["round"] for record in records] == [2, 4]
    assert records[-1]["metrics"]["test P@1"] == run.metrics["P@1"]
    # With validation data the rounds are chosen, so the test set stays unseen, also while refitting.
    fedalc.train(data=DATA, folder=tmp_path / "select", selection={**watched, "validation": 0.2}, **keys)
    records = history.read(tmp_path / "select" / "history.jsonl")
    assert {record["phase"] for record in records} == {"select", "refit"}
    assert not any(name.startswith("test") for record in records for name in record["metrics"])


class Meanwhile:
    """Lets another process (here a function) use the folder between the first check and the lock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
        self.check, self.other, self.came = runs.check_memory, other, False
        monkeypatch.setattr(runs, "check_memory", self)

    def __call__(self, *arguments: Any) -> None:
        self.check(*arguments)
        if not self.came:
            self.came = True
            self.other()


def test_a_run_that_another_process_finished_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, folder = fedalc.experiment({**SMALL, "dataset": "small"}), tmp_path / "run"

    def finish() -> None:
        fedalc.train(settings, folder=folder, data=DATA)
        (folder / "mark").touch()

    Meanwhile(monkeypatch, finish)
    with pytest.raises(FedalcError, match="already holds a run"):
        fedalc.train(settings, folder=folder, data=DATA)
    first = (folder / "result.json").read_bytes()
    assert (folder / "mark").exists()
    shutil.rmtree(folder)
    Meanwhile(monkeypatch, finish)
    loaded = runs.train_or_continue(settings, folder, DATA)
    assert json.loads((folder / "result.json").read_bytes()) == loaded.result
    assert loaded.metrics == json.loads(first)["metrics"]


def test_a_run_that_another_process_took_up_meanwhile_is_not_resumed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fedalc.experiment({**SMALL, "dataset": "small"})
    for name in ("resumed", "continued"):
        with pytest.raises(Interrupted):
            fedalc.train(settings, data=DATA, folder=tmp_path / name, callbacks=[StopAfter("select", 4)])
    Meanwhile(monkeypatch, lambda: fedalc.train(settings, folder=tmp_path / "resumed", resume=True, data=DATA))
    with pytest.raises(FedalcError, match="finished; nothing to resume"):
        fedalc.train(settings, folder=tmp_path / "resumed", resume=True, data=DATA)
    Meanwhile(monkeypatch, lambda: fedalc.train(settings, folder=tmp_path / "continued", resume=True, data=DATA))
    loaded = runs.train_or_continue(settings, tmp_path / "continued", DATA)
    assert json.loads((tmp_path / "continued" / "result.json").read_text()) == loaded.result


def test_a_run_begun_and_left_meanwhile_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, folder = fedalc.experiment({**SMALL, "dataset": "small"}), tmp_path / "run"

    def leave() -> None:
        with pytest.raises(Interrupted):
            fedalc.train(settings, folder=folder, data=DATA, callbacks=[StopAfter("select", 4)])

    Meanwhile(monkeypatch, leave)
    assert same_bits(runs.train_or_continue(settings, folder, DATA), fedalc.train(settings, data=DATA))


def test_a_lock_that_was_taken_away_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ends and deletes its lock file after B opened it: B must lock the file that C sees."""
    flock, first = fcntl.flock, only_writer(tmp_path / "run")
    first.__enter__()

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        first.__exit__(None, None, None)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with only_writer(tmp_path / "run"), pytest.raises(Locked), only_writer(tmp_path / "run"):
        pytest.fail("two writers")


def test_nothing_is_left_of_a_run_that_never_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError), only_writer(tmp_path / "new"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    with only_writer(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir() and not list((tmp_path / "mine").iterdir())
    # Killed as it began: the lock and half a file are nobody's, and no run either.
    for name in (".lock", "config.toml.0a1b2c3d.part"):
        (tmp_path / "mine" / name).touch()
    fedalc.train(data=DATA, folder=tmp_path / "mine", **SMALL)
    assert not (tmp_path / "mine" / ".lock").exists()


@pytest.mark.few(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["test", "_kept_model", "_save_if_due"])
def test_who_asks_to_stop_when_training_is_over_gets_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, where: str
) -> None:
    before, original, asked = signal.getsignal(number), getattr(Training, where), []

    def interrupted(self: Training, *arguments: Any, **more: Any) -> Any:
        if not asked and self.federated.round_number == 12:
            asked.append(1)
            signal.raise_signal(number)
        return original(self, *arguments, **more)

    keys = {**SMALL, "dataset": "small", "selection": {"every": 12, "validation": 0.2, "refit": False}}
    settings = fedalc.experiment(keys)
    monkeypatch.setattr(Training, where, interrupted)
    if where != "_save_if_due":  # there it is the last round that is stopped after
        run = fedalc.train(settings, data=DATA, folder=tmp_path / "run")
        assert asked and fedalc.load_run(tmp_path / "run").metrics == run.metrics
        asked.clear()
        with pytest.raises(Interrupted, match="was finished"):  # for those that come after it
            runs.train_or_continue(settings, tmp_path / "other", DATA)
    else:
        with suppress(Interrupted):
            fedalc.train(settings, data=DATA, folder=tmp_path / "other")
    assert asked and runs.train_or_continue(settings, tmp_path / "other", DATA).result["rounds"] == 12
    assert signal.getsignal(number) == before


def test_a_second_wish_to_stop_is_not_waited_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(self: Training, trained: object) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("still here")

    class Heard(Callback):
        times = 0

        def stopping(self) -> None:
            self.times += 1

    heard = Heard()
    monkeypatch.setattr(Training, "test", impatient)
    with pytest.raises(KeyboardInterrupt):
        fedalc.train(data=DATA, folder=tmp_path / "run", callbacks=[heard], **SMALL)
    assert heard.times == 1
    monkeypatch.undo()
    fedalc.train(data=DATA, folder=tmp_path / "run", resume=True, **SMALL)


def test_two_may_write_the_same_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def meanwhile(part: Path, place: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_text(tmp_path / "file", "theirs")
        return replace(part, place)

    monkeypatch.setattr(Path, "replace", meanwhile)
    write_text(tmp_path / "file", "ours")
    assert (tmp_path / "file").read_text() == "ours" and [path.name for path in tmp_path.iterdir()] == ["file"]
