"""A contact sheet: images with predicted labels, compared with the true ones if these are known."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Split
from fedalc.data.images.images import Images
from fedalc.models.trained import TrainedModel
from fedalc.report.plots import new_figure, write_png
from fedalc.report.style import short
from fedalc.report.summary import text

PICTURES = 36
COLUMNS = 6
LINES = 6  # under an image, at most
RIGHT, WRONG, QUIET, INK = "#00734f", "#b3261e", "#5f6470", "#1c2024"
SIDE, GAP, LINE = 1.75, 0.25, 0.155  # inches: an image, between columns, a line of text
LONGEST = 26  # characters per line

Line = tuple[str, str]
"""Text and colour."""


def write_test_sheet(path: Path, trained: TrainedModel, test: Split, seed: int) -> None:
    """Write a sheet of test images. The seed selects them; they keep the test set's order."""
    drawn = numpy_generator(seed, "contact sheet").permutation(len(test))[:PICTURES]
    shown = test.rows(np.sort(drawn))
    most = max(int(shown.labels.getnnz(axis=1).max()), 1)
    images = shown.features if shown.pictures is None else shown.pictures
    write_contact_sheet(path, images, *trained.predict(shown.features, most), trained.label_names, shown.labels)


def write_contact_sheet(
    path: Path,
    images: Images,
    predicted: np.ndarray,
    scores: np.ndarray,
    names: tuple[str, ...],
    truth: csr_matrix | None = None,
) -> None:
    """Write the sheet. `predicted`: the best labels of each image, best first, with their `scores`.

    With `truth`, an image shows as many predictions as it has labels: right ones in green (✓), wrong ones in red (✗),
    missed labels in grey. Without it, all predictions with their scores.
    """
    below = [
        _scored_lines(predicted[row], scores[row], names)
        if truth is None
        else _judged_lines(predicted[row], truth[row], names)
        for row in range(len(images))
    ]
    columns = min(COLUMNS, len(images))
    # Rows differ in height: a line for names, the lines below the images, and a free one.
    heights = [
        SIDE + LINE * (2 + max(map(len, below[start : start + columns]))) for start in range(0, len(images), columns)
    ]
    width, height = columns * (SIDE + GAP) + GAP, sum(heights) + 0.1
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    for at, picture in enumerate(images.pixels()):
        row, column = divmod(at, columns)
        left, top = GAP + column * (SIDE + GAP), height - 0.1 - LINE - sum(heights[:row])
        axes = figure.add_axes((left / width, (top - SIDE) / height, SIDE / width, SIDE / height))
        axes.imshow(picture, interpolation="antialiased")
        axes.axis("off")
        name = (_tail(text(images.names[at])), QUIET)
        for line, (words, colour) in enumerate((name, *below[at])):
            y = top + LINE if line == 0 else top - SIDE - 0.03 - (line - 1) * LINE
            place = {"x": left / width, "y": y / height, "va": "top", "fontsize": 8 if line else 7}
            figure.text(s=words, color=colour, parse_math=False, **place)  # a "$" in a name is a dollar
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font lacks a script and draws boxes
        write_png(figure, path)


def _judged_lines(predicted: np.ndarray, truth: csr_matrix, names: tuple[str, ...]) -> list[Line]:
    has = set(truth.indices.tolist())
    given = [int(label) for label in predicted[: max(len(has), 1)]]
    lines = [_line("✓ ", names[label], RIGHT) if label in has else _line("✗ ", names[label], WRONG) for label in given]
    return _cut(lines + [_line("missed: ", names[label], QUIET) for label in sorted(has - set(given))])


def _scored_lines(predicted: np.ndarray, scores: np.ndarray, names: tuple[str, ...]) -> list[Line]:
    return _cut(
        [
            _line(f"{score:.2f} ", names[label], INK)
            for label, score in zip(predicted.tolist(), scores.tolist(), strict=True)
        ]
    )


def _line(before: str, name: str, colour: str) -> Line:
    return before + short(name, LONGEST - len(before)), colour


def _cut(lines: list[Line]) -> list[Line]:
    if len(lines) <= LINES:
        return lines
    return [*lines[: LINES - 1], (f"and {len(lines) - LINES + 1} more", QUIET)]


def _tail(name: str) -> str:
    """Shorten an image's path: its end says most."""
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]
