"""A whole deployment on one machine, for the demo and for tests: server and parties as real processes.

Everything is in one folder, listens on 127.0.0.1 only, and ends with the `with` block.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Split
from fedalc.data.images.images import Images
from fedalc.deployment.certificates import Certificates, make_certificates
from fedalc.deployment.flower_programs import python_module
from fedalc.deployment.node_keys import make_node_key
from fedalc.deployment.processes import Process, free_port, is_healthy
from fedalc.deployment.state import ServerState
from fedalc.errors import FedalcError
from fedalc.labels.collection.keys import Key

HOST = "127.0.0.1"
_READY_WITHIN = 180.0  # seconds, on a busy machine


class LocalDeployment:
    """Runs the commands that users would type, each as its own process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "parties.key"
        self.state = ServerState(folder / "server")
        self.certificates = Certificates(folder / "certificates")
        self.port = free_port(HOST)
        self.server: Process | None = None
        self.parties: dict[str, Process] = {}
        self.runs: list[Process] = []

    def __enter__(self) -> LocalDeployment:
        self.make_keys()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make_keys(self) -> None:
        """Make the key that the parties share and the server's certificates."""
        Key.fresh().write(self.key)
        make_certificates(self.certificates.folder, [HOST], days=2)

    def close(self) -> None:
        """End all processes, parties before the server, so that they can sign off."""
        for process in (*self.runs, *self.parties.values(), *([self.server] if self.server else [])):
            process.end()

    @property
    def processes(self) -> set[int]:
        """The ids of all processes that are running."""
        every = (*self.runs, *self.parties.values(), *([self.server] if self.server else []))
        return set().union(*(process.family() for process in every))

    def start_server(self, environment: Mapping[str, str] | None = None) -> None:
        words = ["server", "--certificates", str(self.certificates.folder), "--host", HOST, "--port", str(self.port)]
        self.server = self._command("server", [*words, "--state", str(self.state.folder)], environment)
        self.server.wait_for(self.answers, _READY_WITHIN, "answering")

    def answers(self) -> bool:
        return is_healthy(f"{HOST}:{self.port}", self.certificates.authority)

    def add_party(self, name: str, split: Split, label_names: Sequence[str], register: bool = True) -> None:
        """Write its data, make its node key, and register it."""
        write_data(self.folder / name, split, label_names)
        public = make_node_key(self.folder / f"{name}.key")
        if register:
            self.state.add_party(name, self.state.flower.register(public))

    def start_party(
        self, name: str, *options: str, environment: Mapping[str, str] | None = None, wait: bool = True
    ) -> Process:
        words = ["party", str(self.folder / name), "--key", str(self.key), "--server", f"{HOST}:{self.port}"]
        words += ["--certificate", str(self.certificates.authority), "--node-key", str(self.folder / f"{name}.key")]
        process = self._command(name, [*words, "--client", name, *options], environment)
        self.parties[name] = process
        if wait:
            self.wait_connected(name)
        return process

    def wait_connected(self, name: str) -> None:
        process, said = self.parties[name], []

        def connected() -> bool:
            said.extend(process.new_lines())
            return any("connected" in line for line in said)

        process.wait_for(connected, _READY_WITHIN, "connected")

    def start_run(self, *options: str) -> Process:
        name = f"run-{len(self.runs) + 1}"
        process = self._command(name, ["run", "--state", str(self.state.folder), *options])
        self.runs.append(process)
        return process

    def _command(self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        command = [*python_module("fedalc"), "deploy", *words]
        # One thread each, because many processes share the machine.
        variables = {"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})}
        return Process.start(name, command, self.folder / f"{name}.out", variables)


def split_by_labels(train: Split, names: Sequence[str], parties: int) -> list[tuple[Split, list[str]]]:
    """Give each party every n-th of the labels that have an instance."""
    used = train.labels.getnnz(axis=0) > 0
    shares = [[label for label in range(first, len(names), parties) if used[label]] for first in range(parties)]
    return [(held_with(train, labels), [names[label] for label in labels]) for labels in shares]


def held_with(train: Split, labels: Iterable[int]) -> Split:
    """Return the data of a party with these labels: the instances that have one of them, without other labels."""
    columns = train.labels[:, list(labels)]
    rows = np.flatnonzero(columns.getnnz(axis=1))
    return Split(train.features[rows], columns[rows])


def write_party(folder: Path, train: Split, labels: Iterable[int], names: Iterable[str]) -> Path:
    return write_data(folder, held_with(train, labels), names)


def write_data(folder: Path, split: Split, label_names: Iterable[str]) -> Path:
    """Write a folder that `fedalc deploy party` reads."""
    folder.mkdir(parents=True)
    label_names = list(label_names)
    if isinstance(split.features, Images):
        write_pictures(folder, split.features, split.labels, label_names)
    else:
        write_xmlc(folder / "train.txt", split.features, split.labels)
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in label_names), encoding="utf-8")
    return folder


def write_pictures(folder: Path, images: Images, labels: csr_matrix, names: Sequence[str]) -> None:
    """Write each picture as a PNG file, and the list train.csv."""
    from PIL import Image

    with (folder / "train.csv").open("w", encoding="utf-8", newline="") as file:
        listed = csv.writer(file)
        listed.writerow(["picture", "labels"])
        for row, carried in enumerate(_rows(labels)):
            picture = f"{row:06d}.png"
            Image.fromarray(images[row].pixels()[0]).save(folder / picture)
            listed.writerow([picture, "|".join(names[label] for label, _ in carried)])


def write_xmlc(path: Path, features: csr_matrix, labels: csr_matrix) -> None:
    """Write numbers with all digits, so that they read back exactly."""
    lines = [f"{features.shape[0]} {features.shape[1]} {labels.shape[1]}"]
    for values, carried in zip(_rows(features), _rows(labels), strict=True):
        listed = ",".join(str(label) for label, _ in carried)
        lines.append(" ".join([listed, *(f"{index}:{value!r}" for index, value in values)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(matrix: csr_matrix) -> list[list[tuple[int, float]]]:
    matrix = matrix.sorted_indices()
    pairs = list(zip(matrix.indices.tolist(), matrix.data.tolist(), strict=True))
    return [pairs[start:stop] for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)]


def run_to_its_end(process: Process, say: Callable[[str], None], seconds: float) -> int:
    """Pass on its output until it ends, and return its exit code."""
    deadline = time.monotonic() + seconds
    while process.alive:
        for line in process.new_lines():
            say(line)
        if time.monotonic() > deadline:
            raise FedalcError(f"{process.name} has not ended within {seconds:g} s:\n{process.tail()}")
        time.sleep(0.2)
    for line in process.new_lines():
        say(line)
    assert process.code is not None
    return process.code
