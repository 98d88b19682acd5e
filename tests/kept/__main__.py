"""`python -m tests.kept FOLDER`: make small files of every kind that users keep, with the installed version.

Run folders (finished and stopped), a comparison, a model, collected label sets, a deployment's state and run folder.
`outcome.json` has the results expected from them. Takes a minute; runs a server and two parties on 127.0.0.1.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedalc
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels, write_data
from fedalc.errors import Interrupted
from tests.commands import run
from tests.problems import StopAfter

TEXTS = DemoSize(train=60, test=20, words=80)
KEY = "fedalc-key 1\n" + bytes(range(7, 39)).hex() + "\n"  # of no party but these
LINEAR: dict[str, Any] = {"rounds": 4, "encoder": {"dim": 4}, "selection": {"every": 2, "refit": False}}
FINISHED: dict[str, dict[str, Any]] = {
    "fedalc": {"method": "fedalc"},
    "mlp": {"method": "fedaws", "encoder": {"name": "mlp", "dim": 4, "embedding": 4, "hidden": (4,)}},
    "private": {"method": "fedalc", "privacy": {"epsilon": 8.0, "mechanism": "counts"}},
    "ovr": {"method": "ovr"},
    "sleec": {"method": "sleec"},
}


def main(folder: Path) -> None:
    texts = make_demo(TEXTS)
    outcome: dict[str, Any] = {}
    for name, keys in FINISHED.items():
        settings = fedalc.experiment({**LINEAR, **keys} if name not in ("ovr", "sleec") else keys)
        done = fedalc.train(settings, data=texts, folder=folder / name)
        labels, scores = done.model.predict(texts.test.features, k=3)
        outcome[name] = {"metrics": done.metrics, "labels": labels.tolist(), "scores": scores.tolist()}
    with suppress(Interrupted):
        stop = StopAfter("select", 2)
        fedalc.train(method="fedalc", data=texts, folder=folder / "stopped", callbacks=[stop], **LINEAR)
    fedalc.compare(["fedavg", "fedalc"], dataset="demo", folder=folder / "compared", **LINEAR)
    fedalc.load_run(folder / "fedalc").model.save(folder / "model")
    with tempfile.TemporaryDirectory(prefix="fedalc-kept-") as place:
        deployed(Path(place), folder)
        collected(Path(place), folder)
    (folder / "outcome.json").write_text(json.dumps(outcome, indent=1) + "\n")
    for drawing in (*folder.rglob("*.png"), *folder.rglob("report.html")):
        drawing.unlink()  # can be made again
    for checkpoint in (folder / "compared").glob("*/checkpoint"):
        shutil.rmtree(checkpoint)


def deployed(place: Path, folder: Path) -> None:
    """Make the server's state and the run folder of two parties, without keys, certificates, logs and database."""
    data = make_demo(TEXTS)
    (place / "deployed").mkdir()
    with LocalDeployment(place / "deployed") as deployment:
        deployment.start_server()
        for number, (held, names) in enumerate(split_by_labels(data.train, data.label_names, 2)):
            deployment.add_party(f"party-{number}", held, names)
            deployment.start_party(f"party-{number}", "--fewest", "1")
        started = deployment.start_run(
            "--method", "fedalc", "--rounds", "2", "--parties", "2", "--set", "encoder.dim=4",
            "--out", str(place / "deployed" / "runs"), "--name", "deployed",
        )  # fmt: skip
        assert run_to_its_end(started, print, 600) == 0
    shutil.copytree(place / "deployed" / "runs" / "deployed", folder / "deployed")
    for path in ("parties.json", "flower/config.toml", "privacy-ledger.jsonl"):
        if (place / "deployed" / "server" / path).exists():
            (folder / "state" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place / "deployed" / "server" / path, folder / "state" / path)
    without_logs = shutil.ignore_patterns("*.log")
    shutil.copytree(place / "deployed" / "server" / "runs", folder / "state" / "runs", ignore=without_logs)


def collected(place: Path, folder: Path) -> None:
    """Make the messages of two parties and the server's result."""
    data = make_demo(TEXTS)
    (place / "parties.key").write_text(KEY)
    (place / "parties.key").chmod(0o600)
    for number, (held, names) in enumerate(split_by_labels(data.train, data.label_names, 2)):
        write_data(place / f"party-{number}", held, names)
        out = ("--key", "parties.key", "--out", str(folder.resolve() / f"party-{number}.messages"))
        run("collect", "client", f"party-{number}", *out, cwd=place)
    sent = [str(path.resolve()) for path in sorted(folder.glob("*.messages"))]
    run("collect", "server", *sent, "--out", str(folder.resolve() / "correlations"), cwd=place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
