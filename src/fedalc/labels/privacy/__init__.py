"""Differential privacy of one instance's label set, in what W learns from label correlations.

Two datasets are neighbours when one instance's label set is there in one and gone in the other. (One label set in place
of another is two such steps.) Protected is what the server takes from label correlations; not the label sets from the
server, which holds them under pseudonyms, and not what owners teach their rows and θ.

`counts`: N, n and c are noised once, and whatever is learnt from them costs nothing more. `gradients`: as in the paper,
every step on W takes the instances' gradients clipped and noised; N, the number of instances, is public. `accounting`:
how much noise an (ε, δ) takes.
"""

from __future__ import annotations

from fedalc.labels.privacy.accounting import (
    Release,
    coordinates,
    counts_epsilon,
    counts_multiplier,
    counts_release,
    epsilon_of,
    noise_multiplier,
    sensitivity,
    spent_epsilon,
)
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.labels.privacy.noisy_counts import (
    clip_label_sets,
    label_threshold,
    noisy_correlations,
    published_correlations,
)
from fedalc.labels.privacy.private_label_sets import PrivateLabelSets

__all__ = [
    "PrivateLabelSets",
    "Release",
    "SecureGenerator",
    "clip_label_sets",
    "coordinates",
    "counts_epsilon",
    "counts_multiplier",
    "counts_release",
    "epsilon_of",
    "label_threshold",
    "noise_multiplier",
    "noisy_correlations",
    "published_correlations",
    "sensitivity",
    "spent_epsilon",
]
