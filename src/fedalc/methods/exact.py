"""Positive-only clients that give the centralised gradient exactly (derivation, privacy and cost: docs/exact.md).

The centralised least-squares loss of an instance with labels L is ‖g - Σ_{u∈L} a_u w_u‖². Its gradient in g is

    2 (g - Σ_{u∈L} a_u w_u)  =  Σ_{u∈L} 2 (g/m - a_u w_u),    m = |L|

a sum over the owners of the instance, each of which needs its own row and m, and no negative.
"""

from __future__ import annotations

from typing import ClassVar

from fedalc.methods.fedavg import FedAvgFixed


class FedALCExact(FedAvgFixed):
    """The square loss on raw outputs, W fixed by label frequencies, rare labels weighted up.

    What the collection tells: n (for W and the weights a_u) and m, exactly or as each label's mean.
    """


class FedALCOneshot(FedALCExact):
    """The same objective, solved in one round: for a linear encoder it is determined by two sums over clients.

    Client u sends Σ_j x_j x_jᵀ/m_j and Σ_j x_j. The server adds the first, puts w_u to the second, and solves
    (Σ x xᵀ/m + ridge·I) θ = Σ_u a_u (Σ_j x_j) w_uᵀ.
    """

    one_round: ClassVar[bool] = True
