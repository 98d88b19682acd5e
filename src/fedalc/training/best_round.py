"""The best round of phase `select`, by `selection.metric` on validation data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedalc.config.schema import SelectionSettings
from fedalc.evaluation.metrics import find_metric
from fedalc.models.calibration import Calibration
from fedalc.models.calibration_parts import calibration_tensors, read_calibration
from fedalc.models.model import Model, model_with


class BestRound:
    """The best evaluation so far. With `keeps_model`, also a copy of its model: a refit needs only the round."""

    def __init__(self, settings: SelectionSettings, keeps_model: bool) -> None:
        self.settings = settings
        self.keeps_model = keeps_model
        self.chosen: dict[str, Any] | None = None  # its round, value and metrics, as in result.json
        self.stale = 0  # evaluations since the best one
        self._calibration: Calibration | None = None  # of its scores of validation data
        self._fit: Callable[[], Calibration | None] | None = None  # what fits it, if that is still to be done
        self._values: list[Tensor] = []  # of its model

    @property
    def patience_is_over(self) -> bool:
        return self.settings.patience is not None and self.stale >= self.settings.patience

    def consider(self, round_number: int, value: float, metrics: dict[str, float], model: Model) -> bool:
        """Take the round as the best one if its value is, or if `selection.keep` is "last". Return whether it is."""
        self.stale += 1
        if not self._is_better(value) and self.settings.keep != "last":
            return False
        self.stale = 0
        self.chosen = {"round": round_number, "value": value, "metrics": metrics}
        if self.keeps_model:
            self._values = [tensor.detach().clone() for tensor in model.values]
        return True

    def fit_later(self, fit: Callable[[], Calibration | None]) -> None:
        """Keep what fits the best round's calibration. It is called for a checkpoint or at the end, not each round."""
        self._fit = fit

    @property
    def calibration(self) -> Calibration | None:
        if self._fit is not None:
            self._calibration, self._fit = self._fit(), None
        return self._calibration

    def _is_better(self, value: float) -> bool:
        return self.chosen is None or find_metric(self.settings.metric).is_better(value, self.chosen["value"])

    def model(self, like: Model) -> Model:
        """Return the model of the best round."""
        return model_with(like, self._values)

    def facts(self) -> dict[str, Any]:
        return {"chosen": self.chosen, "stale": self.stale}

    def tensors(self, model: Model) -> dict[str, Tensor]:
        """Return the kept model and calibration for a checkpoint. W, which comes last, is complete in the first
        process."""
        values = [*self._values[:-1], *(model.all_rows(W) for W in self._values[-1:])]
        kept = {f"chosen.{i}": value for i, value in enumerate(values)}
        return kept | calibration_tensors(self.calibration)

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any], model: Model) -> None:
        self.chosen, self.stale = facts["chosen"], facts["stale"]
        self._calibration = read_calibration(tensors, len(model.W) if model.shard is None else model.shard.rows)
        names = [name for name in tensors if name.startswith("chosen.")]
        saved = [tensors[f"chosen.{i}"] for i in range(len(names))]
        # Copies: the loaded tensors are a memory map of the file, which the next checkpoint removes.
        self._values = [value.clone() for value in [*saved[:-1], *(model.own_rows(W) for W in saved[-1:])]]
