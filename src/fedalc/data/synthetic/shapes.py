"""Synthetic problems with the sizes of the largest public datasets, to measure time and memory. Not the real data.

`amazoncat-shaped`, `wikilshtc-shaped` and `amazon670k-shaped` match the catalog exactly in instances, features, labels
and labels per instance. They have about 71, 42 and 76 non-zero features per instance, which is probably close to the
real data. Everything else comes from a model (`world`) with correlated labels, so that there is something to learn.

Files of `write_shaped` read back as the same numbers. A name and a seed always give the same numbers, except for single
digits on machines whose logarithms differ in the last bit.
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
    """Generate the problem of this name. A name that ends with `-100th`, `-1000th`, … divides every count by that."""
    world = World(catalog.entry(name), seed)
    return Dataset(world.name, world.split("train"), world.split("test"), tuple(map(str, range(world.labels))))


def shaped_labels(name: str, seed: int = SEED) -> csr_matrix:
    """Generate only the training labels of this problem."""
    return World(catalog.entry(name), seed).label_sets("train")


def write_shaped(
    name: str, folder: Path, seed: int = SEED, progress: Callable[[str, int, int], None] | None = None
) -> None:
    """Write the problem as `train.txt` and `test.txt` in the repository's format, block by block.

    `progress` is called with the file name, the number of instances written and their total. Raises DataError if a file
    already exists.
    """
    world = World(catalog.entry(name), seed)
    parts: tuple[Part, ...] = ("train", "test")
    if existing := [path for part in parts if (path := folder / f"{part}.txt").exists()]:
        raise DataError("already exists: remove it, or choose another folder", existing[0])
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
    """Yield the lines of a block in the repository's format. `written` has the text of each value, in 1/10,000."""
    words, values = block.words.tolist(), np.rint(block.values * 10_000.0).astype(np.int64).tolist()
    names = labels.indices.tolist()
    ends = np.append(0, np.cumsum(block.lengths)).tolist()
    for (a, b), (first, last) in zip(pairwise(labels.indptr.tolist()), pairwise(ends), strict=True):
        pairs = [f"{word}:{written[value]}" for word, value in zip(words[first:last], values[first:last], strict=True)]
        yield f"{','.join(map(str, names[a:b]))} {' '.join(pairs)}\n"
