"""Flipped cells as something to ask: unbiased products, and eigenpairs without the noise."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.solvers import one_shot
from skdp.solvers.one_shot import (
    FlippedMatrix,
    flip_deviation,
    graph_of_pairs,
    singular_triplets,
    symmetric_pairs,
)

RNG = np.random.default_rng(0)
P = 1 / (1 + math.e)


def flips(shape):
    return RNG.random(shape) < P


@pytest.mark.parametrize("n", [2, 3, 30])
def test_pairs_become_a_graph(n):
    A = np.triu(RNG.random((n, n)) < 0.5, 1) * 1.0
    A[0, 1] = 1.0
    row = sp.csr_array(A[np.triu_indices(n, 1)][None])
    assert np.array_equal(graph_of_pairs(row, n).toarray(), A + A.T)
    assert graph_of_pairs(sp.csr_array(row.shape), n).nnz == 0


@pytest.mark.parametrize("loops", [True, False])
def test_products_are_those_of_the_unbiased_matrix(loops):
    Y = (RNG.random((9, 9)) < 0.4) * 1.0
    if not loops:
        np.fill_diagonal(Y, 0.0)
    B = 3.0 * (Y - P) / (1 - 2 * P)
    if not loops:
        np.fill_diagonal(B, 0.0)
    ask = FlippedMatrix(sp.csr_array(Y), flip_deviation(1.0), high=3.0, loops=loops)
    X = RNG.standard_normal((9, 2))
    assert np.allclose(ask.right(X, share=0.1).value, B @ X)
    assert np.allclose(ask.left(X, share=0.1).value, B.T @ X)


def test_noise_is_as_claimed():
    R, X = (RNG.random((300, 80)) < 0.2) * 1.0, RNG.standard_normal((80, 3))
    answers = [
        FlippedMatrix(sp.csr_array(flips(R.shape) != R), flip_deviation(1.0)).right(X, share=1.0)
        for _ in range(20)
    ]
    errors = np.array([answer.value - R @ X for answer in answers])
    assert np.abs(errors.mean()) < 6 * errors.std() / math.sqrt(errors.size)
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(answers[0].noise_scale, rel=0.03)


def spiked(n, values):
    """A symmetric matrix with known eigenvalues of both signs, and cells of given noise."""
    Q = np.linalg.qr(RNG.standard_normal((n, len(values))))[0]
    noise = RNG.standard_normal((n, n)) / math.sqrt(2)
    return (Q * values) @ Q.T + 0.5 * (noise + noise.T), Q


class Known(FlippedMatrix):
    def __init__(self, A, noise_scale):
        self.A, self.noise_scale = A, noise_scale

    def right(self, X, *, share):
        return one_shot.Answer(self.A @ X, self.noise_scale)


def test_eigenvalues_lose_what_the_noise_gave_them(monkeypatch):
    n, values = 400, np.array([60.0, -40.0, 25.0])
    A, Q = spiked(n, values)
    found, V = symmetric_pairs(Known(A, 0.5), n, 4)
    assert found[:3] == pytest.approx(values, abs=3.0)  # the edge is 20, the noise of a value .7
    assert found[3] == 0.0  # inside the edge
    assert abs(Q[:, 0] @ V[:, 0]) > 0.97
    monkeypatch.setattr(one_shot, "_SMALL", 10)
    iterated, W = symmetric_pairs(Known(A, 0.5), n, 4)
    assert np.allclose(iterated, found, rtol=1e-3)
    assert np.allclose(np.abs(np.sum(V * W, axis=0))[:3], 1.0, atol=1e-3)
    zero, V = symmetric_pairs(Known(np.zeros((n, n)), 0.0), n, 2)
    assert np.array_equal(zero, [0, 0])
    assert V.shape == (n, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("small", [10, 1000])
@pytest.mark.parametrize("shape", [(300, 200), (200, 300)])
def test_triplets_of_flipped_cells(shape, small, monkeypatch):
    monkeypatch.setattr(one_shot, "_SMALL", small)
    left, right = (RNG.integers(0, 3, size) for size in shape)
    R = (RNG.random(shape) < np.where(left[:, None] == right, 0.7, 0.1)) * 1.0
    exact = FlippedMatrix(sp.csr_array(R), 0.0)
    U, values, V = singular_triplets(exact, 3)
    assert np.allclose((U.T @ R @ V), np.diag(values), atol=1e-3)
    assert np.allclose(values, np.linalg.svd(R, compute_uv=False)[:3], rtol=1e-4)
    assert exact.square_sum() == R.sum()
    noisy = FlippedMatrix(sp.csr_array((flips(shape) != R) * 1.0), flip_deviation(1.0))
    W, found, Z = singular_triplets(noisy, 5)
    assert found[:3] == pytest.approx(values, abs=0.1 * values[0])
    nothing = FlippedMatrix(sp.csr_array(flips(shape) * 1.0), flip_deviation(1.0))
    assert np.array_equal(singular_triplets(nothing, 4)[1], np.zeros(4))
    assert np.linalg.norm(Z[:, :3].T @ V) ** 2 > 2.0
    assert W.shape == (shape[0], 5)
    assert noisy.square_sum() == pytest.approx(R.sum(), abs=6 * math.sqrt(R.size))


def test_coins_are_noise_of_known_size():
    """Rounding x to 0 or 3 at random adds x (3 - x) to each square, and noise of that variance."""
    x = 3 * np.outer(RNG.uniform(0.5, 0.9, 200), RNG.uniform(0.5, 0.9, 100))
    Y = (RNG.random(x.shape) < x / 3) != (RNG.random(x.shape) < 1 / (1 + math.exp(3.0)))
    coins = float((x * (3 - x)).sum())
    scale = flip_deviation(3.0)
    plain = FlippedMatrix(sp.csr_array(Y * 1.0), scale, high=3.0)
    known = FlippedMatrix(sp.csr_array(Y * 1.0), scale, high=3.0, coins=coins)
    truth = float((x**2).sum())
    assert known.square_sum() == pytest.approx(truth, rel=0.1)
    assert plain.square_sum() > 1.5 * truth
    seen = known.right(np.eye(100), share=1.0)
    assert np.std(seen.value - x) == pytest.approx(seen.noise_scale, rel=0.03)
    exact = np.linalg.svd(x, compute_uv=False)
    assert singular_triplets(known, 3)[1] == pytest.approx(exact[:3], abs=0.06 * exact[0])
    assert singular_triplets(plain, 3)[1][1] > 0.08 * exact[0]  # noise that nobody took off
