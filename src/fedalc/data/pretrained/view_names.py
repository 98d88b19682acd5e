"""The views of a picture that a frozen network gets. Separate, because settings need the names and nothing else."""

from __future__ import annotations

from typing import Literal

ViewName = Literal["one", "mirror", "scales", "scales-mirror"]
