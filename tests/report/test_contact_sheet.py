from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from scipy.sparse import csr_matrix

from fedalc.data.images.images import Images
from fedalc.report import contact_sheet
from fedalc.report.contact_sheet import INK, QUIET, RIGHT, WRONG, write_contact_sheet
from tests.report.test_page import EVIL

NAMES = ("cat", "dog", "cow", "a very long name of a label that goes on and on", "$x^2", "漢\n字", EVIL, "h", "i")


def judged(predicted: list[int], truth: list[int]) -> list[tuple[str, str]]:
    row = csr_matrix((np.ones(len(truth)), ([0] * len(truth), truth)), shape=(1, len(NAMES)))
    return contact_sheet._judged_lines(np.array(predicted), row, NAMES)


def test_right_wrong_and_missed() -> None:
    assert judged([1, 0, 2], [2, 1]) == [("✓ dog", RIGHT), ("✗ cat", WRONG), ("missed: cow", QUIET)]
    assert judged([1, 0, 2], [0, 1, 2]) == [("✓ dog", RIGHT), ("✓ cat", RIGHT), ("✓ cow", RIGHT)]
    assert judged([1, 0], []) == [("✗ dog", WRONG)]
    assert judged([0], [0, 1]) == [("✓ cat", RIGHT), ("missed: dog", QUIET)]  # no more labels have a client
    assert judged([8, 7, 5, 4], [0, 1, 2, 3]) == [
        ("✗ i", WRONG), ("✗ h", WRONG), ("✗ 漢\N{REPLACEMENT CHARACTER}字", WRONG), ("✗ $x^2", WRONG),
        ("missed: cat", QUIET), ("and 3 more", QUIET),
    ]  # fmt: skip


def test_without_truth_scores_are_shown() -> None:
    lines = contact_sheet._scored_lines(np.array([3, 0]), np.array([0.987, -0.25]), NAMES)
    assert lines == [("0.99 a very long name of …", INK), ("-0.25 cat", INK)]
    assert all(len(words) <= contact_sheet.LONGEST for words, _ in lines)


def flat(count: int, *colour: int) -> Images:
    store = np.zeros((count, 8, 8, 3), dtype=np.uint8) + np.array(colour, dtype=np.uint8)
    return Images(store, [f"folder/{'long' * 8}{at}\udcff.jpg" for at in range(count)])


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (6, 6, 1), (8, 6, 2)])
@pytest.mark.parametrize("known", [False, True])
def test_the_sheet_is_as_large_as_it_needs(tmp_path: Path, count: int, columns: int, rows: int, known: bool) -> None:
    """One line for the picture's name, one for its label, and a free one; names are not read as markup."""
    predicted = np.arange(count)[:, None]
    truth = csr_matrix(np.eye(count, len(NAMES))) if known else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_contact_sheet(
            tmp_path / "new" / "s.png", flat(count, 250, 0, 250), predicted, np.ones((count, 1)), NAMES, truth
        )
    sheet = image.imread(tmp_path / "new" / "s.png")[..., :3]
    expected = np.array([rows * (1.75 + 3 * 0.155) + 0.1, columns * 2.0 + 0.25]) * 120
    np.testing.assert_allclose(sheet.shape[:2], expected, atol=1)
    shown = (np.abs(sheet * 255 - [250, 0, 250]) < 1).all(axis=-1).sum()
    np.testing.assert_allclose(shown, count * (1.75 * 120) ** 2, rtol=0.02)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["s.png"]
