"""Clipped, noised gradients of W against the loss of every instance, differentiated by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.errors import ConfigError
from fedalc.labels.correlations import Correlations
from fedalc.labels.privacy import SecureGenerator
from fedalc.methods.private_gradient import PrivateGradient, instance_norms
from fedalc.methods.regularizers import AllPairs, NearestPairs, Regularizer, Sum, Together, attract, repel_within
from fedalc.models.class_embeddings import random_rows
from tests.problems import random_split

C, D, N = 9, 4, 40
SETS = random_split(N, 3, C, seed=5, per_instance=5).labels
SETS = SETS[np.diff(SETS.indptr) > 0]  # as a join gives them
HELD = SETS.shape[0]
W0 = random_rows(C, D, torch.Generator().manual_seed(1), torch.float64)
SMALL = 2000  # bytes: several blocks of everything

Build = Callable[[Correlations], Regularizer]


def distance(W: Tensor, u: int, v: int) -> Tensor:
    return 1 - W[u] @ W[v]


def hinge(margin: float, d: Tensor) -> Tensor:
    return torch.clamp(margin - d, min=0) ** 2


def nearest(u: int, k: int, among: list[int]) -> list[int]:
    return sorted((v for v in among if v != u), key=lambda v: distance(W0, u, v).item())[:k]


ALL = list(range(C))
SOME = [0, 2, 3, 6, 8]
# How the regulariser is built; the classes v that class u is held apart from, and at what margin; and α.
CASES: dict[str, tuple[Build, Callable[[int], tuple[list[int], float]], float]] = {
    "full": (
        lambda known: AllPairs(repel_within(1.2), known, budget=SMALL),
        lambda u: ([v for v in ALL if v != u], 1.2),
        0.0,
    ),
    "mined": (
        lambda known: NearestPairs(3, repel_within(1.0), known, budget=SMALL),
        lambda u: (nearest(u, 3, ALL), 1.0),
        0.0,
    ),
    "mined in a sample": (
        lambda known: NearestPairs(3, repel_within(1.1), known, candidates=torch.tensor(SOME), budget=SMALL),
        lambda u: (nearest(u, 3, SOME), 1.1),
        0.0,
    ),
    "adaptive": (
        lambda known: NearestPairs(3, None, known, budget=SMALL),
        lambda u: (nearest(u, 3, ALL), distance(W0, u, nearest(u, 4, ALL)[-1]).item()),
        0.0,
    ),
    "fixed": (
        lambda known: Sum(((0.7, Together(attract, known)), (1.0, AllPairs(repel_within(1.0), known, budget=SMALL)))),
        lambda u: ([v for v in ALL if v != u], 1.0),
        0.7,
    ),
}


def literal_gradients(name: str, label_sets: csr_matrix = SETS) -> Tensor:
    """Return G_j of every instance: the gradient of Σ_{u∈L, v∉L} max(0, ν - d)² + α Σ_{u≠v∈L} d²."""
    _, apart_from, alpha = CASES[name]
    gradients = []
    for row in label_sets:
        W, L = W0.clone().requires_grad_(), set(row.indices.tolist())
        loss = (0 * W).sum()
        for u in L:
            others, margin = apart_from(u)
            for v in others:
                if v not in L:
                    loss = loss + hinge(margin, distance(W, u, v))
            for v in L - {u}:
                loss = loss + alpha * distance(W, u, v) ** 2
        loss.backward()
        assert W.grad is not None
        gradients.append(W.grad)
    return torch.stack(gradients)


def private(name: str, clip: float, z: float = 0.0, rate: float = 1.0, seed: int = 0) -> PrivateGradient:
    return PrivateGradient(CASES[name][0], SETS, clip, z, rate, SecureGenerator.seeded(seed))


@pytest.mark.few(5)
@pytest.mark.parametrize("budget", [SMALL, 2**28])
@pytest.mark.parametrize("name", CASES)
def test_norms_are_those_of_the_instances_own_gradients(name: str, budget: int) -> None:
    known = Correlations.from_label_sets(SETS)
    norms = instance_norms(CASES[name][0](known), known, SETS, W0, budget)
    literal = literal_gradients(name).flatten(1).norm(dim=1).numpy()
    assert (literal > 0.5).sum() > 10, "a case in which nothing is active tests nothing"
    assert np.allclose(norms, literal, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_the_clipped_sum_is_the_literal_one(name: str) -> None:
    gradients = literal_gradients(name)
    norms = gradients.flatten(1).norm(dim=1)
    clip = norms[norms > 0].median().item()
    expected = (gradients * (clip / norms.clamp(min=clip))[:, None, None]).sum(0) / HELD
    value, gradient = private(name, clip).value_and_gradient(W0)
    assert math.isnan(value)  # never given: it is not private
    assert torch.allclose(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_without_clip_and_noise_it_is_the_ordinary_gradient(name: str) -> None:
    _, ordinary = CASES[name][0](Correlations.from_label_sets(SETS)).value_and_gradient(W0)
    _, gradient = private(name, math.inf).value_and_gradient(W0)
    assert torch.allclose(gradient, ordinary, rtol=1e-13, atol=1e-15)
    _, single = private(name, math.inf).value_and_gradient(W0.float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), ordinary, rtol=1e-4, atol=1e-6)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["full", "mined", "adaptive", "fixed"])
def test_no_instance_moves_the_sum_by_more_than_the_clip(name: str) -> None:
    """Empty one label set after another. N is public: the number of rows, empty or not."""
    clip, build = 0.8, CASES[name][0]
    moves = []
    for seed in range(4):
        Y = random_split(12, 3, C, seed=seed, per_instance=4).labels

        def clipped_sum(label_sets: csr_matrix) -> Tensor:
            mechanism = PrivateGradient(build, label_sets, clip, 0.0, 1.0, SecureGenerator.seeded(0))
            return mechanism.value_and_gradient(W0)[1] * len(label_sets.indptr[1:])

        whole = clipped_sum(Y)
        for j in np.flatnonzero(np.diff(Y.indptr)):
            neighbour = Y.toarray()
            neighbour[j] = 0
            moves.append((whole - clipped_sum(csr_matrix(neighbour))).norm().item())
    assert max(moves) <= clip * (1 + 1e-12)
    assert max(moves) == pytest.approx(clip)  # attained: no smaller noise would do


def test_the_noise_has_the_promised_size() -> None:
    _, exact = private("full", 0.5).value_and_gradient(W0)
    noise = torch.stack([private("full", 0.5, 3.0, seed=s).value_and_gradient(W0)[1] - exact for s in range(100)])
    assert noise.std().item() == pytest.approx(0.5 * 3.0 / HELD, rel=0.05)
    assert abs(noise.mean().item()) < 0.001
    spread = noise.std(0)
    assert spread.min() > 0.7 * spread.mean()  # on every coordinate


def test_each_step_draws_noise_of_its_own() -> None:
    mechanism = private("mined", 0.5, 1.0)
    assert not torch.equal(mechanism.value_and_gradient(W0)[1], mechanism.value_and_gradient(W0)[1])


@pytest.mark.long
def test_a_sample_is_right_on_average() -> None:
    _, whole = private("full", 0.9).value_and_gradient(W0)
    mechanism = private("full", 0.9, rate=0.3)
    draws = torch.stack([mechanism.value_and_gradient(W0)[1] for _ in range(300)])
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - whole).abs() < 4.5 * error + 1e-12).all()
    noisy = private("full", 0.9, z=20.0, rate=0.3)
    noise = torch.stack([noisy.value_and_gradient(W0)[1] for _ in range(100)])
    assert noise.std(0).mean().item() == pytest.approx(20 * 0.9 / HELD / 0.3, rel=0.05)  # noise of the sum / (N·rate)


def test_an_empty_sample_is_noise_alone() -> None:
    _, gradient = private("fixed", 1.0, rate=1e-9).value_and_gradient(W0)
    assert not gradient.any()


def test_counts_are_sigma_times_n() -> None:
    """Clip and noise mean the same for both: only the unit of the step differs."""
    gradients = []
    for weighting in ("sigma", "counts"):
        build: Build = lambda known, w=weighting: NearestPairs(3, repel_within(1.0), known, w)  # noqa: E731
        mechanism = PrivateGradient(build, SETS, 0.5, 1.0, 1.0, SecureGenerator.seeded(0))
        gradients.append(mechanism.value_and_gradient(W0)[1])
    assert torch.allclose(gradients[1], HELD * gradients[0])


@pytest.mark.parametrize("weighting", ["gamma", "conditional"])
def test_weightings_that_divide_by_counts_are_refused(weighting: str) -> None:
    build: Build = lambda known: AllPairs(repel_within(1.0), known, weighting)  # type: ignore[arg-type] # noqa: E731
    with pytest.raises(ConfigError, match="private"):
        PrivateGradient(build, SETS, 1.0, 1.0, 1.0, SecureGenerator.seeded(0)).value_and_gradient(W0)
