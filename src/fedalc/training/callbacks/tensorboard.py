"""`--track tensorboard`: event files in `tracking/tensorboard` of the run folder.

Look with: tensorboard --logdir runs
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedalc.runs.folder import TRACKING
from fedalc.training.callbacks.tracker import Tracker

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment


class TensorBoard(Tracker):
    """Curves of every round, settings and result as text. Files only: nothing leaves the machine."""

    help = "writes TensorBoard event files into the run folder"
    package = "tensorboard"

    def open(self, folder: Path, settings: Experiment, before: str | None) -> str:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / TRACKING / "tensorboard"), max_queue=1)
        return "tensorboard"

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        lines = "\n".join(f"    {name} = {value}" for name, value in settings.items())
        self._writer.add_text("settings", lines)
        self._writer.flush()

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name.replace(" ", "_"), value, step)
        self._writer.flush()

    def close(self, figures: Mapping[str, float], result: Mapping[str, Any], report: Path | None) -> None:
        self.log_figures(figures, int(result["rounds"]))
        if result.get("kept"):
            self._writer.add_text("kept", str(result["kept"]))
        self._writer.close()
