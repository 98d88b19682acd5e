"""`--track mlflow`: a server that MLFLOW_TRACKING_URI names, or else the database mlflow.db beside the run folders.

Look with: mlflow ui --backend-store-uri sqlite:///runs/mlflow.db
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedalc.core.atomic_files import make_folder
from fedalc.runs.folder import MLFLOW_ARTIFACTS, MLFLOW_DATABASE
from fedalc.training.callbacks.tracker import Tracker

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment

LONGEST = 500  # characters of a parameter that MLflow takes
AT_ONCE = 100  # parameters per call


class MLflow(Tracker):
    """Settings as parameters, curves as metrics, result.json and the report as artifacts. One database holds all runs
    of a folder, so that MLflow can compare them; making it takes some seconds."""

    help = "logs to MLflow: MLFLOW_TRACKING_URI, or mlflow.db beside the run folders"
    package = "mlflow"

    def open(self, folder: Path, settings: Experiment, before: str | None) -> str:
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # not a line per table of a new database
        given = os.environ.get("MLFLOW_TRACKING_URI")
        database = (folder.parent / MLFLOW_DATABASE).resolve()
        self._client = MlflowClient(tracking_uri=given or f"sqlite:///{database}")
        if before is not None:
            self._run = before
            self._client.update_run(before, status="RUNNING")
            return before
        name = f"fedalc {Path(settings.dataset).name}"
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name, None if given else _uri(folder)) if found is None else None
        experiment_id = experiment or (found.experiment_id if found else "0")
        run = self._client.create_run(experiment_id, run_name=folder.name, tags={"method": settings.method})
        self._run = str(run.info.run_id)
        return self._run

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:LONGEST]) for name, value in settings.items()]
        for some in _in_parts(params, AT_ONCE):
            self._client.log_batch(self._run, params=some)

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run, [Metric(allowed(name), value, now, step) for name, value in figures.items()])

    def close(self, figures: Mapping[str, float], result: Mapping[str, Any], report: Path | None) -> None:
        self.log_figures(figures, int(result["rounds"]))
        if result.get("kept"):
            self._client.set_tag(self._run, "kept", str(result["kept"]))
        self._client.log_dict(self._run, dict(result), "result.json")
        if report is not None:
            self._client.log_artifact(self._run, str(report))
        self._client.set_terminated(self._run)


def allowed(name: str) -> str:
    """Return a name that MLflow takes: it refuses "@".

    >>> allowed("select/validation P@1")
    'select/validation P_at_1'
    """
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def _uri(folder: Path) -> str:
    place = folder.parent / MLFLOW_ARTIFACTS
    make_folder(place)
    return place.resolve().as_uri()


def _in_parts(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    left = list(items)
    return [left[at : at + size] for at in range(0, len(left), size)]
