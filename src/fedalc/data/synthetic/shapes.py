"""Made-up problems with the true sizes of the largest public ones, to measure time and memory on. Not the real data.

What the catalog says of `amazoncat-shaped`, `wikilshtc-shaped` and `amazon670k-shaped` is met exactly: instances,
features, labels and labels per instance. Non-zero features per instance are about 71, 42 and 76, which is
believed to be near the real ones. The rest is a model (`_world`), chosen so that training on it means something.

What `write_shaped` writes is read back as the same numbers. A name and a seed give the same numbers always (but for a
digit here and there, where a machine's logarithms differ in their last bit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.catalog import datasets as catalog
from fedalc.data.dataset import Dataset
from fedalc.data.synthetic.world import Block, Part, World
from fedalc.errors import DataError

SEED = 30


def make_shaped(name: str, seed: int = SEED) -> Dataset:
    """The problem of this name, which may end with `-100th`, `-1000th`, …: every count divided by so much."""
    world = World(catalog.entry(name), seed)
    return Dataset(world.name, world.split("train"), world.split("test"), tuple(map(str, range(world.labels))))


def shaped_labels(name: str, seed: int = SEED) -> csr_matrix:
    """The training labels of the same problem alone."""
    return World(catalog.entry(name), seed).label_sets("train")


def write_shaped(
    name: str, folder: Path, seed: int = SEED, progress: Callable[[str, int, int], None] | None = None
) -> None:
    """The same problem as `train.txt` and `test.txt` in the repository's format, block by block.

    `progress` hears of the file, how many instances are written and how many there will be. Files that are there
    already are not touched: that is an error.
    """
    world = World(catalog.entry(name), seed)
    parts: tuple[Part, ...] = ("train", "test")
    if there := [path for part in parts if (path := folder / f"{part}.txt").exists()]:
        raise DataError("is there already: remove it, or name another folder", there[0])
    folder.mkdir(parents=True, exist_ok=True)
    values = [f"{ten_thousandths / 10_000:.4f}" for ten_thousandths in range(10_001)]
    for part in parts:
        labels = world.label_sets(part)
        with (folder / f"{part}.txt").open("w", encoding="ascii") as file:
            file.write(f"{labels.shape[0]} {world.features} {world.labels}\n")
            done = 0
            for block in world.blocks(part, labels):
                file.writelines(_lines(labels[done : done + len(block.lengths)], block, values))
                done += len(block.lengths)
                if progress is not None:
                    progress(f"{part}.txt", done, labels.shape[0])


def _lines(labels: csr_matrix, block: Block, written: list[str]) -> Iterator[str]:
    """The block in the repository's format. `written` has the value of each number of ten-thousandths."""
    words, values = block.words.tolist(), np.rint(block.values * 10_000.0).astype(np.int64).tolist()
    names = labels.indices.tolist()
    ends = np.append(0, np.cumsum(block.lengths)).tolist()
    for (a, b), (first, last) in zip(pairwise(labels.indptr.tolist()), pairwise(ends), strict=True):
        told = [f"{word}:{written[value]}" for word, value in zip(words[first:last], values[first:last], strict=True)]
        yield f"{','.join(map(str, names[a:b]))} {' '.join(told)}\n"
