"""`fedalc deploy demo`: a real deployment on this machine, compared with a training in one process.

A server and three parties with certificates and registered keys, a fourth party whose key is not registered, three
rounds; then θ and W are compared with engine `clients` on the same data.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedalc.data.synthetic.demo import make_demo
from fedalc.deployment.flower.census import Census
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels, write_data
from fedalc.deployment.processes import signals_interrupt
from fedalc.deployment.twin import model_in_one_process
from fedalc.errors import FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from fedalc.runs.folder import read_settings

PARTIES = 3
ROUNDS = 3
RUN_ID = "demo"
TOLERANCE = 1e-9
"""Relative to the largest number. Double-precision sums in another order differ by less, even after Adam's division."""


class Demo:
    def __init__(self, folder: Path) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.began = time.monotonic()
        self.deployment = LocalDeployment(folder)
        self.folder = folder
        data = make_demo()
        self.train, self.test, self.names = data.train, data.test, data.label_names

    def say(self, line: str) -> None:
        self.console.print(f"{time.monotonic() - self.began:6.1f} s  {line}", markup=False)

    def run(self) -> None:
        self.say("making certificates for the server, and the key that the parties share")
        with self.deployment:
            self.start()
            self.refuse_a_stranger()
            run_folder = self.train_with_parties()
        if running := self.deployment.processes:
            raise FedalcError(f"processes are still running: {sorted(running)}")
        self.say("all processes have ended")
        self.compare(run_folder)

    def start(self) -> None:
        self.deployment.start_server()
        self.say(f"the server is up at 127.0.0.1:{self.deployment.port}, with TLS and node authentication")
        for number, (split, names) in enumerate(split_by_labels(self.train, self.names, PARTIES), 1):
            party = f"party-{number}"
            self.deployment.add_party(party, split, names)
            self.deployment.start_party(party, wait=False)
            self.say(f"{party} is registered, and starts with {len(split):,} instances of {len(names)} labels")
        for party in list(self.deployment.parties):
            self.deployment.wait_connected(party)
        self.say("all parties are connected")

    def refuse_a_stranger(self) -> None:
        split, names = split_by_labels(self.train, self.names, PARTIES)[0]
        self.deployment.add_party("stranger", split, names, register=False)
        process = self.deployment.start_party("stranger", "--patience", "0", wait=False)
        output: list[str] = []
        code = run_to_its_end(process, output.append, 120)
        if code == 0 or not any("refused this party" in line for line in output):
            raise FedalcError("a party whose key is not registered was accepted:\n" + "\n".join(output))
        self.say("a fourth party, whose key is not registered, was refused")

    def train_with_parties(self) -> Path:
        held_out = self.folder / "held-out"
        pseudonyms = Hasher("hmac-sha256", Key.read(self.deployment.key), run=RUN_ID).labels(self.names)
        write_data(held_out, self.test, [pseudonym.tobytes().hex() for pseudonym in pseudonyms])
        options = ["--method", "fedalc", "--rounds", str(ROUNDS), "--parties", str(PARTIES)]
        options += [
            "--set",
            "selection.every=1",
            "--set",
            "dtype=float64",
            "--held-out",
            str(held_out),
            "--run-id",
            RUN_ID,
        ]
        run = self.deployment.start_run(*options, "--out", str(self.folder / "runs"), "--name", "demo")
        if run_to_its_end(run, self.say, 900) != 0:
            raise FedalcError("the run failed")
        return self.folder / "runs" / "demo"

    def compare(self, run_folder: Path) -> None:
        settings = read_settings(run_folder)
        deployed = TrainedModel.load(run_folder / "model").model
        self.say("training the same rounds in one process, with engine `clients`")
        census = Census.load(run_folder)
        assert census is not None
        expected = model_in_one_process(
            settings, self.train, self.names, self.deployment.key, census.run, census.roster.owner
        )
        table = Table("", "numbers", "largest", "largest difference")
        worst = 0.0
        for name, ours, theirs in pairs(deployed, expected):
            largest, difference = theirs.abs().max().item(), (ours - theirs).abs().max().item()
            worst = max(worst, difference / largest)
            table.add_row(name, f"{theirs.numel():,}", f"{largest:.3g}", f"{difference:.2g}")
        self.console.print(table)
        if worst > TOLERANCE:
            raise FedalcError(f"the two models differ by {worst:.2g} of the largest number, more than {TOLERANCE:g}")
        self.say(f"the deployment's model equals that of one process, to {worst:.1g} of the largest number")


def pairs(found: Model, expected: Model) -> list[tuple[str, Tensor, Tensor]]:
    """Return (name, tensor, tensor) of all that should be equal."""
    theta = [(f"θ {number}", *both) for number, both in enumerate(zip(found.theta, expected.theta, strict=True), 1)]
    return [*theta, ("W", found.W, expected.W)]


def run_demo() -> None:
    with tempfile.TemporaryDirectory(prefix="fedalc-demo-") as folder, signals_interrupt():
        Demo(Path(folder)).run()


def main() -> None:
    try:
        run_demo()
    except FedalcError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; no process is left running")


if __name__ == "__main__":
    main()
