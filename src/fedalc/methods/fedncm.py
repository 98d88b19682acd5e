"""FedNCM (Legate et al., "Guiding the Last Layer in Federated Learning with Pre-Trained Models", arXiv 2308.11971).

The nearest class mean, in one round. The paper has frozen features of a pretrained network; here x is the scaled
feature row.
"""

from __future__ import annotations

from torch import Tensor

from fedalc.methods.axis_per_label import AxisPerLabel, unit_columns
from fedalc.methods.base import ClientSums


class FedNCM(AxisPerLabel):
    """Client u sends Σ_j x_j and n_u. The score of label u is the cosine of x and the mean Σ_j x_j / n_u.

    A mean and its sum have the same direction, so n_u does not change a score, and bytes count only the sum.
    """

    help = "nearest class mean, in one round"
    use_when = "Fewest bytes: each client sends one vector, once"
    colour = "#FF005A"  # crimson
    sends_gram = False
    ignores = {**AxisPerLabel.ignores, "server.ridge": {}}

    def solve(self, sums: ClientSums) -> tuple[Tensor, float]:
        """Return θ and the mean of 1 - score over all pairs of an instance and its label."""
        theta = unit_columns(sums.cross)
        return theta, 1 - (theta * sums.cross).sum().item() / sums.pairs
