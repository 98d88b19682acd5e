"""Differential privacy of one instance's label set, for what W learns from label correlations.

Two datasets are neighbours if one has one more instance's label set than the other. (Replacing a label set is two such
steps.) The mechanisms protect what the server learns from label correlations. They do not protect the label sets from
the server, which holds them under pseudonyms, nor what clients teach their rows and θ.

`counts` adds noise to N, n and c once; learning from them costs nothing more. `gradients` follows the paper: every step
on W clips and noises the instances' gradients; N, the number of instances, is public. `accounting` computes the noise
for an (ε, δ). `record_sums` has the noise of mechanisms `sums` and `updates`, which protect whole records.
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
from fedalc.labels.privacy.record_sums import NoiseShares, NoiseSize, sums_multiplier

__all__ = [
    "NoiseShares",
    "NoiseSize",
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
    "sums_multiplier",
]
