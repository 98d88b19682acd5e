"""README's commands and code, as they stand there, with an installed wheel.

Datasets that a machine may not have are small stand-ins (`Home.data`), so a command shows that it runs, not its
figures. The figures of README's first table are those of `make demo`, which `make wheel-test` trains as it is.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
import urllib.request

import pytest

from tests.wheel.home import CLEAN, ROOT, WRITE_DEMO, Home

pytestmark = pytest.mark.long
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text below a heading of README, up to the next of the same level or a higher one."""
    level = len(title.partition(" ")[0])
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", README, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def commands(title: str) -> list[str]:
    """Return the commands of a section's code block, without their comments."""
    return [re.sub(r"\s+#.*", "", line) for line in re.findall(r"^    (fedalc .*)$", section(title), re.MULTILINE)]


LINES = commands("## On the command line")
SHORTER = {"reproduce bibtex": "--rounds 1 --seeds 0 --jobs 1", "audit bibtex": "--records 100"}
"""What would take long even on small data."""
if not CLEAN:  # `make wheel-test` trains every row of the paper's table, and all rounds elsewhere
    few = (
        "compare --dataset bibtex",
        "sweep --dataset bibtex",
        "train --dataset bibtex --method",
        "voc2012",
        "--epsilon",
    )
    SHORTER = {
        "reproduce bibtex": "--rounds 1 --seeds 0 --jobs 1 --only paper/fedavg,paper/fedalc-lambda-10",
        "audit bibtex": "--records 60 --what collection,membership",
        **dict.fromkeys(few, "--rounds 3"),
    }
APART = ("fedalc serve", "fedalc train    --resume")
"""Tested below: one does not end by itself, the other needs an interrupted run."""
OTHERS = {
    "## Your own data": "the same two commands as above",
    "## Private label sets": "test_parties_collect_with_files",
    "## Deploying": "test_wheel.py::test_a_deployment, with processes of its own",
    "### The paper's tables, cell by cell": "the same command as above",
}


def test_every_command_of_readme_is_here() -> None:
    """A new section with commands needs a test here."""
    assert len(LINES) == 20
    elsewhere = [command for title in OTHERS for command in commands(title)]
    every = re.findall(r"^    (fedalc [a-z].*?)(?: +#.*)?$", README, re.MULTILINE)
    assert sorted(every) == sorted(LINES + elsewhere)


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith(APART)])
def test_on_the_command_line(home: Home, line: str) -> None:
    assert home.messages.is_file() and home.data.is_dir()
    more = next((options for part, options in SHORTER.items() if part in " ".join(line.split())), "")
    assert home.fedalc(*shlex.split(line)[1:], *more.split())


def test_a_run_is_interrupted_and_resumed(home: Home) -> None:
    (line,) = (line for line in LINES if "--resume" in line)
    folder = home.folder / line.split()[-1]
    assert home.data.is_dir()
    begin = ["train", "--dataset", "bibtex", "--method", "fedalc", "--overwrite", "--rounds", "300"]
    more = ["--set", "selection.every=1", "--set", "selection.patience=none"]
    with subprocess.Popen(
        [home.program, *begin, *more], cwd=home.folder, stdout=subprocess.DEVNULL, env=home.environment
    ) as process:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if (folder / "checkpoint").is_dir() and not (folder / "result.json").exists():
                process.send_signal(signal.SIGINT)
                break
            time.sleep(0.05)
        process.wait(120)
    assert not (folder / "result.json").exists(), "it was finished before it could be interrupted"
    home.fedalc(*shlex.split(line)[1:])
    assert (folder / "result.json").exists()


def test_a_model_is_served(home: Home) -> None:
    (line,) = (line for line in LINES if line.startswith("fedalc serve"))
    assert home.messages.is_file()
    run = shlex.split(line)[2]
    if not (home.folder / run).is_dir():
        home.fedalc("train", "--dataset", "messages.csv", "--no-tune", "--name", run.removeprefix("runs/"))
    command = [home.program, "serve", run, "--port", "0"]
    with subprocess.Popen(command, cwd=home.folder, stderr=subprocess.PIPE, text=True, env=home.environment) as process:
        try:
            assert process.stderr is not None
            address = (process.stderr.readline() + process.stderr.readline()).partition("serving at ")[2].split()[0]
            body = json.dumps({"texts": ["fever number 4"], "top": 1}).encode()
            request = urllib.request.Request(f"{address}/predict", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert json.load(answer)["predictions"][0]["labels"][0]["name"] == "fever"
            with urllib.request.urlopen(address, timeout=30) as page:
                assert b"POST /predict" in page.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_parties_collect_with_files(home: Home) -> None:
    """README has the commands of one client; another has all other labels."""
    names = ["mine", *(f"label {number}" for number in range(1, 79))]
    home.python(WRITE_DEMO, "all")
    (home.folder / "all" / "labels.txt").write_text("\n".join(names))
    (home.folder / "my-folder").symlink_to("all")
    for line in commands("## Private label sets"):
        words = shlex.split(line)[1:]
        if words[:2] == ["collect", "server"]:
            rest = ("--labels", ",".join(names[1:]), "--out", "b.messages")
            home.fedalc("collect", "client", "all", "--key", "shared.key", *rest)
            words[words.index("*.messages") : words.index("*.messages") + 1] = ["a.messages", "b.messages"]
        home.fedalc(*words, *(("--method", "fedalc", "--rounds", "2") if words[0] == "train" else ()))


def test_in_python(home: Home) -> None:
    whole = section("## In Python")
    (block,) = re.findall(r"```python\n(.*?)```", whole, re.DOTALL)
    assert home.python(block).startswith("P@1")
    lines = re.findall(r"^    (\S.*)$", whole, re.MULTILINE)
    assert len(lines) == 4
    given = (
        "import fedalc\nimport numpy as np\n"
        "texts, labels = ['red apples', 'blue sky'] * 20, [['fruit'], ['weather']] * 20\n"
        "X, Y = np.eye(4)[np.arange(80) % 4], np.eye(4, dtype=int)[np.arange(80) % 4]\n"
    )
    assert home.python(given + "\n".join(lines) + "\nprint(run.history, model.score(X, Y))").strip().endswith("1.0")


@pytest.mark.skipif(not CLEAN, reason="minutes: make wheel-test")
def test_the_demo_gives_the_table_of_readme(home: Home) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (methods,) = re.findall(r"^DEMO := (.*)$", makefile, re.MULTILINE)
    for line in re.findall(r"^\t\$\(BIN\)/fedalc (compare --preset demo .*)$", makefile, re.MULTILINE):
        home.fedalc(*line.replace("$(DEMO)", methods).split())
    for name in methods.split(","):
        result = json.loads((home.folder / "runs" / "demo" / f"{name}-s0" / "result.json").read_text())
        (published,) = re.findall(rf"^{name} +([\d.]+) ", section("## Two commands"), re.MULTILINE)[:1]
        assert result["metrics"]["P@1"] == pytest.approx(float(published), abs=1.0), name
    assert (home.folder / "runs" / "demo-pictures" / "fedalc-exact-s0" / "contact-sheet.png").is_file()
