"""What trackers share: the figures of a run, and what happens if the tracker fails.

A tracker logs settings, the figures of every evaluated round, the result and the report. Settings name key files and
never hold keys. Its local files are in `tracking/` of the run folder.
"""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedalc.config.experiment import flat
from fedalc.core.atomic_files import make_folder, write_text
from fedalc.errors import ConfigError, FedalcError
from fedalc.runs.folder import TRACKING
from fedalc.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment

COSTS = ("rounds", "rounds_run", "seconds", "seconds_per_round", "peak_memory_mb", "bytes_up", "bytes_down")


class Tracker(Callback):
    """Logs a run to a service or to files. A tracker that fails once a run has begun is left out with a warning: the
    training goes on."""

    package: ClassVar[str]  # that does the work, of the extra `tracking`

    def __init__(self) -> None:
        if find_spec(self.package) is None:
            raise FedalcError(f"{self.package} is not installed; install it with: pip install 'fedalc[tracking]'")
        self.folder: Path | None = None
        self.settings: Experiment | None = None
        self._logged_settings = False
        self._is_open = False
        self._failed = False

    # --- what a tracker does: each of these may raise anything ---

    @abstractmethod
    def open(self, folder: Path, settings: Experiment, before: str | None) -> str:
        """Begin, or continue what an interrupted run logged under the id `before`. Return the id."""

    @abstractmethod
    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Log the settings by full name, such as `server.ridge`."""

    @abstractmethod
    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures of a round."""

    @abstractmethod
    def close(self, figures: Mapping[str, float], result: Mapping[str, Any], report: Path | None) -> None:
        """Log the result and the report, and end."""

    # --- hooks ---

    def placed(self, folder: Path) -> None:
        self.folder = folder

    def started(self, settings: Experiment) -> None:
        if self.folder is None:
            raise ConfigError(f"{self.package} needs a run folder: give folder=", "callbacks")
        self.settings = settings
        if self._is_open:
            return  # after a search, training starts with the settings that it chose
        ids = self.folder / TRACKING / "ids.json"
        known: dict[str, str] = {}
        with suppress(OSError, ValueError):
            known = dict(json.loads(ids.read_text(encoding="utf-8")))
        try:
            make_folder(self.folder / TRACKING)
            known[self.package] = self.open(self.folder, settings, known.get(self.package))
        except Exception as error:
            raise FedalcError(f"{self.package} cannot track this run: {error}") from error
        write_text(ids, json.dumps(known) + "\n")
        self._is_open = True

    def evaluated(self, record: dict[str, Any]) -> None:
        self._try(self._evaluated, record)

    def finished(self, result: Mapping[str, Any]) -> None:
        self._try(self._finished, result)
        self._is_open = False

    def _evaluated(self, record: dict[str, Any]) -> None:
        self._log_settings_once()
        self.log_figures(figures_of(record), record["round"])

    def _finished(self, result: Mapping[str, Any]) -> None:
        assert self.folder is not None
        self._log_settings_once()
        report = self.folder / "report.html"
        self.close(final_figures(result), result, report if report.exists() else None)

    def _log_settings_once(self) -> None:
        """A search changes the settings, so they are logged when training has begun."""
        if not self._logged_settings:
            assert self.settings is not None
            self.log_settings(flat(self.settings.to_dict()))
            self._logged_settings = True

    def _try(self, act: Callable[[Any], None], what: Any) -> None:
        if self._failed or not self._is_open:
            return
        try:
            act(what)
        except Exception as error:  # a service that does not answer must not cost a training
            self._failed = True
            warnings.warn(f"{self.package} failed and no longer tracks this run: {error}", stacklevel=4)


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluated round, named by phase: `select/loss`, `select/validation P@1`, …"""
    found = {"loss": record.get("loss"), **(record.get("metrics") or {}), **(record.get("collapse") or {})}
    found |= {name: record.get(name) for name in ("seconds", "bytes_up", "bytes_down")}
    return {f"{record['phase']}/{name}": float(value) for name, value in found.items() if value is not None}


def final_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a finished run: `test/P@1`, …, and what it cost."""
    metrics = {f"test/{name}": value for name, value in result["metrics"].items()}
    found = {**metrics, **{f"result/{name}": result.get(name) for name in COSTS}}
    return {name: float(value) for name, value in found.items() if value is not None}
