"""FedALC and FedALC-fixed, line by line in numpy. Read this before the library; it is simple and slow on purpose.

Each label u has one client, which holds the instances of u, all positive. The encoder is linear, g(x) = unit(xθ), and
label u has the class embedding w_u, a unit row of W. tests/test_examples.py checks that both functions give the same
results as the library's engines.

    python examples/fedalc_naive.py
"""

from __future__ import annotations

import numpy as np


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def correlations(Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return σ_uv, the share of instances with u but not v, and c_uv / N, the share of instances with both."""
    N, C = int(Y.any(1).sum()), Y.shape[1]  # instances without a label are on no client
    apart, together = np.zeros((C, C)), np.zeros((C, C))
    for labels in Y:
        for u in np.flatnonzero(labels):
            for v in range(C):
                if u != v and labels[v]:
                    together[u, v] += 1 / N
                elif u != v:
                    apart[u, v] += 1 / N
    return apart, together


def client_update(
    theta: np.ndarray, w: np.ndarray, X: np.ndarray, margin: float, rate: float, row_rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Take one step on the mean of max(0, margin - g(x)ᵀw)² over the client's instances, without any negatives."""
    theta_gradient, w_gradient = np.zeros_like(theta), np.zeros_like(w)
    for x in X:
        h = x @ theta
        g = unit(h)
        slope = -2 * max(0.0, margin - g @ w) / len(X)  # d loss / d(g(x)ᵀw)
        w_gradient += slope * g
        through_unit = (w - (w @ g) * g) / np.linalg.norm(h)  # d(g(x)ᵀw) / dh
        theta_gradient += slope * np.outer(x, through_unit)
    return theta - rate * theta_gradient, unit(w - row_rate * w_gradient)


def push_apart(W: np.ndarray, weight: np.ndarray, margin: float) -> np.ndarray:
    """Return the gradient of Σ_u Σ_{v≠u} weight_uv max(0, ν - d)², with ν = margin and d = 1 - w_uᵀw_v."""
    gradient = np.zeros_like(W)
    for u in range(len(W)):
        for v in range(len(W)):
            if u != v:
                slope = 2 * weight[u, v] * max(0.0, margin - (1 - W[u] @ W[v]))  # d loss / d(w_uᵀw_v)
                gradient[u] += slope * W[v]
                gradient[v] += slope * W[u]
    return gradient


def pull_together(W: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the gradient of Σ_u Σ_{v≠u} weight_uv d²."""
    gradient = np.zeros_like(W)
    for u in range(len(W)):
        for v in range(len(W)):
            slope = -2 * weight[u, v] * (1 - W[u] @ W[v])
            gradient[u] += slope * W[v]
            gradient[v] += slope * W[u]
    return gradient


def fedalc(
    theta: np.ndarray, W: np.ndarray, X: np.ndarray, Y: np.ndarray, rounds: int, *, margin: float, rate: float,
    row_rate: float, step: float, nu: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Run Algorithm 1. `step` is λη, the rate of the server's step on W."""
    apart, _ = correlations(Y)  # collected once, privately, before round 1
    counts = Y.sum(0)
    for _ in range(rounds):
        updates = [client_update(theta, W[u], X[Y[:, u] > 0], margin, rate, row_rate) for u in range(len(W))]
        theta = sum(n * local for n, (local, _) in zip(counts, updates, strict=True)) / counts.sum()
        W = np.stack([w for _, w in updates])
        W = unit(W - step * push_apart(W, apart, nu))
    return theta, W


def fedalc_fixed(
    theta: np.ndarray, W: np.ndarray, X: np.ndarray, Y: np.ndarray, rounds: int, *, margin: float, rate: float,
    steps: int, step: float, nu: float, alpha: float, beta: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Run Algorithm 2: the server learns W from the correlations before round 1, then W stays fixed."""
    apart, together = correlations(Y)
    for _ in range(steps):
        W = unit(W - step * (alpha * pull_together(W, together) + beta * push_apart(W, apart, nu)))
    counts = Y.sum(0)
    for _ in range(rounds):
        updates = [client_update(theta, W[u], X[Y[:, u] > 0], margin, rate, row_rate=0.0) for u in range(len(W))]
        theta = sum(n * local for n, (local, _) in zip(counts, updates, strict=True)) / counts.sum()
    return theta, W


if __name__ == "__main__":
    random = np.random.default_rng(0)
    Y = (random.random((60, 5)) < 0.4).astype(float)
    Y[np.arange(60), np.arange(60) % 5] = 1
    X = Y @ random.normal(size=(5, 12)) + 0.3 * random.normal(size=(60, 12))
    start = random.normal(size=(12, 8)), unit(random.normal(size=(5, 8)))
    for name, nu in (("plain averaging (no step on W)", 0.0), ("FedALC", 1.0)):
        theta, W = fedalc(*start, X, Y, 100, margin=1.0, rate=0.5, row_rate=0.5, step=1.0, nu=nu)
        best = (unit(X @ theta) @ W.T).argmax(1)
        print(f"{name}: P@1 {100 * Y[np.arange(60), best].mean():.0f}, largest cosine {np.triu(W @ W.T, 1).max():.2f}")
