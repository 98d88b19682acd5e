"""Records that a server finds in mixtures of them, and the chance that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedalc.audit.answers import from_words, summed
from fedalc.audit.notes import duals, guess_from_words
from fedalc.audit.reconstruct import by_chance, matched, principal, reconstruct

FEATURES = 120


def sparse_records(count: int, seed: int = 0, features: int = FEATURES) -> np.ndarray:
    """Texts: each record has 15 features, few of them shared."""
    random = np.random.default_rng(seed)
    X = np.zeros((count, features))
    for record in X:
        record[random.choice(features, 15, replace=False)] = random.uniform(0.2, 1, 15)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def test_a_change_of_one_record_is_that_record() -> None:
    (x,) = sparse_records(1)
    change = np.outer(x, np.random.default_rng(1).normal(size=7)).astype(np.float32)
    assert matched(reconstruct([change], 1), x[None])[0] >= 0.9999999


@pytest.mark.parametrize("count", [2, 3, 10])
def test_each_of_several_records_is_found_in_their_span(count: int) -> None:
    """In 32 bits, with coefficients that the server does not know."""
    X = sparse_records(count)
    change = (X.T @ np.random.default_rng(2).normal(size=(count, 20))).astype(np.float32)
    assert matched(reconstruct([change], count), X).min() >= 0.9999999


def test_corners_of_the_cone_are_found_if_each_record_has_one_feature_of_its_own() -> None:
    """No two features lie on a line, so that only the corners are left."""
    random = np.random.default_rng(0)
    X = np.concatenate([np.eye(3), random.uniform(0.3, 1, (3, 30))], axis=1)
    change = X.T @ random.uniform(0.5, 1, (3, 6))
    assert matched(reconstruct([change], 3), X).min() > 0.999


def test_dense_records_are_found_as_independent_components() -> None:
    random = np.random.default_rng(0)
    X = random.laplace(size=(2, 4000))
    assert matched(reconstruct([X.T @ random.normal(size=(2, 5))], 2), X).min() > 0.99


def test_a_mean_is_all_that_one_mixture_tells_about_two_records() -> None:
    X = sparse_records(2)
    found = reconstruct([X.sum(0)[:, None]], 2)
    expected = (1 + X[0] @ X[1]) / np.linalg.norm(X.sum(0))
    np.testing.assert_allclose(matched(found, X), expected)


def test_several_rounds_beat_one_in_which_a_record_is_missing() -> None:
    """Of three rounds with one mixture each, the second has one record only: sparse, but not all there is."""
    X = sparse_records(2)
    rounds = [X.T @ np.array([[1.0], [0.3]]), X[:1].T, X.T @ np.array([[0.2], [1.0]])]
    assert matched(reconstruct([*rounds, np.concatenate(rounds, axis=1)], 2), X).min() >= 0.9999999


@pytest.mark.parametrize("nothing", [[], [np.zeros((5, 3))], [np.full((5, 3), np.nan)]])
def test_nothing_seen_is_nothing_found(nothing: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(matched(reconstruct(nothing, 2), np.ones((2, 5))), 0)


def test_a_guess_is_matched_once() -> None:
    records = np.array([[1.0, 0, 0], [0.8, 0.6, 0]])
    np.testing.assert_allclose(matched(np.array([[1.0, 0, 0]]), records), [1, 0])
    np.testing.assert_allclose(matched(np.array([[0, 0, 1.0], [1.0, 0, 0]]), records), [1, 0])
    np.testing.assert_allclose(matched(records[::-1] * -3, records), [1, 1])


def test_chance_is_the_better_of_the_mean_and_of_other_records() -> None:
    records, mean = np.array([[1.0, 0]]), np.array([1.0, 1.0])
    assert by_chance(records, [np.array([[0, 1.0]])], mean) == pytest.approx(2**-0.5)
    assert by_chance(records, [np.array([[1.0, 0]]), np.array([[0.6, 0.8]])], mean) == pytest.approx(0.8)


def test_principal_components_keep_what_is_no_rounding_error() -> None:
    random = np.random.default_rng(0)
    for shape in ((40, 6), (6, 40)):
        low = random.normal(size=(shape[0], 2)) @ random.normal(size=(2, shape[1]))
        found = principal(low.astype(np.float32).astype(float), 5)
        assert found.shape == (shape[0], 2)
        np.testing.assert_allclose(found @ found.T, low @ low.T, atol=1e-4)


@pytest.mark.parametrize(("labels", "dim"), [(4, 9), (9, 9), (9, 4)])
def test_duals_take_labels_apart(labels: int, dim: int) -> None:
    W = torch.nn.functional.normalize(torch.randn(labels, dim, dtype=torch.float64, generator=torch.Generator()))
    np.testing.assert_allclose(duals(W), np.linalg.pinv(W.numpy()), atol=1e-9)
    if labels <= dim:
        sums = torch.rand(30, labels, dtype=torch.float64)
        torch.testing.assert_close(sums @ W @ duals(W), sums)


def test_the_sum_is_a_sum() -> None:
    parts = [torch.ones(2, 3), 2 * torch.ones(2, 3)]
    torch.testing.assert_close(summed(parts), 3 * torch.ones(2, 3))


def in_words(values: np.ndarray, bits: int) -> np.ndarray:
    return np.rint(values * 2.0**bits).astype(np.int64).view(np.uint64).ravel()


def test_words_without_a_mask_are_the_answer_and_masked_ones_are_chance() -> None:
    """The record of a label with one, from what the server holds. Under a uniform mask the guess is a direction that
    has nothing to do with the record: in F dimensions |cosine| has mean √(2/πF) and is below 5/√F (5 σ)."""
    features, bits = 400, 32
    (x,) = sparse_records(1, features=features)
    W = torch.eye(8, dtype=torch.float64)[:3]
    words = in_words(np.outer(x, W[1].numpy()), bits)
    assert matched(guess_from_words(words, bits, W, 1, 1), x[None])[0] >= 0.9999999
    random, found = np.random.default_rng(0), []
    for _ in range(20):
        mask = random.integers(0, 2**64, len(words), dtype=np.uint64)
        found.append(matched(guess_from_words(words + mask, bits, W, 1, 1), x[None])[0])
    assert max(found) < 5 / features**0.5
    assert np.mean(found) == pytest.approx((2 / np.pi / features) ** 0.5, abs=4 * (0.363 / features / 20) ** 0.5)


def test_words_in_fixed_point() -> None:
    values = np.array([[0.0, -1.5], [3.25, 2.0**-16]])
    np.testing.assert_array_equal(from_words(in_words(values, 16), 16, (2, 2)), values)
