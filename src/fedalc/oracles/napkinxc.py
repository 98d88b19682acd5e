"""napkinXC, centralised: probabilistic label trees (PLT, Jasinska et al., 2016) and binary relevance (BR).

https://github.com/mwydmuch/napkinXC, in C++. The seed fixes the tree, but the solver goes on with one stream of random
numbers per process, so a second run in the same process differs a little. It crashes on damaged model files, so fedalc
does not save them: `fedalc predict` needs another method.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.core.seeds import derived_seed
from fedalc.data.dataset import Split
from fedalc.oracles.packaged import PackagedOracle, Ranked


class NapkinXC(PackagedOracle):
    """A PLT with napkinXC's defaults: one tree by 2-means, logistic loss. `napkinxc.model = "br"`: one-vs-rest."""

    kind = "napkinxc"
    package = "napkinxc"
    reads_safely = False
    help = "the package napkinXC: a probabilistic label tree, or one-vs-rest"
    use_when = "To compare with probabilistic label trees; needs fedalc[peers]"
    colour = "#871E87"  # dark purple
    sections = ("napkinxc",)

    @staticmethod
    def train_package(settings: Experiment, train: Split, folder: Path) -> None:
        from napkinxc.models import BR, PLT

        kind = PLT if settings.napkinxc.model == "plt" else BR
        seed = derived_seed(settings.seed, "napkinxc") % 2**31
        model = kind(str(folder), seed=seed, threads=torch.get_num_threads())
        model.fit(_float32(train.features), _float32(train.labels))

    @staticmethod
    def rank(folder: Path, features: csr_matrix, k: int) -> Ranked:
        from napkinxc.models import BR, PLT

        kind = PLT if (folder / "tree.bin").exists() else BR
        model = kind(str(folder), threads=torch.get_num_threads())
        model.load()
        ranked: Ranked = model.predict_proba(_float32(features), top_k=k)
        return ranked


def _float32(matrix: csr_matrix) -> csr_matrix:
    return csr_matrix(matrix.sorted_indices(), dtype=np.float32)
