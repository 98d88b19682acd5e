"""fedalc-exact in one round: for a linear encoder, sums from the clients determine the solution (docs/exact.md)."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.errors import ConfigError
from fedalc.methods.fedalc_exact import FedALCExact


class FedALCOneshot(FedALCExact):
    """The same objective, solved in one round from two sums over clients.

    Client u sends Σ_j x_j x_jᵀ/m_j and Σ_j x_j. The server adds up the first sums, multiplies the second by w_u, and
    solves (Σ x xᵀ/m + ridge·I) θ = Σ_u a_u (Σ_j x_j) w_uᵀ.
    """

    help = "fedalc-exact in one round, for a linear encoder"
    use_when = "Rows of features, one round, no search: the quickest strong model"
    colour = "#CC79A7"  # purple
    one_round = True
    shards_rows = False

    @classmethod
    def check(cls, settings: Experiment) -> None:
        super().check(settings)
        if settings.client.loss != "square":
            raise ConfigError(f'{settings.method} needs client.loss = "square"; use fedalc-exact', "client.loss")
        if settings.encoder.is_image:
            raise ConfigError(
                f"{settings.method} solves for a linear encoder, and {settings.encoder.name} is not one; "
                "use fedalc-exact",
                "method",
            )
