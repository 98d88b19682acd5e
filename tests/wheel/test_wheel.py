"""A wheel, installed in a fresh environment outside the checkout, holds and does what it should.

`make wheel-test` installs it with all its dependencies, and runs the demo and a deployment too. Otherwise the
environment borrows the installed dependencies, but not the checkout.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.data.text.encoders import make_encoder
from tests.wheel.home import CLEAN, ROOT, Home

pytestmark = pytest.mark.long
FEW = ("--set", "rounds=2", "--set", "selection.every=1")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/fedalc"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert sorted(name for name in names if ".dist-info/" not in name) == sorted(
        name.removeprefix("src/") for name in tracked if not name.endswith("experiments/README.md")
    )


def test_the_environment_uses_the_wheel(home: Home) -> None:
    where = home.python("import fedalc; print(fedalc.__file__)").strip()
    assert where.startswith(str(home.folder)), where
    assert home.fedalc("--version").startswith("fedalc ")


def test_what_there_is(home: Home) -> None:
    for words in (
        ["list"],
        ["data", "list"],
        ["data", "info", "bibtex"],
        ["--help"],
        ["deploy", "--help"],
        ["privacy"],
    ):
        assert home.fedalc(*words)


def test_the_papers_experiments(home: Home) -> None:
    """Tables can be planned, and one row of each preset is trained, for two rounds. (README's command trains more.)"""
    listed = [line.split()[0] for line in home.fedalc("reproduce").splitlines()[:-1]]
    assert {"bibtex", "eurlex", "amazoncat", "voc2012", "coco", "flair"} <= set(listed)
    assert home.data.is_dir()
    for name in ("amazoncat", "eurlex", "flair", "voc2007") if CLEAN else ("eurlex", "voc2007"):
        dataset = "bibtex" if name in ("amazoncat", "eurlex") else "voc2012"
        assert "paper/fedalc" in home.fedalc("reproduce", name, "--dataset", dataset, "--dry-run"), name
    home.fedalc("reproduce", "bibtex", "--rounds", "2", "--only", "*/fedavg", "--seeds", "0", "--jobs", "1")
    assert list((home.folder / "runs" / "reproduce" / "bibtex").glob("*.html"))


def test_parties_with_texts_and_a_sentence_encoder(home: Home) -> None:
    assert home.messages.is_file()
    home.fedalc("train", "--dataset", "clinics/", "--no-tune", "--name", "parties")
    assert "rash" in home.fedalc("predict", "runs/parties", "rash number 7")
    encoder = make_encoder(home.folder / "encoder")
    home.fedalc("train", "--dataset", "messages.csv", "--text-encoder", str(encoder), "--no-tune", "--name", "encoded")
    assert home.fedalc("predict", "runs/encoded", "fever").count("\n") > 1


NAMED = {
    "sums": "--method fedalc-oneshot --epsilon 1 --set privacy.mechanism=sums",
    "gradients": "--method fedalc --epsilon 1 --set privacy.mechanism=gradients --set regularizer.weighting=sigma",
    "buckets": "--no-tune --collection sums",
    "secret": "--method fedalc-exact --set embeddings.secret=true --key secret.key",
    "tracked": "--method fedalc --track tensorboard",
}


@pytest.mark.parametrize("name", NAMED)
def test_options_that_readme_names(home: Home, name: str) -> None:
    if name == "secret":
        home.fedalc("key", "new", "secret.key")
    assert home.data.is_dir()
    few = () if "--no-tune" in NAMED[name] else FEW
    home.fedalc("train", "--dataset", "bibtex", *NAMED[name].split(), "--name", name, *few)


@pytest.mark.skipif(not CLEAN, reason="a minute: make wheel-test")
def test_communication(home: Home) -> None:
    home.fedalc("reproduce", "communication")


@pytest.mark.skipif(not CLEAN, reason="two minutes: make wheel-test")
def test_a_deployment(home: Home) -> None:
    assert "equals that of one process" in home.fedalc("deploy", "demo")
