"""`FedALCClassifier`: a scikit-learn classifier, trained by clients that have only positive records of their label."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin

from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Dataset
from fedalc.estimators.base import FederatedEstimator
from fedalc.estimators.probability import Calibration
from fedalc.workflows.train import train_on

HELD_OUT, FEWEST = 0.2, 20  # share of the records for calibration; with fewer records, those of the training
LOWEST = np.float32(-1e30)  # the score of a label that no record has


class FedALCClassifier(ClassifierMixin, FederatedEstimator):
    """Binary, multiclass and multilabel classification, trained by clients that have positives only.

    `method`: a name of `fedalc methods`; by default the exact one in one round. `ridge`: its penalty, `dim`: the size D
    of the embeddings, `rounds`: their number, for methods that have them. `tune=True` chooses loss, penalty and
    features on held-out records (docs/tuning.md). `preset` and `settings`, a dict such as `{"encoder": {"name":
    "mlp"}}`, are those of `fedalc.train`. `random_state`: the seed.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, parties: Any = None) -> Self:
        """Train on records × features X and classes or an indicator matrix y.

        `parties` names the party of each record: then each label of each party is a client. Without it, each label is
        a client with all its records.
        """
        self._target, data = self._train(X, y, parties)
        self.classes_ = self._target.classes
        self._calibration = self._calibrate(data)
        return self

    def _calibrate(self, data: Dataset) -> Calibration:
        """Compare scores with labels of records that a second training, with the same settings, does not see."""
        model, test = self.model_, data.train
        if len(test) >= FEWEST:
            order = numpy_generator(self.settings_.seed, "calibration").permutation(len(test))
            out = round(HELD_OUT * len(test))
            rest = replace(data, train=data.train.rows(np.sort(order[out:])))
            model, test = train_on(rest, self.settings_, False).model, data.train.rows(np.sort(order[:out]))
        scores, labels = model.scores(test.features)[:, model.held], test.labels[:, model.held]
        known = np.ones(len(test), bool) if self._target.multilabel else labels.getnnz(axis=1) == 1
        return Calibration.fit(scores[known], labels[known], one_label=not self._target.multilabel)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores, records × classes; for two classes, one number for each record, positive for the second
        class."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if self._target.binary else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each label, records × labels. They sum to one unless y was an indicator matrix."""
        scores = self._scores(X)
        return self._calibration.of(scores)

    def predict(self, X: Any) -> Any:
        """Return the class of each record, or an indicator matrix if y was one."""
        scores = self._scores(X)
        if self._target.multilabel:
            return self._target.decode(self._calibration.of(scores) > 0.5)
        return self._target.decode(scores.argmax(axis=1))

    def _scores(self, X: Any) -> np.ndarray:
        features = self._fitted(X)
        return np.maximum(self.model_.scores(features), LOWEST)
