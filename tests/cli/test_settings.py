"""`fedalc settings`: every setting has a meaning, and what the command says agrees with what runs do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedalc.config.describe import all_sections, all_settings, find
from fedalc.config.experiment import Experiment, flat
from fedalc.config.resolve import experiment
from fedalc.config.schema import PRESETS
from fedalc.config.unused import acting
from fedalc.core.registry import ENCODERS, METHODS, METRICS, ORACLES
from tests.commands import run

REGISTRIES = (METHODS, ORACLES, ENCODERS, METRICS)
PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture(autouse=True, scope="module")
def built_in_only() -> Iterator[None]:
    """Leave out what other tests of this process registered."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in REGISTRIES:
            known = {name: item for name, item in registry._registered.items() if name in registry._builtin}
            patch.setattr(registry, "_registered", known)
        all_sections.cache_clear()
        yield
        all_sections.cache_clear()


def test_every_setting_of_a_run_is_there_and_has_a_meaning() -> None:
    settings = {one.name: one for one in all_settings()}
    tree = (
        "trees",
        "clusters",
        "levels",
        "beam",
        "cluster_penalty",
        "cluster_weight",
        "clusters_from",
        "nearness",
        "steps",
    )
    own = {"options", "options.shrinkage", *(f"options.{name}" for name in tree)}
    assert set(settings) == set(flat(Experiment().to_dict())) | own
    for one in settings.values():
        assert len(one.meaning) >= 10 and one.meaning[-1] in ".…)", f"{one.name} has no meaning: add a docstring"
        assert one.values not in ("", "any value"), one.name
    for section in all_sections():
        assert section.meaning or not section.name, f"[{section.name}] has no meaning: add a docstring to its class"


def test_the_page_in_docs_is_current(tmp_path: Path) -> None:
    page = run("settings", "--markdown", cwd=tmp_path).stdout
    assert page == PAGE.read_text(encoding="utf-8"), "make it again with: make settings-page"


@pytest.mark.parametrize("preset", PRESETS)
def test_defaults_are_those_that_a_run_gets(preset: str) -> None:
    for method in ("fedalc", "fedavg", "fedalc-exact", "fedalc-oneshot"):
        values = flat(experiment({"preset": preset, "method": method}).to_dict())
        for one in all_settings():
            if one.presets and (one.methods is None or method in one.methods):
                shown = one.presets[preset]
                assert shown.methods.get(method, shown.value) == values[one.name], (one.name, method)


def test_a_setting_that_acts_on_a_run_is_said_to_be_used() -> None:
    used = {one.name: one.methods for one in all_settings()}
    for method in (*METHODS, *ORACLES):
        for name in acting(experiment({"method": method})):
            assert used[name] is None or method in used[name], (name, method)


def test_who_uses_a_setting() -> None:
    (regularizer,) = (one for one in find("regularizer.lambda"))
    assert regularizer.methods == ("fedaws", "fedalc")
    (hidden,) = (one for one in find("encoder.hidden"))
    assert hidden.encoders == ("mlp",)
    (ridge,) = (one for one in find("ridge"))
    assert ridge.only_with == ("server.optimizer = cg or newton, or a method of one round",)
    (seed,) = (one for one in find("seed"))
    assert seed.methods is None and seed.values == "whole number ≥ 0 and < 4294967296"


def test_one_setting_is_explained(tmp_path: Path) -> None:
    shown = run("settings", "server.learning_rate", cwd=tmp_path).stdout
    solved = "fedalc-oneshot, fedalc-tree, fedalc-columns, fedalc-plda, fedncm, fed3r"
    assert "number > 0" in shown and f"all federated methods but {solved}" in shown
    assert "0.01 (fedaws, fedalc, fedalc-fixed 0.005)" in shown
    several = run("settings", "margin", cwd=tmp_path).stdout
    assert [name in several for name in ("client.margin", "regularizer.margin", "fixed.margin")] == [True] * 3


def test_a_section_and_a_method_narrow_the_list(tmp_path: Path) -> None:
    section = run("settings", "server", cwd=tmp_path).stdout
    assert "server.ridge" in section and "client.loss" not in section
    of_fedalc = run("settings", "--method", "fedalc", cwd=tmp_path).stdout
    assert "regularizer.weighting" in of_fedalc and "sleec.dim" not in of_fedalc
    assert "does not use sleec" in run("settings", "sleec", "--method", "fedalc", cwd=tmp_path, code=2).stderr


def test_json_has_all_of_it(tmp_path: Path) -> None:
    everything = json.loads(run("settings", "--json", cwd=tmp_path).stdout)
    assert {entry["name"] for entry in everything} == {one.name for one in all_settings()}
    (margin,) = json.loads(run("settings", "regularizer.margin", "--json", cwd=tmp_path).stdout)
    assert margin["presets"]["strong"] == {"value": 1.0, "methods": {"fedalc": 2.0}, "encoders": {}}


@pytest.mark.parametrize(
    "wrong, near",
    [("server.rigde", "server.ridge"), ("lamda", "regularizer.lambda"), ("sever", "server"), ("quux", None)],
)
def test_near_names_are_suggested(wrong: str, near: str | None, tmp_path: Path) -> None:
    message = run("settings", wrong, cwd=tmp_path, code=2).stderr
    assert f"there is no setting or section {wrong!r}" in message
    assert f"did you mean {near}" in message if near else "did you mean" not in message
    assert "unknown method" in run("settings", "--method", "nope", cwd=tmp_path, code=2).stderr
