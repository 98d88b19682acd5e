"""Federated learning when every client has only positive examples of its own label.

import fedalc
run = fedalc.train(dataset="demo", method="fedalc")
print(run.metrics["P@1"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedalc.comparison import compare
    from fedalc.config import Experiment
    from fedalc.data import Dataset, Split, load_dataset, picture_blocks, read_pictures
    from fedalc.errors import ConfigError, DataError, FedalcError
    from fedalc.resolution import experiment
    from fedalc.runs import Run, load_run, train
    from fedalc.trained import TrainedModel
    from fedalc.training_base import Callback

# Imported on first use: `fedalc --help` must not wait for torch.
_HOMES = {
    "compare": "fedalc.comparison",
    "Experiment": "fedalc.config",
    "experiment": "fedalc.resolution",
    "Dataset": "fedalc.data",
    "Split": "fedalc.data",
    "load_dataset": "fedalc.data",
    "picture_blocks": "fedalc.data",
    "read_pictures": "fedalc.data",
    "ConfigError": "fedalc.errors",
    "DataError": "fedalc.errors",
    "FedalcError": "fedalc.errors",
    "Callback": "fedalc.training_base",
    "TrainedModel": "fedalc.trained",
    "Run": "fedalc.runs",
    "load_run": "fedalc.runs",
    "train": "fedalc.runs",
}

__all__ = [
    "Callback",
    "ConfigError",
    "DataError",
    "Dataset",
    "Experiment",
    "FedalcError",
    "Run",
    "Split",
    "TrainedModel",
    "compare",
    "experiment",
    "load_dataset",
    "load_run",
    "picture_blocks",
    "read_pictures",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedalc' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
