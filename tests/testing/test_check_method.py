"""A method from outside, with a regulariser, in one file: trained, compared, plotted and checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import fedalc
from fedalc.config.unused import note_without_effect
from fedalc.core.registry import METHODS
from fedalc.methods.base import descend
from fedalc.methods.regularizers import AllPairs, repel_within
from fedalc.report.style import styles
from tests.problems import small_dataset

PLUGIN = '''
from pathlib import Path

import fedalc
from fedalc.methods.base import descend
from fedalc.methods.regularizers import AllPairs, repel_within


@fedalc.register_method("outside")
class Outside(fedalc.Method):
    """FedAwS over all pairs."""

    help = "a method from outside"
    colour = "#123456"
    trains_rows = True
    sections = ("regularizer",)

    class Options(fedalc.Settings):
        margin: float = 1.0

    def server_step(self, W, labels, generator):
        settings = self.settings.regularizer
        return descend(W, AllPairs(repel_within(self.options.margin)), settings.lambda_ * settings.rate)


@fedalc.register_callback("outside-tracker")
class Tracker(fedalc.Callback):
    """Writes the hooks it hears of."""

    def started(self, settings):
        self.heard = [settings.method]

    def round(self, number, loss):
        self.heard.append(str(number))

    def finished(self, result):
        Path("heard.txt").write_text(" ".join([*self.heard, "P@1" if "P@1" in result["metrics"] else ""]))
'''


def fedalc_command(*words: str, cwd: Path, code: int = 0) -> str:
    """Run `fedalc …` in a separate process, so that plugins do not stay in this one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "FEDALC_CACHE": str(cwd / "cache")}
    command = [sys.executable, "-m", "fedalc", *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_method_of_one_file_trains_compares_plots_and_predicts_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(PLUGIN)
    plugin = ("--plugin", "outside.py")
    assert "outside" in fedalc_command("train", *plugin, "--help", cwd=tmp_path)
    assert "a method from outside" in fedalc_command(*plugin, "list", cwd=tmp_path)
    assert "a method from outside" in fedalc_command("list", "methods", *plugin, cwd=tmp_path)
    few = ("--dataset", "demo", "--rounds", "2", "--set", "selection.validation=0", "--set", "encoder.dim=8")
    text = fedalc_command(
        "train", *plugin, "--method", "outside", "--set", "options.margin=0.5", "--set", "fixed.alpha=3", "--name", "r",
        "--callback", "outside-tracker", *few, cwd=tmp_path,
    )  # fmt: skip
    assert "fixed.alpha has no effect with method outside" in text
    assert (tmp_path / "heard.txt").read_text() == "outside 1 2 P@1"
    wrong = fedalc_command("train", "--callback", "nobody", cwd=tmp_path, code=2)
    assert "unknown callback 'nobody'" in wrong
    config = (tmp_path / "runs/r/config.toml").read_text()
    assert 'method = "outside"' in config and "margin = 0.5" in config
    refused = fedalc_command("predict", "runs/r", "x.txt", cwd=tmp_path, code=2)
    assert "x.txt" in refused
    refused = fedalc_command("report", "runs/r", cwd=tmp_path, code=2)
    assert "unknown method 'outside'" in refused and "--plugin" in refused
    fedalc_command("report", "runs/r", *plugin, cwd=tmp_path)
    text = fedalc_command(
        "compare", *plugin, "--methods", "fedavg,outside", "--name", "c",
        "--set", "options.margin=0.7", *few, cwd=tmp_path,
    )  # fmt: skip
    assert "outside" in text
    results = json.loads((tmp_path / "runs/c/results.json").read_text())
    assert [result["method"] for result in results] == ["fedavg", "outside"]
    assert "#123456" in (tmp_path / "runs/c/report.html").read_text()
    assert (tmp_path / "runs/c/curves.png").stat().st_size > 10_000


@pytest.fixture
def registered() -> Iterator[None]:
    """Remove registrations after each test."""
    before = dict(METHODS._registered)
    yield
    METHODS._registered.clear()
    METHODS._registered.update(before)


class Pushing(fedalc.Method):
    help = "pushes all pairs apart"
    trains_rows = True
    sections: ClassVar[Any] = ("regularizer",)

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        settings = self.settings.regularizer
        return descend(W, AllPairs(repel_within(1.0)), settings.lambda_ * settings.rate)


@pytest.mark.long
@pytest.mark.usefixtures("registered")
def test_a_right_method_passes_and_is_used_in_python(tmp_path: Path) -> None:
    fedalc.register_method("pushing")(Pushing)
    assert fedalc.testing.check_method("pushing") == fedalc.testing.check_method(Pushing) == []
    few: dict[str, Any] = {"rounds": 2, "encoder": {"dim": 4}, "selection": {"validation": 0}}
    comparison = fedalc.compare(["fedaws", "pushing"], dataset=small_dataset(), folder=tmp_path, **few)
    assert [run.settings.method for run in comparison.runs] == ["fedaws", "pushing"]
    assert styles(["pushing", "fedaws"])["pushing"].colour != styles(["fedaws"])["fedaws"].colour


class Drawing(Pushing):
    """Draws from torch's global generator: a different W each time."""

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        return torch.nn.functional.normalize(W + 0.1 * torch.randn_like(W), dim=1)


class Stretching(Pushing):
    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        return 1.1 * W


class Moving(Pushing):
    trains_rows = False


class Remembering(Pushing):
    """Keeps W in the object, where no checkpoint saves it."""

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        memory = self.__dict__.setdefault("memory", W.clone())
        return torch.nn.functional.normalize(W + 0.5 * memory, dim=1)


class Counting(Pushing):
    """A loss that depends on how many pairs are computed at once."""

    def loss(self, scores: Tensor, lengths: Tensor, labels: Tensor, instances: Tensor) -> Tensor:
        return (1 - scores).square() * len(scores)


class Silent(Pushing):
    help = ""


class Demanding(Pushing):
    class Options(fedalc.Settings):
        strength: float


class Doubling(Pushing):
    def weights(self, counts: Tensor, labels: np.ndarray) -> Tensor:
        return 2 * super().weights(counts, labels)


class Late(Pushing):
    """Counts its steps in the object, and acts on the third."""

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        self.__dict__["steps"] = self.__dict__.get("steps", 0) + 1
        return W if self.__dict__["steps"] != 3 else torch.nn.functional.normalize(W + W.roll(1, 0), dim=1)


class Nothing(Pushing):
    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Any:
        return None


class Unsaid(Pushing):
    """Uses label correlations without saying so."""

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        return descend(W, self.from_labels(lambda known: AllPairs(repel_within(1.0), known)), 0.1)


@pytest.mark.few(2)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Drawing, "W after round 1 differs"),
        (Stretching, "returned rows whose length is not 1"),
        (Moving, "does not declare trains_rows = True"),
        (Remembering, "saved and restored"),
        (Counting, "the losses are"),
        (Silent, "has no help"),
        (Doubling, "sum to 2.0"),
        (Late, "saved and restored"),
        (Nothing, "returned NoneType"),
        (Unsaid, "declare uses_labels = True"),
        (Demanding, "options.strength: Field required"),
    ],
)
def test_a_wrong_method_is_found_out(method: type[fedalc.Method], said: str) -> None:
    fedalc.register_method(method.__name__)(method)
    with pytest.raises(AssertionError, match=said):
        fedalc.testing.check_method(method)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "facts",
    [{"sections": ("regulariser",)}, {"colour": "red"}, {"ignores": ("server.weights",)}, {"defaults": 5}, {"help": 3}],
    ids=str,
)
def test_wrong_facts_are_refused_at_once(facts: dict[str, Any]) -> None:
    with pytest.raises(fedalc.ConfigError, match="declares wrong facts: " + next(iter(facts))):
        fedalc.register_method("wrong")(type("Wrong", (Pushing,), facts))


@pytest.mark.usefixtures("registered")
def test_what_is_not_a_method_is_refused() -> None:
    class Lacking(fedalc.Method):
        pass

    for wrong, said in ((int, "is not a method"), (Lacking, "lacks server_step"), (Pushing(None, 3), "not a method")):  # type: ignore[arg-type]
        with pytest.raises(fedalc.ConfigError, match=said):
            fedalc.register_method("wrong")(wrong)
    with pytest.raises(fedalc.ConfigError, match="fedalc has its own 'ovr'"):
        fedalc.register_method("ovr")(Pushing)
    with pytest.raises(AssertionError, match="is not registered"):
        fedalc.testing.check_method(Pushing)


@pytest.mark.usefixtures("registered")
def test_options_are_checked() -> None:
    class WithOptions(Pushing):
        class Options(fedalc.Settings):
            strength: float = 0.1

    fedalc.register_method("with-options")(WithOptions)
    assert fedalc.experiment({"method": "with-options"}, overrides=["options.strength=3"]).options == {"strength": 3}
    for wrong, said in (({"strength": "much"}, "options.strength"), ({"strenght": 1}, "did you mean 'strength'")):
        with pytest.raises(fedalc.ConfigError, match=said):
            fedalc.experiment({"method": "with-options", "options": wrong})
    with pytest.warns(UserWarning, match=r"options\.strength has no effect with method fedavg"):
        note_without_effect([fedalc.experiment({"method": "fedavg", "options": {"strength": 1}})], ["options.strength"])


@pytest.mark.usefixtures("registered")
def test_config_toml_has_all_options_and_gives_them_back(tmp_path: Path) -> None:
    class WithOptions(Pushing):
        class Options(fedalc.Settings):
            strength: float | None = 0.1
            depth: int = 3

    fedalc.register_method("with-options")(WithOptions)
    settings = fedalc.experiment({"method": "with-options", "options": {"strength": None}})
    assert settings.options == {"strength": None, "depth": 3}
    (tmp_path / "config.toml").write_text(settings.to_toml())
    again = fedalc.experiment(file=tmp_path / "config.toml")
    assert again == settings and hash(again) == hash(settings)
