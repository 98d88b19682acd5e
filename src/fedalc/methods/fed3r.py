"""Fed3R (Fanì et al., "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers", arXiv 2406.01116).

Ridge regression from the clients' sums, in one round; without the last step it is AFL (arXiv 2405.16240). Our reading:
the papers have one label per instance and frozen features of a pretrained network. Here x is the scaled feature row,
an instance with m labels is m examples, as its m owners know nothing of each other, and the penalty is `server.ridge`
(1, as for fedalc-oneshot). That columns are scaled to length 1 is how we know Fed3R; we could not check its text.
"""

from __future__ import annotations

from torch import Tensor

from fedalc.methods.axis_per_label import AxisPerLabel, unit_columns
from fedalc.methods.base import ClientSums


class Fed3R(AxisPerLabel):
    """Client u sends Σ_j x_j x_jᵀ and Σ_j x_j. The server solves (Σ x xᵀ + ridge·I) θ = [Σ_j x_j for each label], and
    scales each label's column to length 1.

    Before scaling this is `fedalc-oneshot` with client.set_size "ignored", label_power 0 and an axis per label.
    """

    help = "ridge regression in one round; a record with m labels counts m times"
    use_when = "To compare with ridge regression that does not know label sets"
    colour = "#F000B8"  # magenta

    def solve(self, sums: ClientSums) -> tuple[Tensor, float]:
        """Return θ and the objective before its columns are scaled."""
        theta, loss = super().solve(sums)
        return unit_columns(theta), loss
