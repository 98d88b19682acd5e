"""`FedALCEmbedder`: a scikit-learn transformer, whose output is the encoder's."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from fedalc.core.registry import ORACLES
from fedalc.errors import ConfigError
from fedalc.estimators.base import FederatedEstimator, value_errors


class FedALCEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FederatedEstimator):
    """Maps records to the space of the class embeddings: near records have similar labels.

    Takes the parameters of `FedALCClassifier`. `class_embeddings_` has a row for each label, in the order of
    `label_names_`; the product with a record's embedding is its score for the label.
    """

    _gives_probabilities = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def fit(self, X: Any, y: Any, parties: Any = None) -> Self:
        """Train as `FedALCClassifier.fit` does."""
        if self.method in ORACLES:
            with value_errors():
                raise ConfigError(f"{self.method} has no embeddings; use a federated method", "method")
        target, _ = self._train(X, y, parties)
        self.label_names_ = np.array(target.names, dtype=object)
        self.class_embeddings_ = self.model_.model.W.cpu().numpy()
        self._n_features_out = self.class_embeddings_.shape[1]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return records × D."""
        embedded: np.ndarray = self.model_.embed(self._fitted(X))
        return embedded
