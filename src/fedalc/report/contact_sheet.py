"""A contact sheet: pictures with the labels they have and those a model gives them, to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.images import Images
from fedalc.report.summary import text

COLUMNS = 6
RIGHT, WRONG, MISSED = "#00734f", "#b3261e", "#5f6470"
LONGEST = 22  # characters of a label's name


def write_contact_sheet(
    path: Path, images: Images, truth: csr_matrix, predicted: np.ndarray, names: tuple[str, ...]
) -> None:
    """`predicted`: the best labels of each picture, best first; as many are shown as the picture has labels.

    Under each picture: what was predicted, right in green and wrong in red, and in grey what was missed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = -(-len(images) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2.1 * COLUMNS, 2.9 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    pixels = images.pixels()
    for place, (axis, picture) in enumerate(zip(axes.flat, pixels, strict=False)):
        axis.imshow(picture, interpolation="nearest")
        has = set(truth[place].indices.tolist())
        given = [int(label) for label in predicted[place][: max(len(has), 1)]]
        lines = [(label, RIGHT if label in has else WRONG, "") for label in given]
        lines += [(label, MISSED, "missed: ") for label in sorted(has - set(given))]
        for line, (label, colour, before) in enumerate(lines[:5]):
            shown = before + text(names[label])
            shown = shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
            axis.text(0, -0.04 - 0.1 * line, shown, transform=axis.transAxes, va="top", fontsize=8, color=colour)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.98, bottom=0.08, wspace=0.12, hspace=0.6)
    figure.savefig(path, dpi=110)
    plt.close(figure)
