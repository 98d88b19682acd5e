"""Differential privacy of one instance's label set, in what W learns from label correlations.

Two datasets are neighbours when one instance's label set is replaced by the empty one; N is public. (One label set in
place of another is two such steps.) The readers of W are kept from learning an instance's labels; the server, which
holds the pseudonymous label sets, is not.

`counts`: n and c are noised once, and whatever is learnt from them costs nothing more. `gradients`: as in the paper,
every step on W takes the instances' gradients clipped and noised. `accounting`: how much noise an (ε, δ) takes.
"""

from __future__ import annotations

from fedalc.privacy.accounting import noise_multiplier, spent_epsilon
from fedalc.privacy.counts import clip_label_sets, noisy_correlations, sensitivity
from fedalc.privacy.gradients import PrivateGradient, instance_norms
from fedalc.privacy.label_sets import PrivateLabelSets

__all__ = [
    "PrivateGradient",
    "PrivateLabelSets",
    "clip_label_sets",
    "instance_norms",
    "noise_multiplier",
    "noisy_correlations",
    "sensitivity",
    "spent_epsilon",
]
