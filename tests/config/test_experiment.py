from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.config.schema import PRESETS
from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import ConfigError


@pytest.mark.parametrize("method", (*METHODS, *ORACLES))
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("encoder", ["linear", "mlp"])
def test_resolved_settings_come_back_from_their_own_toml(
    tmp_path: Path, preset: str, method: str, encoder: str
) -> None:
    if encoder == "mlp" and method in METHODS and METHODS[method].one_round:
        pytest.skip("refused: see below")
    named = {} if method in METHODS and METHODS[method].encoders else {"name": encoder}
    settings = experiment({"method": method, "preset": preset, "encoder": named})
    file = tmp_path / "config.toml"
    file.write_text(settings.to_toml())
    assert experiment(file=file) == settings


@pytest.mark.parametrize(
    "key", ["client.batch_size", "client.row_learning_rate", "regularizer.candidates", "selection.patience"]
)
@pytest.mark.parametrize("preset", PRESETS)
def test_none_comes_back_as_none_whatever_the_preset_says(tmp_path: Path, preset: str, key: str) -> None:
    settings = experiment({"preset": preset}, overrides=[f"{key}=none"])
    section, name = key.split(".")
    assert getattr(getattr(settings, section), name) is None
    file = tmp_path / "config.toml"
    file.write_text(settings.to_toml())
    assert experiment(file=file) == settings


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("methods = 3", "methods"),
        ("methods.fedaws = 3", "methods.fedaws"),
        ('method = ["fedalc"]', "method"),
        ("preset = 7", "preset"),
        ('[encoder]\nname = ["mlp"]', "encoder.name"),
        ("encoder = 3", "encoder"),
    ],
)
def test_the_wrong_kind_of_value_names_the_field(tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"^{field}: "):
        experiment(file=file)


def test_strange_strings_survive_toml(tmp_path: Path) -> None:
    settings = experiment({"dataset": 'a "b"\\ c\n é', "encoder": {"hidden": [3]}})
    file = tmp_path / "config.toml"
    file.write_text(settings.to_toml(), encoding="utf-8")
    assert experiment(file=file) == settings


def test_order_of_precedence(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("rounds = 7\nseed = 3\n[server]\nema = 0.5\n")
    settings = experiment({"seed": 4}, file=file, overrides=["server.ema=0.25", "client.batch_size=none"])
    assert (settings.rounds, settings.seed, settings.server.ema) == (7, 4, 0.25)
    assert settings.client.batch_size is None


def test_one_file_for_several_methods(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("rounds = 7\n[methods.fedaws.regularizer]\nlambda = 3\n[methods.fedalc.regularizer]\nlambda = 4\n")
    assert experiment({"method": "fedaws"}, file=file).regularizer.lambda_ == 3
    assert experiment({"method": "fedalc"}, file=file).regularizer.lambda_ == 4
    assert experiment({"method": "fedalc"}, file=file, overrides=["regularizer.lambda=9"]).regularizer.lambda_ == 9
    file.write_text("[methods.fedfoo]\nrounds = 3\n")
    with pytest.raises(ConfigError, match=r"methods\.fedfoo"):
        experiment(file=file)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["round=5"], "round: there is no such setting; did you mean 'rounds'?"),
        (["server.emma=0.5"], "server.emma: there is no such setting; did you mean 'ema'?"),
        (["regularizer.lamda=3"], "did you mean 'lambda'"),
        (["rounds=0"], "rounds: "),
        (["rounds=many"], "rounds: "),
        (["seed=-1"], "seed: "),
        (["server.participation=0"], "server.participation: "),
        (["server.learning_rate=nan"], "server.learning_rate: "),
        (["client.learning_rate=-1"], "client.learning_rate: "),
        (["regularizer.margin=3"], "regularizer.margin: "),
        (["method=fedfoo"], "method: "),
        (["preset=best"], "preset: unknown preset 'best'"),
        (["engine=fused", "client.epochs=2"], "client.epochs: engine 'fused'"),
        (["regularizer.margin=adaptive", "regularizer.form=full"], "regularizer.margin: "),
        (["rounds"], "--set: expected key=value"),
        (["server=3"], "server: "),
        (["encoder.name=cnn"], "encoder.name: "),
        (["server.weight_decay=400"], "server.weight_decay: times server.learning_rate is 2"),
        (["encoder.name=linear", "encoder.dropout=0.5"], "encoder.dropout: "),
    ],
)
def test_bad_settings_name_the_field(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiment(overrides=overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("fedalc-exact", ["client.loss=hinge"], "client.loss: fedalc-exact needs a loss over all labels"),
        ("fedalc-oneshot", ["client.loss=hinge"], "client.loss: "),
        ("fedalc-exact", ["encoder.name=mlp", "encoder.start=zero"], "encoder.start: "),
        ("fedalc-exact", ["encoder.output=unit"], "server.optimizer: the objective is a quadratic only with encoder."),
        ("fedalc-exact", ["server.participation=0.5"], "server.optimizer: "),
        ("fedalc-exact", ["server.weights=uniform"], "server.optimizer: "),
        ("fedalc-exact", ["engine=clients", "client.epochs=2"], "server.optimizer: "),
        ("fedalc-exact", ["client.momentum=0.5"], "server.optimizer: "),
        ("fedalc-exact", ["encoder.name=mlp", "encoder.shortcut=false"], 'quadratic only with encoder.name = "linear"'),
        ("fedalc-exact", ["encoder.name=linear", "encoder.shortcut=true"], "encoder.shortcut: "),
        ("fedalc-exact", ["rounds=1"], "rounds: cg takes its first step in round 2"),
        (
            "fedavg-fixed",
            ["server.optimizer=cg"],
            "server.optimizer: the objective is a quadratic only with client.loss",
        ),
        ("fedavg", ["server.optimizer=cg", "client.loss=square"], "a method with fixed class embeddings"),
        ("fedalc-oneshot", ["encoder.name=mlp", "encoder.start=he"], 'quadratic only with encoder.name = "linear"'),
        ("fedalc-oneshot", ["server.optimizer=adam", "server.participation=0.5"], "method: the objective is"),
        ("fedalc-exact", ["collection.correlations=x", "collection.key=k"], "client.set_size: "),
        ("fedalc-oneshot", ["collection.correlations=x", "collection.key=k"], "client.set_size: "),
        ("fedalc-exact", ["privacy.mechanism=counts"], "client.set_size: "),
        ("fedavg", ["privacy.mechanism=counts", "client.loss=square"], "client.set_size: "),
        ("fedalc-exact", ["privacy.mechanism=gradients"], "client.set_size: "),
        ("fedalc-exact", ["privacy.mechanism=gradients", "client.set_size=expected"], "privacy.mechanism: "),
        ("fedalc-exact", ["privacy.mechanism=gradients", "client.set_size=ignored"], "privacy.mechanism: "),
        ("fedalc", ["privacy.mechanism=gradients", "embeddings.start=by-frequency"], "privacy.mechanism: "),
        ("fedalc-exact", ["client.set_size=guessed"], "client.set_size: "),
        ("fedalc-exact", ["client.label_power=1"], "client.label_power: "),
        ("fedalc-exact", ["server.ridge=-1"], "server.ridge: "),
    ],
)
def test_what_the_square_loss_cannot_be_put_together_with(method: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiment({"method": method}, overrides=overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_one_round_wants_a_linear_encoder(preset: str) -> None:
    with pytest.raises(ConfigError):
        experiment({"method": "fedalc-oneshot", "preset": preset, "encoder": {"name": "mlp"}})


def test_the_loss_brings_the_encoders_output_with_it() -> None:
    for method, loss, output in (
        ("fedalc", None, "unit"),
        ("fedalc", "square", "raw"),
        ("fedalc-exact", None, "raw"),
        ("fedalc-oneshot", None, "raw"),
    ):
        settings = experiment({"method": method, "client": {} if loss is None else {"loss": loss}})
        assert settings.encoder.output == output
    assert experiment({"client": {"loss": "square"}, "encoder": {"output": "unit"}}).encoder.output == "unit"


@pytest.mark.parametrize("set_size", ["expected", "ignored"])
@pytest.mark.parametrize("method", ["fedalc-exact", "fedalc-oneshot"])
def test_noised_counts_and_counts_from_a_file_go_with_sizes_that_are_not_told(method: str, set_size: str) -> None:
    for keys in ({"privacy": {"mechanism": "counts"}}, {"collection": {"correlations": "x", "key": "k"}}):
        assert experiment({"method": method, "client": {"set_size": set_size}, **keys}).method == method


@pytest.mark.parametrize("text", ["rounds = ", "\xff"])
def test_unreadable_toml_names_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        experiment(file=file)
    with pytest.raises(ConfigError, match="no such file"):
        experiment(file=tmp_path / "absent.toml")


def test_a_bad_value_in_a_file_names_file_and_field(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[server]\nema = 2.0\n")
    with pytest.raises(ConfigError, match=r"server\.ema: .*x\.toml"):
        experiment(file=file)


def test_settings_do_not_change_after_validation() -> None:
    with pytest.raises(Exception, match="frozen"):
        Experiment().rounds = 3  # type: ignore[misc]


@pytest.mark.parametrize("method", [method for method in METHODS if not METHODS[method].one_round])
@pytest.mark.parametrize("preset", PRESETS)
def test_settings_of_pictures_come_back_from_their_own_toml(tmp_path: Path, preset: str, method: str) -> None:
    encoder = {"name": "resnet18", "start": "he", "norm": "frozen", "pretrained": "a/b"}
    images = {"size": 64, "difficult": False, "broken": "skip", "augment": "mirror-shift"}
    keys = {"encoder": encoder, "images": images, "client": {"sample": 0.25}, "server": {"optimizer": "adam"}}
    settings = experiment({"method": method, "preset": preset, **keys})
    file = tmp_path / "config.toml"
    file.write_text(settings.to_toml())
    assert experiment(file=file) == settings
    assert settings.encoder.is_image and settings.encoder.pretrained == "a/b" and settings.images.size == 64


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "resnet-small"])
def test_resnets_are_for_pictures_and_start_without_weights_in_groups(name: str) -> None:
    encoder = experiment({"encoder": {"name": name}}).encoder
    assert encoder.is_image and (encoder.norm, encoder.pretrained) == ("group", None)
    assert not experiment({"encoder": {"name": "mlp"}}).encoder.is_image


RESNET = {"name": "resnet-small"}
SAMPLED = {"sample": 0.5}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"encoder": {**RESNET, "norm": "batch"}},
            "encoder.norm: batch normalisation makes an instance's embedding depend on the others in its client's "
            'batch, so the fused engine cannot compute it; use norm = "group" or "frozen", or engine = "clients"',
        ),
        (
            {"encoder": {**RESNET, "norm": "batch"}, "engine": "flower"},
            'encoder.norm: parties do not send their statistics of batch normalisation; use norm = "group" or "frozen"',
        ),
        (
            {"encoder": {**RESNET, "norm": "frozen"}},
            "encoder.norm: there are no statistics to keep without pretrained weights; use group",
        ),
        (
            {"encoder": {"name": "mlp", "pretrained": "a/b", "frozen": False}},
            "encoder.pretrained: mlp does not start from them: use encoder.frozen=true",
        ),
        (
            {"encoder": {**RESNET, "start": "zero"}},
            "encoder.start: the encoder resnet-small does not support 'zero'; use he or framework",
        ),
        (
            {"encoder": {**RESNET, "shortcut": True}},
            "encoder.shortcut: the encoder resnet-small does not support True; use false",
        ),
        (
            {"encoder": {**RESNET, "precision": "mixed"}, "dtype": "float64"},
            'encoder.precision: mixed is for float32; use dtype = "float32", or precision = "full"',
        ),
        (
            {"engine": "clients", "client": {**SAMPLED, "epochs": 2}},
            "client.sample: a sample is for rounds of one step; epochs and batches go through all instances. "
            "Leave one of the two out",
        ),
        (
            {"engine": "clients", "client": {**SAMPLED, "batch_size": 8}},
            "client.sample: a sample is for rounds of one step; epochs and batches go through all instances. "
            "Leave one of the two out",
        ),
        (
            {"method": "fedalc-oneshot", "client": SAMPLED},
            "client.sample: an exact solution needs all instances, not a sample of them",
        ),
        (
            {"method": "fedalc-exact", "client": SAMPLED},
            "client.sample: an exact solution needs all instances, not a sample of them",
        ),
    ],
)
def test_what_does_not_go_together_with_pictures_and_samples(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        experiment(settings)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("client", {"sample": 0}),
        ("client", {"sample": 1.5}),
        ("images", {"size": 7}),
        ("images", {"size": 1025}),
        ("images", {"broken": "keep"}),
        ("images", {"augment": "rotate"}),
        ("encoder", {**RESNET, "norm": "layer"}),
        ("selection", {"metric": "map"}),
    ],
)
def test_settings_of_pictures_out_of_range(section: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.{list(values)[-1]}: "):
        experiment({section: values})


@pytest.mark.parametrize(
    ("settings", "engine"),
    [
        ({}, "fused"),
        ({"client": {"epochs": 1, "batch_size": None}}, "fused"),
        ({"client": {"batch_size": "none"}}, "fused"),
        ({"client": {"epochs": 2}}, "lockstep"),
        ({"client": {"batch_size": 32}}, "lockstep"),
        ({"client": {"epochs": 2}, "engine": "clients"}, "clients"),
        ({"client": {"epochs": 2}, "engine": "flower"}, "flower"),
        ({"client": {"epochs": 2, "sample": 1.0}, "encoder": RESNET}, "clients"),
        ({"client": {"epochs": 2}, "method": "fedavg-fixed", "secure_sums": {"on": True}}, "clients"),
    ],
)
def test_the_engine_that_computes_the_local_schedule(settings: dict[str, Any], engine: str) -> None:
    assert experiment({"method": "fedalc", **settings}).engine == engine


def test_what_goes_together_with_pictures_and_samples() -> None:
    assert experiment({"encoder": {**RESNET, "norm": "batch"}, "engine": "clients"}).encoder.norm == "batch"
    mixed = experiment({"encoder": {**RESNET, "precision": "mixed", "dropout": 0.2}, "client": SAMPLED})
    assert (mixed.encoder.precision, mixed.client.sample) == ("mixed", SAMPLED["sample"])
    assert experiment({"client": {"sample": 1.0, "epochs": 2}, "engine": "clients"}).client.epochs == 2
    exact = experiment({"method": "fedalc-exact", "client": SAMPLED, "server": {"optimizer": "adam"}})
    assert (exact.client.loss, exact.client.sample) == ("square", SAMPLED["sample"])


@pytest.mark.parametrize(
    ("encoder", "negatives", "optimizer"),
    [("linear", None, "newton"), ("random-features", None, "newton"), ("linear", 5, "adam"), ("mlp", None, "adam")],
)
def test_other_losses_than_square_get_an_optimiser_that_fits(
    encoder: str, negatives: int | None, optimizer: str
) -> None:
    asked = {"method": "fedalc-exact", "encoder": {"name": encoder}, "client": {"loss": "logistic"}}
    if negatives is not None:
        asked["client"] = {"loss": "logistic", "negatives": negatives}
    assert experiment(asked).server.optimizer == optimizer
    with pytest.raises(ConfigError, match="a quadratic only with"):
        experiment({**asked, "server": {"optimizer": "cg"}})


def test_a_preset_may_name_its_method() -> None:
    assert experiment({"preset": "mlp"}).method == "fedalc-exact"
    assert experiment({"preset": "mlp", "method": "fedavg"}).method == "fedavg"
