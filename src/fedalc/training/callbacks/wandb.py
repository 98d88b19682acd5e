"""`--track wandb`: Weights & Biases. Without a login it writes files only, in `tracking/wandb` of the run folder.

Upload them later with: wandb sync RUN/tracking/wandb/offline-run-…
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from fedalc.runs.folder import TRACKING
from fedalc.training.callbacks.tracker import Tracker

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment

SERVER = "https://api.wandb.ai"


class WandB(Tracker):
    """Settings as config, curves, result and report. It sends neither console output nor code, git state or facts about
    the machine. WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE are read by wandb itself."""

    help = "logs to Weights & Biases; without a login only to files in the run folder"
    package = "wandb"

    def open(self, folder: Path, settings: Experiment, before: str | None) -> str:
        import wandb

        quiet = wandb.Settings(
            console="off", disable_git=True, save_code=False, disable_code=True, silent=True, x_disable_stats=True,
            x_disable_meta=True, x_disable_machine_info=True,
        )  # fmt: skip
        self._tracked: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedalc"),
            name=folder.name,
            id=before,
            resume="allow" if before else None,
            dir=str(folder / TRACKING),
            mode=_mode(),
            reinit="create_new",
            settings=quiet,
        )
        for phase in ("select", "refit", "fit"):
            self._tracked.define_metric(f"{phase}/*", step_metric=f"{phase}/round")
        return str(self._tracked.id)

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        self._tracked.config.update(dict(settings), allow_val_change=True)

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        phase = next(iter(figures)).partition("/")[0]
        self._tracked.log({**figures, f"{phase}/round": step})

    def close(self, figures: Mapping[str, float], result: Mapping[str, Any], report: Path | None) -> None:
        import wandb

        self._tracked.summary.update({**figures, "kept": result.get("kept")})
        if report is not None:
            artifact = wandb.Artifact(f"report-{self._tracked.id}", type="report")
            artifact.add_file(str(report))
            self._tracked.log_artifact(artifact)
        self._tracked.finish()


def _mode() -> Any:
    """Return WANDB_MODE, or whether there is a login: a training must not stop to ask for one."""
    return os.environ.get("WANDB_MODE") or ("online" if _has_login() else "offline")


def _has_login() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", SERVER)).hostname
    with suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc().authenticators(str(host)) is not None
    return False
