"""scikit-learn estimators: `FedALCClassifier` and `FedALCEmbedder`."""

from __future__ import annotations

from fedalc.estimators.classifier import FedALCClassifier
from fedalc.estimators.embedder import FedALCEmbedder

__all__ = ["FedALCClassifier", "FedALCEmbedder"]
