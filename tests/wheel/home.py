"""A folder to work in, with an environment in which the wheel is installed, and small stand-ins for known datasets."""

from __future__ import annotations

import os
import subprocess
from functools import cached_property
from pathlib import Path

from tests.data.layouts import Files, annotation, pack, picture

ROOT = Path(__file__).parents[2]
CLEAN = os.environ.get("FEDALC_WHEEL_TEST") == "clean"
WRITE_DEMO = """
import sys
import fedalc
from pathlib import Path
data, folder = fedalc.load_dataset('demo'), Path(sys.argv[1])
folder.mkdir(parents=True)
for name, split in data.splits.items():
    X, Y = split.features[:600], split.labels[:600]
    with (folder / f'{name}.txt').open('w') as file:
        file.write(f'{X.shape[0]} {X.shape[1]} {Y.shape[1]}\\n')
        for x, y in zip(X, Y):
            words = ' '.join(f'{i}:{v}' for i, v in zip(x.indices, x.data))
            file.write(','.join(map(str, y.indices)) + ' ' + words + '\\n')
"""
"""Writes 600 records of the demo data of each split to a folder, as text of the XML repository."""


def pictures() -> Files:
    """Return twenty pictures in the layout of VOC 2012: red ones of dogs, and blue ones of cats."""
    stems = [f"2008_{number:06d}" for number in range(20)]
    base = "VOCdevkit/VOC2012"
    lists = {"train": stems[:14], "val": stems[14:], "trainval": stems, "test": []}
    files = {f"{base}/ImageSets/Main/{name}.txt": "\n".join(part).encode() for name, part in lists.items()}
    for at, stem in enumerate(stems):
        name, colour = ("dog", (200 + at, 20, 20)) if at % 2 else ("cat", (20, 20, 200 + at))
        files[f"{base}/Annotations/{stem}.xml"] = annotation(stem, [(name, False)])
        files[f"{base}/JPEGImages/{stem}.jpg"] = picture(colour)
    return files


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "env" / "bin" / "fedalc"

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSTARTUP")}
        own = {
            "FEDALC_PRIVACY_LEDGER": str(self.folder / "ledger.jsonl"),
            "FEDALC_CACHE": str(self.folder / "cache"),
            "FEDALC_DATA": str(self.folder / "data"),
        }
        return {**kept, **own, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def fedalc(self, *words: str, code: int = 0) -> str:
        """Run a command, which must end with this code, and return what it prints."""
        return self._run([self.program, *words], code)

    def python(self, script: str, *words: str) -> str:
        return self._run([self.folder / "env" / "bin" / "python", "-c", script, *words], 0)

    def _run(self, command: list[str | Path], code: int) -> str:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=self.environment)
        assert done.returncode == code, f"{command[1:]}: {done.stdout}{done.stderr}"
        return done.stdout

    @cached_property
    def data(self) -> Path:
        """A data folder. `bibtex` has demo records, `voc2012` twenty pictures: enough to run every command."""
        folder = self.folder / "data"
        self.python(WRITE_DEMO, str(folder / "bibtex"))
        pack(folder / "voc2012" / "any.tar", pictures())
        return folder

    @cached_property
    def messages(self) -> Path:
        """A table of texts, another of the same kind, and a folder for each of two parties."""
        lines = [
            f"{word} number {number} of {place},{word if number % 3 else f'{word};{place}'}"
            for number in range(20)
            for word in ("cough", "fever", "rash")
            for place in ("north", "south")
        ]

        def write(name: str, records: list[str]) -> Path:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["text,labels", *records]), encoding="utf-8")
            return path

        write("more.csv", lines[1::7])
        for place in ("north", "south"):
            write(f"clinics/{place}/train.csv", [line for line in lines if f"of {place}" in line])
        return write("messages.csv", lines)
