"""Run folders and models, from other people or damaged by a disk."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import torch

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.tensor_folder import SUMS
from fedalc.data.text.features import fit_text
from fedalc.data.text.settings import TextSettings
from fedalc.labels.privacy.accounting import Release
from fedalc.labels.privacy.ledger import Charge, Ledger, by_subject, total
from fedalc.models.encoders import make_encoder
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from fedalc.report.page import read_left_out, write_page
from fedalc.runs import history
from fedalc.training.tuning import Trial
from fedalc.workflows.load_model import light_model, load_model
from fedalc.workflows.tune import read_trials
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import changed, changed_json
from tests.fuzz.registry import as_file, reader, workplace
from tests.problems import small_dataset
from tests.report.results import record, result


@cache
def run_folder() -> Path:
    """Return the files of a finished run, without training."""
    folder = workplace() / "run"
    settings = experiment({"encoder": {"name": "mlp", "embedding": 4, "hidden": [5], "dim": 3}})
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(settings.to_toml())
    (folder / "result.json").write_text(json.dumps(result()))
    encoder = make_encoder(6, settings.encoder, torch.Generator().manual_seed(0))
    model = Model(encoder, torch.eye(4, 3))
    TrainedModel(model, settings.encoder, ("a", "b", "c", "d"), np.ones(4, dtype=bool)).save(folder / "model")
    return folder


@reader
def history_jsonl() -> Reader:
    seeds = ["".join(json.dumps(record(n)) + "\n" for n in (2, 4, 6)).encode(), b'{"phase": "refit", "round": 1}\n']

    def make(seed: bytes, rng: Random) -> bytes:
        lines = seed.splitlines()
        lines[rng.randrange(len(lines))] = changed_json(rng.choice(lines), rng)
        return b"\n".join(lines) + b"\n"

    return Reader("history-jsonl", "history.jsonl of a run", seeds, as_file("history.jsonl", history.read), make)


@reader
def tuning_jsonl() -> Reader:
    trial = Trial(loss="square", features={"name": "linear"}, penalty=1.0, value=50.0, also={"label_power 0": 49.0})
    seeds = [f"{trial.model_dump_json()}\n{trial.model_dump_json()}\n".encode()]

    def read(file: Path) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a damaged file is said, and the search starts over
            return [trial.changes for trial in read_trials(file.parent)]

    def make(seed: bytes, rng: Random) -> bytes:
        return b"\n".join(changed_json(line, rng) if rng.random() < 0.5 else line for line in seed.splitlines())

    return Reader("tuning-jsonl", "tuning.jsonl of a run", seeds, as_file("tuning.jsonl", read), make)


@reader
def result_json() -> Reader:
    folder = run_folder()
    seeds = [(folder / "result.json").read_bytes(), json.dumps(result()).encode()]

    def read(data: bytes) -> object:
        (folder / "result.json").write_bytes(data)
        return fedalc.load_run(folder).metrics

    return Reader("result-json", "result.json of a run", seeds, read, changed_json)


@reader
def report_page() -> Reader:
    """The report is made from files only, so also from damaged ones."""
    folder = workplace() / "page"
    folder.mkdir(exist_ok=True)
    (folder / "history.jsonl").write_text(json.dumps(record(2)) + "\n")
    seeds = [json.dumps(result()).encode()]

    def read(data: bytes) -> None:
        """Without drawing and writing, which take seconds and get only checked numbers."""
        (folder / "result.json").write_bytes(data)
        with mock.patch("fedalc.report.page._curves", lambda *_: {}), mock.patch("fedalc.report.page.write_template"):
            write_page(folder)

    return Reader("report-page", "what the report says of a result.json", seeds, read, changed_json)


@reader
def parties_log() -> Reader:
    seeds = [b'{"round": 1, "party": "a", "what": "left out", "why": "late"}\n{"round": 2, "party": "b"}\n']
    return Reader("parties-log", "parties.jsonl of a run", seeds, as_file("parties.jsonl", read_left_out))


@cache
def _model(method: str) -> Path:
    folder = workplace() / f"model-{method}"
    if method == "fedalc":
        shutil.copytree(run_folder() / "model", folder, dirs_exist_ok=True)
    elif method == "texts":
        _model_of_texts().save(folder)
    elif method == "calibrated":
        model = fedalc.train(data=small_dataset(), tune=False).model
        assert model.calibration is not None
        model.save(folder)
    else:
        run = fedalc.train(method=method, data=small_dataset())
        run.model.save(folder)
    (folder / SUMS).unlink(missing_ok=True)  # which would keep every mutation from the parsers
    return folder


def _model_of_texts() -> TrainedModel:
    text = fit_text(["wheat and corn", "crude oil"], TextSettings())
    settings = experiment({"encoder": {"name": "linear", "dim": 2}}).encoder
    encoder = make_encoder(text.feature_count, settings, torch.Generator().manual_seed(0))
    return TrainedModel(Model(encoder, torch.eye(2)), settings, ("a", "b"), np.ones(2, dtype=bool), text)


def _load(folder: Path, method: str) -> object:
    if method != "calibrated":
        return load_model(folder)
    model = light_model(folder, "-", "cpu")  # in numpy; what it does not take goes to torch
    return model.calibration and (model.calibration.thresholds("f1"), model.calibration.score_thresholds(0.5))


def _copy(method: str, kind: str) -> Path:
    return shutil.copytree(_model(method), workplace() / f"model-{method}-{kind}", dirs_exist_ok=True)


def _facts(method: str, what: str) -> Reader:
    folder = _copy(method, "facts")
    seed = (folder / "facts.json").read_bytes()

    def read(data: bytes) -> object:
        (folder / "facts.json").write_bytes(data)
        return _load(folder, method)

    return Reader(f"model-facts-{method}", f"facts.json of {what}", [seed], read, changed_json)


def _tensors(method: str, what: str) -> Reader:
    folder = _copy(method, "tensors")
    seed = (folder / "tensors.safetensors").read_bytes()

    def read(data: bytes) -> object:
        (folder / "tensors.safetensors").write_bytes(data)
        return _load(folder, method)

    return Reader(f"model-tensors-{method}", f"tensors.safetensors of {what}", [seed], read, changed_header)


def changed_header(seed: bytes, rng: Random) -> bytes:
    """Return a safetensors file with a changed header of the stated length."""
    size = int.from_bytes(seed[:8], "little")
    header = json.dumps(changed(json.loads(seed[8 : 8 + size]), rng), default=str).encode()
    return len(header).to_bytes(8, "little") + header + seed[8 + size :]


def _register(build: Callable[[str, str], Reader], kind: str, method: str, what: str) -> None:
    def builder() -> Reader:
        return build(method, what)

    builder.__name__ = f"model_{kind}_{method}"
    reader(builder)


_MODELS = {
    "fedalc": "a model",
    "texts": "a model of raw texts",
    "calibrated": "a linear model with probabilities",
    "ovr": "an oracle (ovr)",
    "sleec": "an oracle (sleec)",
}
for _method, _what in _MODELS.items():
    _register(_facts, "facts", _method, _what)
    _register(_tensors, "tensors", _method, _what)


@reader
def sentence_encoder() -> Reader:
    """modules.json and what it names, of a sentence encoder from any source."""
    from fedalc.data.text.sentence_encoder import read_pooling

    folder = workplace() / "sentence-encoder"
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"path": "1_Pooling" if kind == "Pooling" else "", "type": f"models.{kind}"} for kind in kinds]
    seed = {"modules": modules, "pooling": {"pooling_mode_mean_tokens": True}, "more": {"max_seq_length": 256}}

    def read(data: bytes) -> object:
        try:
            parts = json.loads(data)
            files = [json.dumps(parts[name]) for name in seed]
        except (ValueError, KeyError, TypeError, RecursionError):
            files = [data.decode("utf-8", "replace")] * 3
        for path, text in zip(
            ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"), files, strict=True
        ):
            (folder / path).write_text(text, encoding="utf-8", errors="replace")
        return read_pooling(folder)

    seeds = [json.dumps(seed).encode()]
    return Reader("sentence-encoder", "modules.json of a sentence encoder", seeds, read, changed_json)


@reader
def pretrained_config() -> Reader:
    """config.json of pretrained weights, from any source."""
    from transformers import ResNetConfig

    from fedalc.config.schema import EncoderSettings
    from fedalc.models.encoders.image import ResNet18, ResNet50, _pretrained

    folder = workplace() / "pretrained"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    settings = EncoderSettings(name="resnet18", pretrained=str(folder))
    shape = ResNetConfig(**ResNet18.shape)
    seed = json.dumps({"model_type": "resnet", **ResNet50.shape, "depths": [1, 1, 1, 1]}).encode()

    def read(data: bytes) -> object:
        (folder / "config.json").write_bytes(data)
        return _pretrained(settings, shape)

    return Reader("pretrained-config", "config.json of pretrained weights", [seed], read, changed_json)


@reader
def privacy_ledger() -> Reader:
    """The total ε of all runs, as `fedalc privacy` computes it."""
    ledger = Ledger(workplace() / "seed-ledger.jsonl")
    for epsilon, release in ((1.0, Release("gaussian", 4.0, 1, 1.0)), (None, None)):
        ledger.add(Charge("demo", ("name:demo",), "fedalc", 1e-5, epsilon, release))
    seed = ledger.path.read_bytes()

    def make(seed: bytes, rng: Random) -> bytes:
        lines = seed.splitlines()
        place = rng.randrange(len(lines))
        lines[place] = changed_json(lines[place], rng)
        return b"\n".join(lines) + b"\n"

    def read(path: Path) -> object:
        return [total(charges, 1e-5) for charges in by_subject(Ledger(path).charges())]

    return Reader("privacy-ledger", "the privacy ledger", [seed], as_file("ledger.jsonl", read), make)
