"""Registered names: built-in, from packages, and from users."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fedalc.core import registry as module
from fedalc.core.plugins import load_plugins, plugins_in
from fedalc.core.registry import ENCODERS, METHODS, METRICS, ORACLES, Registry
from fedalc.errors import ConfigError, FedalcError


@pytest.fixture
def registry() -> Registry:
    return Registry(
        "thing", {"counter": "collections:Counter"}, "tests.core.test_registry:any_class", reserved=("taken",)
    )


def any_class(item: Any) -> Any:
    if not isinstance(item, type):
        raise ConfigError(f"{item!r} is not a thing")
    return item


def test_built_in_names_are_imported_when_used(registry: Registry) -> None:
    from collections import Counter

    assert list(registry) == ["counter"] and "counter" in registry and len(registry) == 1
    assert registry["counter"] is Counter


@pytest.mark.parametrize("kind", [METHODS, ORACLES, ENCODERS], ids=lambda kind: kind.kind)
def test_every_built_in_name_has_a_class_with_a_line_of_help(kind: Registry) -> None:
    for name in kind:
        assert kind[name].help, name


def test_a_registered_name_follows_the_built_in_ones(registry: Registry) -> None:
    registry.register("mine", int)
    assert list(registry) == ["counter", "mine"] and registry["mine"] is int


@pytest.mark.parametrize("name", ["", "two words", "a,b", "../x", "1st", 5])
def test_names_that_could_not_be_typed_are_refused(registry: Registry, name: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a thing"):
        registry.register(name, int)


def test_names_in_use_are_refused(registry: Registry) -> None:
    for name in ("counter", "taken"):
        with pytest.raises(ConfigError, match=f"its own '{name}'"):
            registry.register(name, int)
    registry.register("mine", int)
    with pytest.raises(ConfigError, match=r"builtins\.int is registered as the thing 'mine'"):
        registry.register("mine", str)


def test_the_same_definition_again_replaces_the_first(registry: Registry) -> None:
    def make() -> type:
        class Mine:
            pass

        return Mine

    first, second = make(), make()
    registry.register("mine", first)
    registry.register("mine", second)
    assert registry["mine"] is second


def test_an_unknown_name_is_refused_with_a_close_one(registry: Registry) -> None:
    said = "unknown thing 'countr' (did you mean 'counter'?); there are counter, taken. One of your own: --plugin"
    assert str(registry.problem("countr")).startswith(said)
    assert registry.problem("counter") is registry.problem("taken") is None
    assert registry.problem(["counter"]) is not None
    assert all("did you mean 'counter'?" in str(registry.problem(name)) for name in ("Counter", "COUNTER", "COUNTR "))
    for near in ("FedALC-Exact", "fedalc_exact", "FEDALC EXACT", "fedalcexact"):
        assert "did you mean 'fedalc-exact'?" in str(METHODS.problem(near))
    assert "did you mean 'fedalc'?" in str(METHODS.problem("FedALC")) and "did" not in str(METHODS.problem("xyz"))
    assert "did you mean 'P@1'?" in str(METRICS.problem("p@1"))


def test_entry_points_of_packages(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("theirs", "collections:OrderedDict", "fedalc.things")]
    points.append(EntryPoint("broken", "no_such_module:X", "fedalc.things"))
    points.append(EntryPoint("wrong", "math:pi", "fedalc.things"))
    points += [EntryPoint(name, "collections:deque", "fedalc.things") for name in ("counter", "taken")]
    monkeypatch.setattr(module, "entry_points", lambda group: points if group == "fedalc.things" else [])
    assert list(registry) == ["counter", "theirs", "broken", "wrong"]
    assert registry["theirs"].__name__ == "OrderedDict"
    with pytest.raises(FedalcError, match="the thing 'broken' of 'no_such_module:X' cannot be loaded"):
        registry["broken"]
    with pytest.raises(FedalcError, match="'wrong' of 'math:pi' cannot be loaded: 3"):
        registry["wrong"]


def test_names_are_known_without_torch(tmp_path: Path) -> None:
    code = "import sys; from fedalc.core.registry import METHODS; print('fedalc' in METHODS, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = (", "SyntaxError"),
        ("\n\nraise ValueError('why')", r"ValueError: why \(.*broken.py:3\)"),
        ("exit()", "SystemExit"),
    ],
)
def test_a_broken_plugin_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(FedalcError, match=said):
        load_plugins([str(tmp_path / "broken.py")])
    with pytest.raises(FedalcError, match="there is no such file"):
        load_plugins([str(tmp_path / "absent.py")])


def test_plugins_are_found_anywhere_on_the_command_line() -> None:
    assert plugins_in(["--plugin", "a.py", "train", "--plugin=b", "--set", "x=1"]) == ["a.py", "b"]
    assert plugins_in(["train", "--plugin"]) == []
