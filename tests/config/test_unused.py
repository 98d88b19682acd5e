"""Notes on unused settings are true, and appear only for settings that the user gave."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

import fedalc
from fedalc.config import unused as effects
from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.config.schema import PRESETS, Settings
from fedalc.config.unused import ONLY_WITH, Fact, names_of, note_without_effect
from fedalc.core.registry import METHODS, ORACLES
from fedalc.data.text.features import fit_text
from fedalc.models.trained import TrainedModel
from fedalc.workflows.run import Run
from tests.data.text.encoders import make_encoder
from tests.problems import small_dataset, small_pictures

TINY = ["rounds=3", "encoder.dim=4", "selection.every=1", "encoder.features=unit"]
TINY_MLP = ["encoder.name=mlp", "encoder.embedding=4", "encoder.hidden=[5]", "encoder.dropout=0"]


def notes(plan: list[Experiment], names: list[str]) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        note_without_effect(plan, names)
    assert all(warning.category is UserWarning for warning in said)
    return [str(warning.message) for warning in said]


def noted(*overrides: str) -> list[str]:
    return notes([experiment(overrides=overrides)], names_of({}, overrides))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["method=fedavg", "regularizer.lambda=5"], ["regularizer.lambda has no effect with method fedavg"]),
        (
            ["method=fedavg", "regularizer.lambda=5", "regularizer.rate=1", "fixed.alpha=0.3"],
            ["regularizer.lambda, regularizer.rate and fixed.alpha have no effect with method fedavg"],
        ),
        (
            ["encoder.name=linear", "encoder.hidden=[3]", "images.size=32"],
            [
                "encoder.hidden has no effect with encoder.name linear",
                "images.size has no effect with encoder.name linear and encoder.frozen false",
            ],
        ),
        (
            ["method=fedaws", "regularizer.margin=0.5"],
            ["regularizer.margin has no effect with method fedaws and regularizer.form mined"],
        ),
        (
            ["method=ovr", "encoder.name=mlp", "rounds=9"],
            ["encoder.name and rounds have no effect with method ovr"],
        ),
        (
            ["privacy.mechanism=none", "privacy.epsilon=1"],
            ["privacy.epsilon has no effect with privacy.mechanism none"],
        ),
        (["selection.test_curve=true"], ["selection.test_curve has no effect with selection.validation 0.1"]),
        (
            ["method=fedalc-exact", "server.learning_rate=0.1"],
            ["server.learning_rate has no effect with server.optimizer cg and encoder.shortcut false"],
        ),
        (["method=fedaws", "regularizer.margin=0.5", "regularizer.form=full"], []),
        (["method=fedalc", "regularizer.margin=0.5", "client.row_learning_rate=0.1"], []),
        (["method=ovr", "encoder.features=raw", "ovr.penalties=[1]", "seed=3", "selection.metric=P@3"], []),
        (["method=fedavg", "collection.digest_bytes=20", "embeddings.start=by-frequency"], []),
        (["privacy.epsilon=1", "privacy.delta=0.001"], []),
        (["selection.test_curve=true", "selection.validation=0"], []),
        (["encoder.name=resnet-small", "images.size=32", "encoder.norm=group"], []),
    ],
    ids=lambda value: " ".join(value) if value and "=" in value[0] else "",
)
def test_what_is_said(overrides: list[str], said: list[str]) -> None:
    assert noted(*overrides) == said


def test_of_several_runs_only_what_does_nothing_in_all_is_noted() -> None:
    plan = [experiment({"method": method}) for method in ("fedavg", "fedaws", "fedalc-fixed")]
    names = ["regularizer.lambda", "fixed.alpha", "hashing.tables", "client.margin", "privacy.clip"]
    assert notes(plan, names) == [
        "hashing.tables has no effect in any of these runs",
        "privacy.clip has no effect with privacy.mechanism none",
    ]


def test_train_and_compare_say_it_and_an_experiment_is_taken_as_it_is(tmp_path: Any) -> None:
    few = {"rounds": 1, "encoder": {"name": "linear", "dim": 4}, "selection": {"validation": 0}}
    with pytest.warns(UserWarning, match=r"^fixed\.alpha has no effect with method fedavg$") as said:
        fedalc.train(data=small_dataset(), method="fedavg", fixed={"alpha": 0.3}, **few)
    assert len(said) == 1 and said[0].filename == __file__
    absent = {"dataset": str(tmp_path / "absent"), "folder": tmp_path / "c"}
    whole = r"^fixed\.alpha has no effect in any of these runs$"
    with pytest.warns(UserWarning, match=whole) as said, pytest.raises(fedalc.DataError):
        fedalc.compare(["fedavg", "fedaws"], overrides=["fixed.alpha=0.3", "regularizer.lambda=3"], **absent)
    assert len(said) == 1 and said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedalc.train(experiment({"method": "fedavg", "fixed": {"alpha": 0.3}, **few}), data=small_dataset())


@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_preset_says_is_not_noted(preset: str) -> None:
    for method in (*METHODS, *ORACLES):
        asked = {"method": method, "preset": preset, "dataset": "demo", "seed": 1, "device": "cpu"}
        assert notes([experiment(asked)], names_of(asked)) == []


def _annotation(name: str) -> Any:
    model: Any = Experiment
    for part in name.split("."):
        keys = {info.alias or key: info.annotation for key, info in model.model_fields.items()}
        model = keys[part]
    return model


def test_all_names_and_values_in_the_table_are_those_of_settings() -> None:
    for fields, needed in ONLY_WITH:
        for name in fields.split():
            _annotation(name)
        for other, values in needed.items():
            assert not (isinstance(_annotation(other), type) and issubclass(_annotation(other), Settings))
            for value in () if isinstance(values, Fact) else values:
                assert TypeAdapter(_annotation(other)).validate_python(value) == value


@pytest.mark.parametrize("method", METHODS)
def test_the_table_knows_what_methods_are(method: str) -> None:
    regularized = method in ("fedaws", "fedalc")
    assert noted(f"method={method}", "regularizer.lambda=1") == (
        [] if regularized else [f"regularizer.lambda has no effect with method {method}"]
    )
    assert noted(f"method={method}", "client.row_learning_rate=1") == (
        [] if METHODS[method].trains_rows else [f"client.row_learning_rate has no effect with method {method}"]
    )


IDLE = [
    # for each line of the table: settings with which a setting does nothing, and two values of it
    ("method=ovr", "client.learning_rate", "0.1", "7"),
    ("method=ovr", "server.participation", "1", "0.5"),
    ("method=ovr", "embeddings.start", "random", "by-frequency"),
    ("method=ovr", "collection.digest_bytes", "16", "20"),
    ("method=ovr", "engine", "fused", "clients"),
    ("method=ovr", "clients", "labels", "users"),
    ("method=ovr", "rounds", "3", "5"),
    ("method=ovr", "encoder.name", "linear", "mlp"),
    ("method=fedavg-fixed", "server.least_holders", "1", "3"),
    ("text.kind=hashing", "text.most_terms", "5", "7"),
    ("text.kind=vocabulary", "text.buckets", "64", "128"),
    ("text.kind=vocabulary", "text.terms_per_document", "4", "5"),
    ("text.kind=hashing text.idf=false", "text.epsilon", "1", "2"),
    ("text.kind=hashing", "text.batch", "2", "3"),
    ("method=sleec", "encoder.dim", "4", "7"),
    ("method=fedavg", "encoder.weights", "none", "x"),
    ("method=sleec", "selection.every", "1", "2"),
    ("method=sleec", "ovr.loss", "ridge", "logistic"),
    ("method=ovr", "sleec.dim", "3", "4"),
    ("method=fedalc-oneshot", "rounds", "1", "5"),
    ("method=fedalc-oneshot", "client.learning_rate", "0.1", "7"),
    ("method=fedalc-oneshot", "server.learning_rate", "0.1", "7"),
    ("encoder.name=linear", "encoder.embedding", "4", "7"),
    ("encoder.name=linear", "encoder.hidden", "[4]", "[7, 7]"),
    ("encoder.name=linear", "images.augment", "off", "mirror"),
    ("encoder.name=linear", "encoder.random_features", "3", "5"),
    ("encoder.name=linear", "encoder.activation", "relu", "cosine"),
    ("encoder.name=mlp", "encoder.constant", "0", "1"),
    ("encoder.name=mlp", "encoder.scale", "1", "2"),
    ("encoder.name=random-features encoder.random_features=3", "encoder.embedding", "4", "7"),
    ("method=ovr", "encoder.constant", "0", "1"),
    ("encoder.name=linear", "encoder.norm", "group", "batch"),
    ("method=fedavg-fixed", "client.row_learning_rate", "0.1", "7"),
    ("method=fedmlh", "client.row_learning_rate", "0.1", "7"),
    ("engine=fused", "client.momentum", "0", "0.9"),
    ("client.loss=square", "client.margin", "0.9", "0.1"),
    ("client.loss=hinge", "client.set_size", "exact", "ignored"),
    ("client.loss=hinge", "client.label_power", "0", "0.5"),
    ("server.optimizer=adam", "server.newton_rounds", "5", "3"),
    ("method=ovr", "tuning.axes", "false", "true"),
    ("tuning.batch=20 tuning.epochs=2", "rounds", "3", "5"),
    ("method=fedalc rounds=2", "tuning.epochs", "3", "5"),
    ("tuning.batch=20 tuning.epochs=2", "client.sample", "1", "0.5"),
    ("method=mlp mlp.epochs=2", "encoder.input_dropout", "0", "0.5"),
    ("method=ovr", "mlp.hidden", "3", "4"),
    ("encoder.name=resnet-small", "encoder.input_dropout", "0", "0.5"),
    ("method=fedalc-exact", "server.learning_rate", "0.1", "7"),
    ("method=fedalc-exact", "server.weight_decay", "0", "0.1"),
    ("server.optimizer=sgd", "server.momentum", "0", "0.9"),
    ("server.aggregation=clip", "server.trim", "0.1", "0.4"),
    ("server.aggregation=trimmed-mean", "server.byzantine", "0.1", "0.4"),
    ("server.optimizer=adagrad", "server.momentum", "0", "0.9"),
    ("server.optimizer=adagrad", "server.beta2", "0.1", "0.9"),
    ("server.optimizer=momentum", "server.beta2", "0.1", "0.9"),
    ("server.optimizer=momentum", "server.epsilon", "1", "2"),
    ("server.optimizer=adam", "server.solve_rounds", "1", "2"),
    ("method=fedalc-exact", "server.solve_rounds", "1", "2"),
    (
        "method=fedalc-exact server.optimizer=adam encoder.name=mlp encoder.shortcut=true",
        "server.solve_rounds",
        "1",
        "2",
    ),
    ("server.optimizer=adam", "server.ridge", "1", "50"),
    ("method=flag", "server.weights", "uniform", "samples"),
    ("method=fedavg", "hashing.buckets", "3", "5"),
    ("method=fedalc-fixed", "regularizer.lambda", "1", "500"),
    ("method=fedaws", "regularizer.weighting", "sigma", "gamma"),
    ("method=fedaws", "regularizer.margin", "0.3", "2"),
    ("method=fedalc regularizer.form=full", "regularizer.neighbours", "1", "5"),
    ("method=fedaws regularizer.form=full", "regularizer.candidates", "3", "5"),
    ("method=fedalc", "fixed.rate", "1", "5"),
    ("method=fedalc-fixed fixed.form=full", "fixed.neighbours", "1", "5"),
    ("method=fedavg", "collection.algorithm", "sha256", "hmac-md5"),
    ("method=fedalc", "collection.quantum", "0.1", "0.5"),
    ("method=fedalc-oneshot", "collection.records", "100", "200"),
    ("method=fedalc-oneshot", "collection.collisions", "0.1", "0.2"),
    ("method=fedalc", "collection.most_labels", "5", "6"),
    ("method=fedalc", "privacy.delta", "0.1", "0.01"),
    ("method=fedalc privacy.mechanism=none", "privacy.epsilon", "1", "9"),
    ("method=fedalc privacy.mechanism=counts privacy.noise=seeded", "privacy.clip", "1", "9"),
    ("method=fedalc privacy.mechanism=counts privacy.noise=seeded", "privacy.moments", "diagonal", "full"),
    ("method=fedalc privacy.mechanism=counts privacy.noise=seeded", "privacy.noise_parties", "2", "3"),
    (
        "method=fedalc-oneshot privacy.mechanism=sums privacy.noise=seeded secure_sums.on=true",
        "privacy.noise_parties",
        "2",
        "3",
    ),
    ("method=fedalc privacy.mechanism=counts privacy.noise=seeded", "privacy.sample_rate", "1", "0.5"),
    (
        "method=fedalc privacy.mechanism=gradients privacy.noise=seeded regularizer.weighting=sigma",
        "privacy.labels_per_instance",
        "1",
        "3",
    ),
    ("encoder.name=resnet-small", "encoder.start", "he", "framework"),
    ("encoder.name=resnet-small", "encoder.features", "raw", "unit"),
    ("method=fedavg-fixed", "secure_sums.bits", "30", "20"),
    ("method=fedalc-oneshot", "compression.down", "full", "int8"),
    ("method=fedavg-fixed", "compression.error_feedback", "false", "true"),
    ("selection.keep=last", "selection.patience", "none", "1"),
    ("selection.validation=0.1", "selection.test_curve", "false", "true"),
]
WITH_TEXTS = [("text.encoder=folder", "text.idf", "true", "false")]
FROZEN = [("encoder.name=linear encoder.frozen=true encoder.pretrained=net.pth", "images.augment", "off", "mirror")]
"""Features of a frozen network are computed once."""


@pytest.mark.few(10)
@pytest.mark.parametrize(("others", "name", "one", "another"), IDLE, ids=lambda value: str(value))
def test_a_note_is_true(others: str, name: str, one: str, another: str) -> None:
    """Training with either value gives the same result, to the last bit."""
    pictures = "resnet" in others
    shared = [*TINY, *([] if "oneshot" in others or "exact" in others else TINY_MLP), *others.split()]
    shared += ["images.size=16", "rounds=1"] if pictures else []
    results = []
    for value in (one, another):
        settings = experiment(overrides=[*shared, f"{name}={value}"])
        assert [note.split(" has no effect")[0] for note in notes([settings], [name])] == [name]
        data = small_pictures() if pictures else small_dataset(instances=80)
        results.append(_outcome(fedalc.train(settings, data=data)))
    assert results[0] == results[1]


def test_terms_beside_a_sentence_encoder_have_settings() -> None:
    for name in ("text.idf", "text.most_terms"):
        assert noted("text.encoder=folder", "text.tfidf=1", f"{name}=1") == []
        assert noted("text.encoder=folder", f"{name}=1") == [
            f"{name} has no effect with text.kind encoder and text.tfidf 0.0"
        ]


def test_terms_have_no_effect_with_a_sentence_encoder_alone(tmp_path: Path) -> None:
    folder, texts = str(make_encoder(tmp_path / "encoder")), ["wheat and corn", "cheap oil"]
    for _, name, one, another in WITH_TEXTS:
        made = [experiment(overrides=[f"text.encoder={folder}", f"{name}={value}"]).text for value in (one, another)]
        assert made[0] != made[1]
        first, second = (fit_text(texts, settings).transform(texts) for settings in made)
        assert (first != second).nnz == 0 and first.nnz > 0


def test_every_line_of_the_table_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If any line is removed, some note is missing."""
    monkeypatch.chdir(tmp_path)
    Path("net.pth").touch()
    rows = IDLE + WITH_TEXTS + FROZEN
    asked = [(experiment(overrides=[*others.split(), f"{name}={one}"]), name) for others, name, one, _ in rows]
    for place, (fields, _) in enumerate(ONLY_WITH):
        fewer = ONLY_WITH[:place] + ONLY_WITH[place + 1 :]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(effects, "ONLY_WITH", fewer)
            assert not all(notes([settings], [name]) for settings, name in asked), fields


def _outcome(run: Run) -> Any:
    figures = {key: run.result[key] for key in ("metrics", "rounds", "rounds_run", "selection", "bytes_up")}
    if not isinstance(run.model, TrainedModel):
        return figures
    numbers = [run.model.model.W, *run.model.model.encoder.state_dict().values()]
    return figures, [tensor.cpu().to(torch.float64).numpy().tobytes() for tensor in numbers]
