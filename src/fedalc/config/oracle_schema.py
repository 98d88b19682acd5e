"""The settings of the centralised oracles, a section for each (docs/oracles.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedalc.config.schema import Count, NotNegative, Positive, Settings, Share


class OvrSettings(Settings):
    """One-vs-rest (centralised): a linear regression per label on all instances. docs/oracles.md."""

    loss: Literal["ridge", "logistic"] = "ridge"
    """ridge: Σ(xᵀv - y)² + λ‖v‖². logistic: Σ log(1 + e^∓xᵀv) + λ/2‖v‖², with an intercept."""
    penalties: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    """The values of λ to try; validation chooses the best. none: a grid that fits the loss."""
    block_labels: Count = 256
    """Labels solved at a time. Limits memory; changes rounding only."""

    @property
    def grid(self) -> tuple[float, ...]:
        """The penalties to try. The scales of the two losses differ."""
        ridge, logistic = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0), (0.0125, 0.025, 0.05, 0.1, 0.2)
        return self.penalties or (ridge if self.loss == "ridge" else logistic)


class SleecSettings(Settings):
    """SLEEC (centralised): neighbours in learned embeddings. The defaults are those published for Bibtex."""

    learners: Count = 1
    """Models that vote together, each with its own clusters."""
    clusters: Count | None = None
    """Clusters of a learner. none: one per 6,000 instances."""
    neighbours: Count = 250
    """n̄: nearest label sets that an embedding keeps near."""
    dim: Count = 100
    """L̂: length of an embedding."""
    steps: Annotated[int, Field(ge=0)] = 200
    """Steps to refine the embeddings, at most."""
    tolerance: Share = 0.001
    """Stop if a step reduces the misfit by less than this share."""
    cost: Positive = 0.2
    """c of ½‖W‖² + c‖XW - Z‖², the regression of embeddings on features."""
    threshold: Share = 0.01
    """Share of the weights, the smallest, to set to zero."""
    nearest: Count = 25
    """NN: neighbours whose labels count in a prediction."""


class MlpSettings(Settings):
    """An mlp with one hidden layer (centralised): Adam on minibatches. docs/oracles.md."""

    loss: Literal["square", "logistic"] = "square"
    """What training minimises."""
    hidden: Count = 1024
    """Hidden units."""
    input_dropout: Share = 0.2
    """Share of features that training drops."""
    dropout: Share = 0.5
    """Share of hidden units that training drops."""
    batch_size: Count = 256
    """Records per step."""
    learning_rate: Positive = 3e-3
    """Step size of Adam."""
    weight_decay: NotNegative = 1.0
    """In each step the weights shrink by learning_rate × this."""
    epochs: Count = 20
    """Passes over train, at most: validation chooses the number."""


class OmikujiSettings(Settings):
    """The package omikuji (centralised), with its default settings. docs/oracles.md."""

    model: Literal["parabel", "bonsai"] = "parabel"
    """Which of its label trees."""


class NapkinxcSettings(Settings):
    """The package napkinXC (centralised), with its default settings. docs/oracles.md."""

    model: Literal["plt", "br"] = "plt"
    """plt: a probabilistic label tree. br: one-vs-rest."""
