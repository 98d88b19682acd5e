"""Federated learning when every client has only positive examples of its own label.

import fedalc
run = fedalc.train(dataset="demo", method="fedalc")
print(run.metrics["P@1"])
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedalc import testing
    from fedalc.config.experiment import Experiment
    from fedalc.config.resolve import experiment
    from fedalc.config.schema import Settings
    from fedalc.data import Dataset, Split, load_dataset, picture_blocks, read_pictures
    from fedalc.data.formats import register_format
    from fedalc.errors import ConfigError, DataError, FedalcError
    from fedalc.estimators import FedALCClassifier, FedALCEmbedder
    from fedalc.evaluation.metrics import register_metric
    from fedalc.methods import Method, register_method
    from fedalc.models.encoders import Encoder, register_encoder
    from fedalc.models.trained import TrainedModel
    from fedalc.training.callbacks import Callback, make_callback, register_callback
    from fedalc.workflows.compare import compare
    from fedalc.workflows.run import Run
    from fedalc.workflows.sweep import Sweep, sweep
    from fedalc.workflows.train import load_run, train

# Imported on first use: `fedalc --help` must not wait for torch.
_HOMES = {
    "compare": "fedalc.workflows.compare",
    "Experiment": "fedalc.config.experiment",
    "experiment": "fedalc.config.resolve",
    "Dataset": "fedalc.data",
    "Split": "fedalc.data",
    "load_dataset": "fedalc.data",
    "picture_blocks": "fedalc.data",
    "read_pictures": "fedalc.data",
    "ConfigError": "fedalc.errors",
    "DataError": "fedalc.errors",
    "FedalcError": "fedalc.errors",
    "FedALCClassifier": "fedalc.estimators",
    "FedALCEmbedder": "fedalc.estimators",
    "Settings": "fedalc.config.schema",
    "Method": "fedalc.methods",
    "register_method": "fedalc.methods",
    "Encoder": "fedalc.models.encoders",
    "register_encoder": "fedalc.models.encoders",
    "Callback": "fedalc.training.callbacks",
    "make_callback": "fedalc.training.callbacks",
    "register_callback": "fedalc.training.callbacks",
    "register_format": "fedalc.data.formats",
    "register_metric": "fedalc.evaluation.metrics",
    "TrainedModel": "fedalc.models.trained",
    "Run": "fedalc.workflows.run",
    "load_run": "fedalc.workflows.train",
    "Sweep": "fedalc.workflows.sweep",
    "sweep": "fedalc.workflows.sweep",
    "train": "fedalc.workflows.train",
}

__all__ = [
    "Callback",
    "ConfigError",
    "DataError",
    "Dataset",
    "Encoder",
    "Experiment",
    "FedALCClassifier",
    "FedALCEmbedder",
    "FedalcError",
    "Method",
    "Run",
    "Settings",
    "Split",
    "Sweep",
    "TrainedModel",
    "compare",
    "experiment",
    "load_dataset",
    "load_run",
    "make_callback",
    "picture_blocks",
    "read_pictures",
    "register_callback",
    "register_encoder",
    "register_format",
    "register_method",
    "register_metric",
    "sweep",
    "testing",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("fedalc")
    if name == "testing":
        return import_module("fedalc.testing")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedalc' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """For tab completion: includes what is imported on first use."""
    return sorted([*__all__, "__version__"])
