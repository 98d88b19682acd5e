"""omikuji, centralised: partitioned label trees (Parabel, Prabhu et al., 2018; Bonsai, Khandagale et al., 2020).

https://github.com/tomtung/omikuji, in Rust. It takes no seed, so two runs differ a little.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.data.dataset import Split
from fedalc.oracles.packaged import PackagedOracle, Ranked

# Bonsai has wide, shallow trees of unbalanced clusters. The values are those of Annif's projects.
BONSAI: dict[str, Any] = {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3}


class Omikuji(PackagedOracle):
    """Parabel with omikuji's defaults: three trees, squared hinge, a beam of 10. `omikuji.model = "bonsai"`: Bonsai.

    A beam of 10 returns about ten labels from each tree.
    """

    kind = "omikuji"
    package = "omikuji"
    help = "label trees of the package omikuji: Parabel or Bonsai"
    use_when = "To compare with Parabel or Bonsai; needs fedalc[peers]"
    colour = "#2D5A00"  # dark green
    sections = ("omikuji",)

    @staticmethod
    def train_package(settings: Experiment, train: Split, folder: Path) -> None:
        from omikuji import Model

        data = folder / "train.txt"
        _write(train, data)
        choices = Model.default_hyper_param()
        for name, value in (BONSAI if settings.omikuji.model == "bonsai" else {}).items():
            setattr(choices, name, value)
        model = Model.train_on_data(str(data), choices, torch.get_num_threads())
        data.unlink()
        model.save(str(folder))

    @staticmethod
    def rank(folder: Path, features: csr_matrix, k: int) -> Ranked:
        from omikuji import Model

        model = Model.load(str(folder))
        model.init_prediction_thread_pool(torch.get_num_threads())
        rows = (slice(*ends) for ends in pairwise(features.indptr.tolist()))
        return [
            model.predict(list(zip(features.indices[row].tolist(), features.data[row].tolist(), strict=True)), top_k=k)
            for row in rows
        ]


def _write(train: Split, path: Path) -> None:
    """Write the format of the XML repository, the only one that omikuji reads."""
    features, labels = train.features.sorted_indices(), train.labels
    with path.open("w", encoding="ascii") as file:
        file.write(f"{features.shape[0]} {features.shape[1]} {labels.shape[1]}\n")
        for row, own in zip(pairwise(features.indptr), pairwise(labels.indptr), strict=True):
            index, value = features.indices[slice(*row)].tolist(), features.data[slice(*row)].tolist()
            words = [f"{i}:{v:.9g}" for i, v in zip(index, value, strict=True)]
            file.write(" ".join([",".join(map(str, labels.indices[slice(*own)].tolist())), *words]) + "\n")
