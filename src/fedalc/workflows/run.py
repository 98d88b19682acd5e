"""A finished run, as `train` and `load_run` return it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedalc.config.experiment import Experiment
from fedalc.core.frames import frame
from fedalc.models.trained import TrainedModel
from fedalc.oracles import TrainedOracle
from fedalc.runs import history
from fedalc.runs.folder import only_writer
from fedalc.workflows.evaluate import Evaluation, calibrated_on
from fedalc.workflows.labelled import labelled

SHOWN = ("P@1", "P@3", "P@5", "mAP")  # metrics in a short description


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run. `result` is what result.json holds (docs/run-folder.md)."""

    settings: Experiment
    result: Mapping[str, Any]
    model: TrainedModel | TrainedOracle
    folder: Path | None = None
    recorded: tuple[dict[str, Any], ...] = ()  # the records of a run without a folder

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test set, in percent."""
        return dict(self.result["metrics"])

    def evaluate(
        self,
        data: Any = None,
        labels: Any = None,
        *,
        table: Mapping[str, Any] | None = None,
        data_dir: Path | str | None = None,
    ) -> Evaluation:
        """Evaluate the model on labelled records: `evaluate(X, Y)` with texts or features as for `train`, a data frame
        that has both, a `Dataset` or its name or folder (the test data), a `Split`, or a file; by default the run's own
        dataset. Labels that the model does not know count as missed. `table`: settings of columns that are other than
        in training, such as `{"text_columns": "body"}`."""
        found = labelled(self.model, data, self.settings, data_dir, labels=labels, columns=table)
        return Evaluation(self.model, found, self.settings.memory_budget)

    def calibrate(
        self,
        data: Any,
        labels: Any = None,
        *,
        table: Mapping[str, Any] | None = None,
        data_dir: Path | str | None = None,
    ) -> Run:
        """Return the run with probabilities and thresholds fitted on labelled records that the model was not trained
        on; if the run has a folder, its model is saved with them. `data`, `labels`: as for `evaluate`, but validation
        data."""
        data = labelled(self.model, data, self.settings, data_dir, "validation", labels=labels, columns=table)
        run = replace(self, model=calibrated_on(self.model, data))
        if self.folder is not None:
            with only_writer(self.folder):
                run.model.save(self.folder / "model")
        return run

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The evaluated rounds, as the lines of history.jsonl."""
        return list(self.recorded) if self.folder is None else history.read(self.folder / "history.jsonl")

    @property
    def history(self) -> Any:
        """The evaluated rounds as a pandas frame: phase, round, loss, a column for each metric, and the cost so far.

        Without pandas, `records` has the same as a list of dicts.
        """
        return frame(_flat(record) for record in self.records)

    @property
    def _dataset(self) -> str:
        return str(self.result.get("dataset", self.settings.dataset))

    def _facts(self) -> list[tuple[str, str]]:
        """Return what a short description says."""
        result, metrics = self.result, self.metrics
        said = [(name, f"{metrics[name]:.2f} %") for name in SHOWN if metrics.get(name) is not None]
        if not said:
            others = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            said = [("metrics", others or "none, as there is no test data")]
        said.append(("rounds", str(result.get("rounds", "?"))))
        if "seconds" in result:
            said.append(("seconds", f"{result['seconds']:.1f}"))
        return [*said, *([] if self.folder is None else [("folder", str(self.folder))])]

    def __repr__(self) -> str:
        facts = "  ".join(f"{name} {value}" for name, value in self._facts())
        return f"<fedalc.Run {self.settings.method} on {self._dataset}: {facts}>"

    def _repr_html_(self) -> str:
        rows = [("method", self.settings.method), ("dataset", self._dataset), *self._facts()]
        cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
        return f"<table><caption>fedalc run</caption>{cells}</table>"


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the metrics and figures of the collapse as columns of their own."""
    columns: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            columns |= value
        elif name != "collapse":  # that of an oracle is None
            columns[name] = value
    return columns
