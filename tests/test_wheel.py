"""A wheel, installed in a fresh environment outside the checkout, does what README says.

`make wheel-test` installs it with all its dependencies, and runs the deployment too. Otherwise the environment borrows
the installed dependencies, but not the checkout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLEAN = os.environ.get("FEDALC_WHEEL_TEST") == "clean"
EXTRAS = "flower,images,privacy,onnx,serve"
pytestmark = pytest.mark.long
WRITE_DEMO = """
import fedalc
from pathlib import Path
data, folder = fedalc.load_dataset('demo'), Path('demo-files')
folder.mkdir()
for name, split in data.splits.items():
    X, Y = split.features, split.labels
    with (folder / f'{name}.txt').open('w') as file:
        file.write(f'{X.shape[0]} {X.shape[1]} {Y.shape[1]}\\n')
        for x, y in zip(X, Y):
            words = ' '.join(f'{i}:{v}' for i, v in zip(x.indices, x.data))
            file.write(','.join(map(str, y.indices)) + ' ' + words + '\\n')
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    isolation = [] if CLEAN else ["--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-w", str(place), str(source)]
    subprocess.run(command, check=True)
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel, and a folder to work in."""
    place = tmp_path_factory.mktemp("home")
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if CLEAN:
        subprocess.run([*install, f"fedalc[{EXTRAS}] @ {wheel.as_uri()}"], check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
    else:
        (site,) = place.glob("env/lib/python*/site-packages")
        # A folder on a .pth line is searched last, and its own .pth files, such as an editable install's, are not read.
        (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        subprocess.run([*install, "--no-deps", "--no-index", "--force-reinstall", str(wheel)], check=True)
    return place


def fedalc(home: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [home / "env" / "bin" / "fedalc", *words], cwd=home, capture_output=True, text=True, env=environment(home)
    )
    assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSTARTUP")}
    ledger = {"FEDALC_PRIVACY_LEDGER": str(home / "ledger.jsonl"), "FEDALC_CACHE": str(home / "cache")}
    return {**kept, **ledger, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def python(home: Path, code: str) -> str:
    command = [home / "env" / "bin" / "python", "-c", code]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, env=environment(home))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tracked = subprocess.run(
        ["git", "ls-files", "src/fedalc"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert sorted(name for name in names if ".dist-info/" not in name) == sorted(
        name.removeprefix("src/") for name in tracked if not name.endswith("experiments/README.md")
    )


def test_the_environment_uses_the_wheel(home: Path) -> None:
    where = python(home, "import fedalc; print(fedalc.__file__)").strip()
    assert where.startswith(str(home)), where
    assert fedalc(home, "--version").startswith("fedalc ")


def test_readmes_python(home: Path) -> None:
    (code, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert python(home, code).startswith("P@1")


def test_train_predict_compare_and_report(home: Path) -> None:
    fedalc(home, "train", "--dataset", "demo", "--no-tune", "--name", "mine")
    python(
        home,
        "import fedalc\nX = fedalc.load_dataset('demo').test.features[:3]\nwith open('new.txt', 'w') as file:\n"
        "    file.write(f'3 {X.shape[1]} 0\\n')\n    for x in X:\n"
        "        file.write(' ' + ' '.join(f'{i}:{v}' for i, v in zip(x.indices, x.data)) + '\\n')\n",
    )
    assert fedalc(home, "predict", "runs/mine", "new.txt", "--top", "2").count("\n") == 7
    few = ("--set", "rounds=4", "--set", "selection.every=2")
    methods = "fedavg,fedalc,fedalc-exact,ovr"
    fedalc(home, "compare", "--preset", "demo", "--methods", methods, "--name", "demo", *few)
    assert (home / "runs" / "demo" / "report.html").is_file()
    fedalc(home, "train", "--dataset", "demo", "--method", "fedalc", "--epsilon", "1", "--name", "private", *few)
    fedalc(home, "report", "runs/mine")
    fedalc(home, "privacy")
    fedalc(home, "audit", "demo", "--what", "collection,membership", "--records", "200")


def test_what_there_is(home: Path) -> None:
    for words in (
        ["methods"],
        ["list"],
        ["data", "list"],
        ["data", "info", "bibtex"],
        ["--help"],
        ["deploy", "--help"],
    ):
        assert fedalc(home, *words)


def test_the_papers_experiments(home: Path) -> None:
    listed = fedalc(home, "reproduce")
    assert all(name in listed for name in ("bibtex", "eurlex", "amazoncat", "voc2012", "coco", "flair"))
    some = ("--only", "paper/fedavg", "--seeds", "0", "--jobs", "1")
    fedalc(home, "reproduce", "bibtex", "--dataset", "demo", "--rounds", "2", *some)
    assert (home / "runs" / "reproduce" / "bibtex" / "index.html").is_file() or list(
        (home / "runs" / "reproduce" / "bibtex").glob("*.html")
    )


@pytest.mark.skipif(not CLEAN, reason="a minute: make wheel-test")
def test_communication(home: Path) -> None:
    fedalc(home, "reproduce", "communication")


def test_parties_with_files(home: Path) -> None:
    fedalc(home, "key", "new", "shared.key")
    python(home, WRITE_DEMO)
    fedalc(home, "collect", "client", "demo-files", "--key", "shared.key", "--out", "a.messages")
    fedalc(home, "collect", "server", "a.messages", "--out", "correlations")
    few = ("--set", "rounds=2", "--method", "fedalc", "--name", "collected")
    given = ("--correlations", "correlations", "--key", "shared.key")
    fedalc(home, "train", "--dataset", "demo-files", *given, *few)


def test_own_texts(home: Path) -> None:
    """README's commands for a table of texts, a folder per party included."""
    lines = ["text,labels"] + [
        f"{word} number {number} of {place},{word if number % 3 else f'{word};{place}'}"
        for number in range(20)
        for word in ("cough", "fever", "rash")
        for place in ("north", "south")
    ]
    (home / "messages.csv").write_text("\n".join(lines), encoding="utf-8")
    fedalc(home, "data", "check", "messages.csv")
    fedalc(home, "train", "--dataset", "messages.csv", "--name", "texts")
    assert "fever" in fedalc(home, "predict", "runs/texts", "fever number 4 of south").splitlines()[1]
    assert "P@1" in fedalc(home, "evaluate", "runs/texts", "messages.csv")
    assert "texts" in fedalc(home, "runs")
    assert "penalty" in fedalc(home, "settings", "server.ridge")
    grid = ("--grid", "regularizer.lambda=1,10", "--set", "rounds=2", "--name", "swept")
    fedalc(home, "sweep", "--dataset", "messages.csv", "--method", "fedalc", *grid)
    for place in ("north", "south"):
        (home / "clinics" / place).mkdir(parents=True)
        own = [line for line in lines if f"of {place}" in line]
        (home / "clinics" / place / "train.csv").write_text("\n".join([lines[0], *own]), encoding="utf-8")
    fedalc(home, "train", "--dataset", "clinics", "--no-tune", "--name", "parties")
    assert "rash" in fedalc(home, "predict", "runs/parties", "rash number 7")
    code = "import fedalc; print(fedalc.FedALCClassifier().fit([[1., 0], [0, 1]] * 9, [0, 1] * 9).predict([[0, 1.]]))"
    assert python(home, code).strip() == "[1]"


def test_export_and_serve(home: Path) -> None:
    if not (home / "runs" / "mine").is_dir():
        fedalc(home, "train", "--dataset", "demo", "--no-tune", "--name", "mine")
    assert "checked with onnxruntime" in fedalc(home, "export", "runs/mine", "--onnx", "mine.onnx")
    command = [home / "env" / "bin" / "fedalc", "serve", "runs/mine", "--port", "0"]
    with subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True, env=environment(home)) as process:
        try:
            assert process.stderr is not None
            address = (process.stderr.readline() + process.stderr.readline()).partition("serving at ")[2].split()[0]
            request = urllib.request.Request(
                f"{address}/predict",
                json.dumps({"sparse": [{"indices": [1], "values": [1.0]}]}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert len(json.load(answer)["predictions"][0]["labels"]) == 5
            with urllib.request.urlopen(address, timeout=30) as page:
                assert b"POST /predict" in page.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.skipif(not CLEAN, reason="two minutes: make wheel-test")
def test_a_deployment(home: Path) -> None:
    assert "equals that of one process" in fedalc(home, "deploy", "demo")
