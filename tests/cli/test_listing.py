"""`fedalc methods`: every method once, in its group, with what it is and when to use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from fedalc.cli.app import app
from fedalc.cli.listing import GROUPS
from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import ConfigError
from fedalc.methods import register_method
from fedalc.methods.fedavg import FedAvgFixed

BUILT_IN = {**METHODS._builtin, **ORACLES._builtin}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture
def own_method() -> Iterator[type]:
    class Own(FedAvgFixed):
        help = "a method of mine"

    Own.__module__ = "mine"
    yield register_method("of-mine")(Own)
    del METHODS._registered["of-mine"]


def shown() -> dict[str, list[str]]:
    """The lines below each title."""
    result = CliRunner().invoke(app, ["methods"])
    assert result.exit_code == 0, result.output
    groups: dict[str, list[str]] = {"": []}
    for line in result.stdout.splitlines():
        title = next((group for group, title in GROUPS.items() if line.strip() == title), None)
        groups.setdefault(title, []) if title else groups[list(groups)[-1]].append(line.rstrip())
    return groups


def names(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith(tuple(f"{name} " for name in [*METHODS, *ORACLES]))]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_method_says_when_to_use_it(name: str) -> None:
    method = (ORACLES if name in ORACLES else METHODS)[name]
    sentence = vars(method)["use_when"]
    assert 10 < len(sentence) <= 90 and not sentence.endswith(".")


def test_methods_are_shown_once_in_their_group() -> None:
    groups = shown()
    assert list(groups) == ["", "ours", "paper", "baseline", "centralised"]
    assert any("fedalc train --dataset NAME " in line for line in groups[""])
    assert names(groups["ours"]) == ["fedalc-exact", "fedalc-oneshot", "fedalc-tree", "fedalc-columns", "fedalc-plda"]
    assert names(groups["paper"]) == ["fedalc", "fedalc-fixed"]
    assert names(groups["centralised"]) == list(ORACLES)
    assert sorted(name for lines in groups.values() for name in names(lines)) == sorted(BUILT_IN)
    (line,) = [line for line in groups["baseline"] if line.startswith("fedncm ")]
    assert METHODS["fedncm"].help in line and METHODS["fedncm"].use_when in line


def test_a_method_of_ones_own_has_a_group_and_no_inherited_advice(own_method: type) -> None:
    groups = shown()
    (line,) = [line for line in groups["yours"] if line.startswith("of-mine")]
    assert "a method of mine" in line and FedAvgFixed.use_when not in line


def test_advice_must_be_text() -> None:
    wrong = type("Wrong", (FedAvgFixed,), {"use_when": 3})
    with pytest.raises(ConfigError, match="use_when is 3, and should be a line of text"):
        register_method("wrong")(wrong)


def test_help_groups_every_command() -> None:
    from fedalc.cli.app import COMMANDS, GROUPS

    named = [command.__name__.rstrip("_") for commands in COMMANDS.values() for command in commands]
    assert sorted([*named, *GROUPS, "remove"]) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    shown = CliRunner().invoke(app, ["--help"]).stdout
    places = [shown.index(f"─ {panel} ─") for panel in COMMANDS]
    assert places == sorted(places) and "─ Commands ─" not in shown
