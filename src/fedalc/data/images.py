"""(stub of the data side, replaced when that is merged)"""

from __future__ import annotations

import numpy as np


class Images:
    """Pictures in the place of a feature matrix."""

    size: int
    names: tuple[str, ...]
    shape: tuple[int, int]

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice | np.ndarray) -> Images: ...
    def pixels(self) -> np.ndarray: ...
