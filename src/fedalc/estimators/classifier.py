"""`FedALCClassifier`: a scikit-learn classifier, trained by clients that have only positive records of their label."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin

from fedalc.data.dataset import Split
from fedalc.estimators.base import FederatedEstimator, value_errors
from fedalc.estimators.probability import Line, fit_line
from fedalc.models.calibration import Calibration
from fedalc.models.thresholds import as_rule
from fedalc.training.calibration import refusal

LOWEST = -1e30  # the score of a label that no record has


class FedALCClassifier(ClassifierMixin, FederatedEstimator):
    """Binary, multiclass and multilabel classification, trained by clients that have positives only.

    `method`: a name of `fedalc methods`; by default the exact one in one round. `ridge`: its penalty, `dim`: the size D
    of the embeddings, `rounds`: their number, for methods that have them. `tune=True` chooses loss, penalty and
    features on held-out records (docs/tuning.md). `threshold`: which labels `predict` gives to a record if y is an
    indicator matrix: "f1", "precision=0.9" or a probability (docs/predictions.md). `preset` and `settings`, a dict such
    as `{"encoder": {"name": "mlp"}}`, are those of `fedalc.train`. `random_state`: the seed.
    """

    def __init__(
        self,
        method: str | None = None,
        *,
        ridge: float | None = None,
        dim: int | None = None,
        rounds: int | None = None,
        tune: bool = False,
        threshold: str | float = "f1",
        preset: str = "strong",
        settings: Any = None,
        random_state: Any = 0,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        super().__init__(
            method, ridge=ridge, dim=dim, rounds=rounds, tune=tune, preset=preset, settings=settings,
            random_state=random_state, device=device, verbose=verbose,
        )  # fmt: skip
        self.threshold = threshold

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, parties: Any = None) -> Self:
        """Train on records × features, or texts, X and classes or an indicator matrix y.

        `parties` names the party of each record: then each label of each party is a client. Without it, each label is
        a client with all its records.
        """
        with value_errors():
            as_rule(self.threshold)
        self._target, data = self._train(X, y, parties)
        self.classes_ = self._target.classes
        self._curve = self._calibrated(data.train)
        return self

    def _calibrated(self, train: Split) -> Calibration | Line | None:
        """Return what the run fitted on held-out records; with too few of them, a line through the training's own. None
        where neither is allowed, as with differential privacy."""
        if self.model_.calibration is not None or refusal(self.settings_) is not None:
            return self.model_.calibration
        held = self.model_.held
        return fit_line(self.model_.scores(train.features)[:, held], train.labels[:, held], not self._target.multilabel)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log-odds, records × classes. With two classes: of the second, one number for each record.

        Without probabilities, as with differential privacy, they are the model's scores.
        """
        scores = self._scores(X)
        odds = scores if self._curve is None else self._curve.log_odds(scores)
        return odds[:, 1] - odds[:, 0] if self._target.binary else odds

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each label, records × labels. They sum to one unless y was an indicator matrix.

        They are calibrated on held-out records; with fewer than 50 records, on the training's own. No client has
        records without a label, so that these are probabilities for records that have one.
        """
        scores = self._scores(X)
        odds = (self._curve or self.model_.calibrated()).log_odds(scores)
        found: np.ndarray = expit(odds) if self._target.multilabel else softmax(odds, axis=1)
        return found

    def predict(self, X: Any) -> Any:
        """Return the class of each record, or an indicator matrix if y was one."""
        scores = self._scores(X)
        if self._target.multilabel:
            with value_errors():
                curve = self._curve or self.model_.calibrated()
                return self._target.decode((scores >= curve.score_thresholds(self.threshold)) & (scores > LOWEST))
        return self._target.decode((scores if self._curve is None else self._curve.log_odds(scores)).argmax(axis=1))

    def _scores(self, X: Any) -> np.ndarray:
        features = self._fitted(X)
        return np.maximum(self.model_.scores(features), np.float32(LOWEST))
