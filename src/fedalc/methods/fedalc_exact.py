"""Positive-only clients that give the centralised gradient exactly (derivation, privacy and cost: docs/exact.md).

The centralised least-squares loss of an instance with labels L is ‖g - Σ_{u∈L} a_u w_u‖². Its gradient in g is

    2 (g - Σ_{u∈L} a_u w_u)  =  Σ_{u∈L} 2 (g/m - a_u w_u),    m = |L|

a sum over the owners of the instance. Each owner needs its own row and m, but no negative instances. The same holds for
every loss over all labels, if owners know all of W (`methods/losses.py`).
"""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.errors import ConfigError
from fedalc.methods.fedavg import FedAvgFixed


class FedALCExact(FedAvgFixed):
    """A loss over all labels: square, logistic, squared hinge or softmax, on raw outputs. Label frequencies fix W.
    With the square loss rare labels get larger weights.

    From the label collection it uses n (for W and the weights a_u) and m (exact, or the mean for each label).
    """

    help = "the gradient of centralised training, exactly, from positives alone"
    use_when = "Any loss or encoder, pictures, and features too many for one round"
    family = "ours"
    colour = "#8B5CF6"  # violet
    defaults = {"client": {"loss": "square"}}

    @classmethod
    def check(cls, settings: Experiment) -> None:
        if settings.client.loss == "hinge":
            losses = '"square", "logistic", "squared-hinge" or "softmax"'
            raise ConfigError(f"{settings.method} needs a loss over all labels: {losses}", "client.loss")
