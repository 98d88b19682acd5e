"""Compare what a deployed round costs over its computing: with a process for each message, and with kept workers.

A server and three parties as real processes (TLS, node authentication), the `demo` dataset, float64. Every way trains
the same runs with the same keys, so that models can be compared. `--before FOLDER`: also with the fedalc in that
checkout. Seconds of a round are the server's, from its history, without the first round, which starts workers.
Processor seconds are those of all processes together. The computing is engine `clients` in one process.

    python benchmarks/deployed_rounds.py [--rounds 6] [--before FOLDER] [--out docs/results/deployed-rounds.json]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
Times = dict[str, Any]


class Deployed:
    """A deployment whose parties answer in one way."""

    def __init__(self, folder: Path, key: Path, options: list[str], source: Path | None) -> None:
        self.deployment, self.options, self.key = LocalDeployment(folder), options, key
        self.source = source
        data = make_demo()
        self.train, self.test, self.names = data.train, data.test, data.label_names

    def measure(self, rounds: int, idle: int) -> dict[str, Times]:
        if self.source is not None:
            os.environ["PYTHONPATH"] = str(self.source / "src")
        try:
            with self.deployment:
                self._start()
                found = {name: self._run(name, rounds) for name in RUNS}
                found["idle"] = self._idle(idle)
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
        began, spent_after = time.monotonic(), list[float]()

        def follow(line: str) -> None:
            print(line, flush=True)
            if line.startswith("round") and "loss" in line:
                spent_after.append(self._processor_seconds(everyone=True))

        if run_to_its_end(self.deployment.start_run(*RUNS[name], *options, "--name", run_id), follow, 1800) != 0:
            raise SystemExit(f"{name}: the run failed")
        lines = (folder / "runs" / run_id / "history.jsonl").read_text().splitlines()
        spent = [0.0, *(json.loads(line)["seconds"] for line in lines)]
        each = [after - before for before, after in itertools.pairwise(spent)]
        processor = (spent_after[-1] - spent_after[0]) / (rounds - 1)
        return {"rounds": each, "processor": processor, "whole run": time.monotonic() - began}

    def _idle(self, seconds: int) -> Times:
        """Seconds over which the processor share of idle parties is measured, after as long without a message."""
        time.sleep(seconds)
        before, began = self._processor_seconds(), time.monotonic()
        time.sleep(seconds)
        spent = (self._processor_seconds() - before) / (time.monotonic() - began)
        return {"processor share per party": spent / PARTIES}

    def _processor_seconds(self, everyone: bool = False) -> float:
        """Return what the parties' processes have used, those included that have ended."""
        deployment, spent = self.deployment, 0.0
        others = (deployment.server, *deployment.runs) if everyone else ()
        for process in (*deployment.parties.values(), *others):
            for one in process.family() if process is not None else ():
                with contextlib.suppress(psutil.Error):
                    spent += sum(psutil.Process(one).cpu_times()[:4])
        return spent


def computing(deployed: Deployed, name: str, rounds: int) -> Times:
    """Return the seconds of each round in one process, and its processor seconds."""
    folder = deployed.deployment.folder / "runs" / name.partition(",")[0]
    census = Census.load(folder)
    assert census is not None
    arguments = (deployed.train, deployed.names, deployed.key, census.run, census.roster.owner)
    training, each = in_one_process(read_settings(folder), *arguments), []
    before = time.process_time()
    for _ in range(rounds):
        began = time.monotonic()
        training.run_round()
        each.append(time.monotonic() - began)
    return {"rounds": each, "processor": (time.process_time() - before) / rounds}


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of two models, relative to the largest number; 0 if they have the same bits."""
    models = [TrainedModel.load(folder / "model").model for folder in (one, other)]
    return max(0.0 if torch.equal(a, b) else ((a - b).abs().max() / b.abs().max()).item() for _, a, b in pairs(*models))


def table(results: dict[str, Any]) -> str:
    heads = "run", "way", "s per round", "over the computing", "processor s per round", "whole run, s"
    lines = [f"| {' | '.join(heads)} |", "|---|---|--:|--:|--:|--:|"]
    for name in RUNS:
        alone = statistics.median(results["computing"][name]["rounds"])
        ways = {**results["ways"], "computing alone": results["computing"]}
        for way, found in ways.items():
            each = statistics.median(found[name]["rounds"][1:])
            whole = f"{found[name]['whole run']:.0f}" if "whole run" in found[name] else ""
            lines.append(
                f"| {name} | {way} | {each:.2f} | {each - alone:.2f} | {found[name]['processor']:.2f} | {whole} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--runs", nargs="*", default=list(RUNS))
    parser.add_argument("--without", nargs="*", default=[], help="ways to leave out")
    parser.add_argument("--idle", type=int, default=60, help=Deployed._idle.__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    for name in set(RUNS) - set(given.runs):
        del RUNS[name]
    ways: dict[str, tuple[list[str], Path | None]] = {"kept workers": ([], None)}
    ways["--fresh-processes"] = (["--fresh-processes"], None)
    if given.before is not None:
        ways["before"] = ([], given.before.resolve())
    results: dict[str, Any] = {"cores": os.cpu_count(), "load": [os.getloadavg()], "ways": {}, "difference": {}}
    with tempfile.TemporaryDirectory(prefix="fedalc-rounds-") as name:
        place, deployed = Path(name), dict[str, Deployed]()
        key = place / "parties.key"
        Key.fresh().write(key)
        for way in given.without:
            del ways[way]
        for way, (options, source) in ways.items():
            folder = place / str(len(deployed))
            folder.mkdir()
            deployed[way] = Deployed(folder, key, options, source)
            results["ways"][way] = deployed[way].measure(given.rounds, given.idle)
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
