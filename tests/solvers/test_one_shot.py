"""Spectra of flipped cells: unbiased, sparse and dense alike, and the noise that is claimed."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.solvers import linalg, one_shot
from skdp.solvers.linalg import leading_pairs
from skdp.solvers.one_shot import flip_deviation, flip_probability, history_pairs, pair_deviation


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_probability_and_deviation_belong_together(epsilon):
    p = 1 / (1 + math.exp(epsilon))
    s = flip_deviation(epsilon)
    assert s == pytest.approx(math.sqrt(p * (1 - p)) / (1 - 2 * p))
    assert flip_probability(s) == pytest.approx(p)
    assert flip_deviation(math.inf) == pytest.approx(0.0, abs=1e-200)


def flip(R, p, rng):
    return sp.csr_array(np.abs(R - (rng.random(R.shape) < p)))


@pytest.mark.thorough
def test_pairs_have_the_claimed_deviation():
    rng, m, epsilon = np.random.default_rng(0), 400, 1.0
    R = np.zeros((m, 2))
    R[:100] = 1.0
    p, s = 1 / (1 + math.e), flip_deviation(epsilon)
    B = [(flip(R, p, rng).toarray() - p) / (1 - 2 * p) for _ in range(2000)]
    pairs = np.array([b[:, 0] @ b[:, 1] for b in B])
    assert abs(pairs.mean() - 100) < 6 * pairs.std() / math.sqrt(2000)
    # The deviation of a product of cells that are ones is s^2 + 1 + 1, which this leaves out.
    assert pairs.std() == pytest.approx(pair_deviation(s, m, 100), rel=0.06)


def blocks(m, n, rng):
    taste = rng.integers(0, 3, m)
    return (rng.random((m, n)) < np.where(np.arange(n) % 3 == taste[:, None], 0.3, 0.03)) * 1.0


def readable(Y, noise_scale, floor, k):
    moment = history_pairs(Y, noise_scale, floor)
    return moment.shrink(*leading_pairs(moment.off, k))


def test_the_moment_is_that_of_the_true_rows():
    """Directions of flipped cells near those of the cells; the operator equals the dense moment."""
    rng = np.random.default_rng(1)
    R = blocks(3000, 60, rng)
    epsilon = 3.0
    Y, s = flip(R, 1 / (1 + math.exp(epsilon)), rng), flip_deviation(epsilon)
    found, exact = (readable(*case, 10.0, 3) for case in ((Y, s), (sp.csr_array(R), 0.0)))
    overlap = np.linalg.norm(exact.vectors[:, :3].T @ found.vectors[:, :3]) ** 2 / 3
    assert overlap > 0.95
    assert np.all(found.cosines[:3] > 0.9)


def test_the_operator_is_the_dense_moment(monkeypatch):
    rng = np.random.default_rng(2)
    R = blocks(2000, 80, rng)
    Y, s = flip(R, 0.1, rng), flip_deviation(math.log(9))
    dense = readable(Y, s, 8.0, 4)
    monkeypatch.setattr(linalg, "_MOST_DENSE", 10)
    sparse = readable(Y, s, 8.0, 4)
    k = min(len(dense.values), len(sparse.values))
    assert k >= 3
    np.testing.assert_allclose(sparse.values[:k], dense.values[:k], rtol=1e-3)
    monkeypatch.undo()
    monkeypatch.setattr(one_shot, "_FULL", 0.9)
    again = readable(Y, s, 8.0, 4)
    np.testing.assert_allclose(again.values, dense.values, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["noise", "spiked", "diagonal", "zero"])
@pytest.mark.parametrize(("n", "k"), [(499, 10), (600, 10), (600, 24), (600, 100)])
def test_leading_pairs_are_those_of_a_decomposition(kind, n, k):
    rng = np.random.default_rng(0)
    G = rng.standard_normal((n, n))
    Q = np.linalg.qr(rng.standard_normal((n, 5)))[0]
    M = {"diagonal": np.diag(G[0]), "zero": np.zeros((n, n))}.get(kind, (G + G.T) / 2)
    M = M + (Q * [900, 700, 500, 300, 200]) @ Q.T if kind == "spiked" else M
    values, vectors = leading_pairs(M, k)
    expected = np.linalg.eigvalsh(M)[::-1][:k]
    np.testing.assert_allclose(values, expected, atol=1e-5 * max(1.0, expected[0]))
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-8)
    captured = np.einsum("ij,ij->j", vectors, M @ vectors)
    np.testing.assert_allclose(captured, expected, atol=1e-5 * max(1.0, expected[0]))


def test_leading_pairs_of_a_large_moment():
    rng = np.random.default_rng(3)
    values = np.concatenate([[50.0, 30.0, 20.0], np.ones(1597)])
    Q = np.linalg.qr(rng.standard_normal((1600, 1600)))[0]
    found, vectors = leading_pairs((Q * values) @ Q.T, 3)
    np.testing.assert_allclose(found, values[:3], rtol=1e-3)
    np.testing.assert_allclose(np.abs(np.sum(vectors * Q[:, :3], axis=0)), 1.0, atol=1e-3)


def test_normalised_pairs_are_those_of_the_normalised_rows():
    """Without noise exactly; with it, the total and the sums within what is claimed."""
    rng, floor = np.random.default_rng(3), 6.0
    R = blocks(2000, 50, rng)
    rows = R / np.sqrt(np.maximum(R.sum(axis=1), floor))[:, None]
    exact = one_shot.normalised_pairs(sp.csr_array(R), 0.0, floor, 3)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    assert np.allclose(exact.squares, values[:-4:-1])
    assert np.allclose(np.abs(np.sum(exact.vectors * vectors[:, :-4:-1], axis=0)), 1.0)
    assert exact.total == pytest.approx(np.sum(rows**2))
    assert np.allclose(exact.sums, rows.sum(axis=0))
    assert exact.noise_scale == 0.0
    epsilon = 6.0
    Y = flip(R, 1 / (1 + math.exp(epsilon)), rng)
    found = one_shot.normalised_pairs(Y, flip_deviation(epsilon), floor, 5)
    assert found.squares[:3] == pytest.approx(exact.squares, rel=0.05)
    assert found.squares.shape == (5,)
    assert (np.diff(found.squares) <= 0).all()
    assert found.total == pytest.approx(exact.total, rel=0.05)
    error = found.sums - exact.sums
    assert np.abs(error - error.mean()).max() < 6 * found.noise_scale  # weights move them together


def test_what_is_inside_the_edge_counts_as_nothing():
    rng = np.random.default_rng(4)
    Y = sp.csr_array((rng.random((300, 40)) < 0.5) * 1.0)
    found = one_shot.normalised_pairs(Y, flip_deviation(0.05), 5.0, 3)
    assert np.array_equal(found.squares, np.zeros(3))
    assert np.allclose(found.vectors.T @ found.vectors, np.eye(3))
