"""Compare what a deployed round costs over its computing: with a process for each message, and with kept workers.

A server and three parties as real processes (TLS, node authentication), the `demo` dataset, float64. Every way trains the
same runs with the same keys, so that models can be compared. `--before FOLDER`: also with the fedalc in that checkout.
The seconds of a round are the server's, from its history; the computing is engine `clients` in one process.

    python benchmarks/deployed_rounds.py [--rounds 6] [--before FOLDER] [--out docs/results/deployed-rounds.json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from fedalc.data.synthetic.demo import make_demo
from fedalc.deployment.demo import pairs
from fedalc.deployment.flower.census import Census
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels, write_data
from fedalc.deployment.twin import in_one_process
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.models.trained import TrainedModel
from fedalc.runs.folder import read_settings

OUT = Path(__file__).parent.parent / "docs" / "results" / "deployed-rounds.json"
RUNS = {
    "fedalc": ["--method", "fedalc"],
    "fedalc-exact, secure sums": ["--method", "fedalc-exact", "--secure-sums"],
}
PARTIES = 3
IDLE = 60  # seconds over which the processor time of idle nodes is measured, after as long without a message
Times = dict[str, Any]


class Deployed:
    """A deployment whose parties answer in one way."""

    def __init__(self, folder: Path, key: Path, options: list[str], source: Path | None) -> None:
        self.deployment, self.options, self.key = LocalDeployment(folder), options, key
        self.source = source
        data = make_demo()
        self.train, self.test, self.names = data.train, data.test, data.label_names

    def measure(self, rounds: int) -> dict[str, Times]:
        if self.source is not None:
            os.environ["PYTHONPATH"] = str(self.source / "src")
        try:
            with self.deployment:
                self._start()
                found = {name: self._run(name, rounds) for name in RUNS}
                found["idle"] = self._idle()
            return found
        finally:
            os.environ.pop("PYTHONPATH", None)

    def _start(self) -> None:
        shutil.copy(self.key, self.deployment.key)
        self.deployment.start_server()
        for number, (split, names) in enumerate(split_by_labels(self.train, self.names, PARTIES), 1):
            self.deployment.add_party(f"party-{number}", split, names)
            self.deployment.start_party(f"party-{number}", *self.options)

    def _run(self, name: str, rounds: int) -> Times:
        run_id, folder = name.partition(",")[0], self.deployment.folder
        pseudonyms = Hasher("hmac-sha256", Key.read(self.key), run=run_id).labels(self.names)
        held_out = write_data(folder / f"held-out-{run_id}", self.test, [name.tobytes().hex() for name in pseudonyms])
        options = ["--rounds", str(rounds), "--parties", str(PARTIES), "--run-id", run_id, "--held-out", str(held_out)]
        options += ["--set", "selection.every=1", "--set", "dtype=float64", "--out", str(folder / "runs")]
        began = time.monotonic()
        if run_to_its_end(self.deployment.start_run(*RUNS[name], *options, "--name", run_id), print, 1800) != 0:
            raise SystemExit(f"{name}: the run failed")
        lines = (folder / "runs" / run_id / "history.jsonl").read_text().splitlines()
        spent = [0.0, *(json.loads(line)["seconds"] for line in lines)]
        each = [after - before for before, after in zip(spent, spent[1:], strict=False)]
        return {"rounds": each, "whole run": time.monotonic() - began}

    def _idle(self) -> Times:
        """Return the share of a processor that all processes of a party use while nothing happens, on average."""
        time.sleep(IDLE)
        before, began = self._processor_seconds(), time.monotonic()
        time.sleep(IDLE)
        spent = (self._processor_seconds() - before) / (time.monotonic() - began)
        return {"processor share per party": spent / PARTIES}

    def _processor_seconds(self) -> float:
        ids = set().union(*(process.family() for process in self.deployment.parties.values()))
        return sum(sum(psutil.Process(one).cpu_times()[:2]) for one in ids)


def computing(deployed: Deployed, name: str, rounds: int) -> list[float]:
    """Return the seconds of each round in one process."""
    folder = deployed.deployment.folder / "runs" / name.partition(",")[0]
    census = Census.load(folder)
    assert census is not None
    arguments = (deployed.train, deployed.names, deployed.key, census.run, census.roster.owner)
    training, each = in_one_process(read_settings(folder), *arguments), []
    for _ in range(rounds):
        began = time.monotonic()
        training.run_round()
        each.append(time.monotonic() - began)
    return each


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of two models, relative to the largest number; 0 if they have the same bits."""
    models = [TrainedModel.load(folder / "model").model for folder in (one, other)]
    return max(0.0 if torch.equal(a, b) else ((a - b).abs().max() / b.abs().max()).item() for _, a, b in pairs(*models))


def table(results: dict[str, Any]) -> str:
    lines = ["| run | way | seconds per round | computing | over it | whole run, s |", "|---|---|--:|--:|--:|--:|"]
    for name in RUNS:
        alone = statistics.median(results["computing"][name])
        for way, found in results["ways"].items():
            each = statistics.median(found[name]["rounds"])
            spent = f"{found[name]['whole run']:.0f}"
            lines.append(f"| {name} | {way} | {each:.2f} | {alone:.2f} | {each - alone:.2f} | {spent} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    ways: dict[str, tuple[list[str], Path | None]] = {"kept workers": ([], None)}
    ways["--fresh-processes"] = (["--fresh-processes"], None)
    if given.before is not None:
        ways["before"] = ([], given.before.resolve())
    results: dict[str, Any] = {"cores": os.cpu_count(), "load": [os.getloadavg()], "ways": {}, "difference": {}}
    with tempfile.TemporaryDirectory(prefix="fedalc-rounds-") as name:
        place, deployed = Path(name), dict[str, Deployed]()
        key = place / "parties.key"
        Key.fresh().write(key)
        for way, (options, source) in ways.items():
            folder = place / str(len(deployed))
            folder.mkdir()
            deployed[way] = Deployed(folder, key, options, source)
            results["ways"][way] = deployed[way].measure(given.rounds)
            results["load"].append(os.getloadavg())
        first = deployed["kept workers"]
        results["computing"] = {name: computing(first, name, given.rounds) for name in RUNS}
        for way, other in deployed.items():
            runs = {name: name.partition(",")[0] for name in RUNS}
            results["difference"][way] = {
                name: difference(*(each.deployment.folder / "runs" / run for each in (first, other)))
                for name, run in runs.items()
            }
    given.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    print(json.dumps(results["difference"]), {way: found["idle"] for way, found in results["ways"].items()})


if __name__ == "__main__":
    main()
