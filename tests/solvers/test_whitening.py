"""Whitening of a design, and means of rows and columns, on synthetic answers."""

import math

import numpy as np
import pytest

from skdp.solvers.columns import Center
from skdp.solvers.whitening import Means, Whitening, energies, whitening
from tools.gate import Noisy


class Ratings(Noisy):
    """Sums over ratings of known cells with means a 1' + 1 b', and noise of a clipped sum."""

    def __init__(self, counts, a, b, noise=0.0, seed=0):
        super().__init__(noise, seed)
        self.counts, self.truth, self.asked = counts, a[:, None] + b, []
        self.error = self.truth

    def about_means(self, rows, columns):
        self.error = self.truth - (rows[:, None] + columns)
        return self

    def single_entries(self, by_column):
        self.by_column = by_column
        return self

    def augmented(self, centre, bias):
        assert bias == 0.0
        return self

    def products(self):
        return self

    def total(self, level, *, share):
        self.asked.append((self.by_column, share))
        sums = (self.counts * self.error).sum(axis=0 if self.by_column else 1)
        return self.noisy(sums, share, self.noise * level / math.sqrt(share))


def example(d1=40, d2=15, n=6000, seed=1, spread=0.5):
    rng = np.random.default_rng(seed)
    popular = np.geomspace(20, 1, d2)
    counts = rng.multinomial(n, np.outer(np.ones(d1), popular).ravel() / d1 / popular.sum())
    counts = counts.reshape(d1, d2).astype(float)
    b = spread * rng.standard_normal(d2)
    a = 0.2 * spread * rng.standard_normal(d1)
    a -= np.average(a, weights=counts.sum(axis=1))
    return counts, a, b - np.average(b, weights=counts.sum(axis=0))


def facts(counts, noise=0.0, sd=1.0):
    n, centre = float(counts.sum()), Center(3.0, sd, True)
    return counts.sum(axis=1), counts.sum(axis=0), n, centre, noise


def missed(means, counts, a, b):
    rest = a[:, None] + b - (means.rows.means[:, None] + means.columns.means)
    return float(np.average(rest**2, weights=counts))


@pytest.mark.parametrize("noise", [1.0, 10.0, 100.0])
def test_noise_costs_little_more_than_knowing_nothing(noise):
    """Each mean is drawn to 0 by its noise; what is spent is the share, in rounds."""
    ratios = []
    for seed in range(8):
        counts, a, b = example(seed=seed)
        means, ask = Means(*facts(counts, noise)), Ratings(counts, a, b, noise, seed=seed)
        means.release(ask, 0.3)
        assert math.fsum(share for _, share in ask.asked) == pytest.approx(0.3)
        ratios.append(missed(means, counts, a, b) / missed(Means(*facts(counts)), counts, a, b))
    assert np.mean(ratios) < {1.0: 0.15, 10.0: 0.7, 100.0: 1.15}[noise]  # were .07, .53, 1.03


def test_rows_that_cannot_be_seen_get_little():
    """Four thousand rows of one or two ratings each, with noise of a hundred and more."""
    counts, a, b = example(d1=4000, d2=10)
    ask = Ratings(counts, a, b, 50.0)
    means = Means(*facts(counts, 50.0))
    means.release(ask, 0.1)
    means.release(ask, 0.8)
    assert math.fsum(share for by_column, share in ask.asked if by_column) > 0.6


def test_energies_of_a_design():
    rows, columns = np.array([1.0, 4.0, 2.0]), np.array([3.0, 5.0])
    cells = np.outer(rows, columns)
    smallest = cells.min()
    W = [np.sqrt(part.min() / part) for part in (rows, columns)]
    found = energies(Whitening(*W, smallest), (3, 2), 10.0)
    assert np.allclose(found[0], 10 * cells.sum(axis=1))
    assert np.allclose(found[1], 10 * cells.sum(axis=0))
    even = energies(Whitening(None, None, 0.5), (3, 2), 10.0)
    assert np.allclose(even[0], 10.0) and np.allclose(even[1], 15.0)


# -- the design ------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_whitening_of_a_known_covariance(noise, rng):
    R, C = (0.5 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d))) for d in (5, 4))
    n = 50.0
    moments = n * np.concatenate([(R * np.trace(C)).ravel(), (C * np.trace(R)).ravel()])
    moments = moments + noise * rng.standard_normal(moments.shape)
    left, right, lam, *_ = whitening(moments, (5, 4), n, noise)
    assert np.allclose(left @ R @ left * (right @ C @ right)[0, 0] / lam, np.eye(5), atol=1e-3)
    assert max(np.linalg.norm(left, 2), np.linalg.norm(right, 2)) == pytest.approx(1.0)


@pytest.mark.deep
def test_a_diagonal_design_of_a_million_rows_is_a_vector(rng):
    sizes = rng.uniform(1.0, 2.0, 10**6)
    left, right, *_ = whitening(np.append(sizes, sizes.sum()), (10**6, 1), 20.0, 0.0)
    assert left.shape == (10**6,) and right.shape == (1,)
    assert np.allclose(left**2 * sizes, sizes.min())


def test_whitening_ignores_what_is_noise(rng):
    noise = 5.0
    moments = np.concatenate([(200.0 * np.eye(10)).ravel(), (200.0 * np.eye(10)).ravel()])
    left, _, lam, *_ = whitening(moments + noise * rng.standard_normal(200), (10, 10), 20.0, noise)
    assert np.linalg.cond(left) < 1.1
    assert lam == pytest.approx(1.0, rel=0.1)
    assert whitening(noise * rng.standard_normal(200), (10, 10), 20.0, noise) is None
    diagonal = np.concatenate([np.full(10, 200.0), np.full(10, 200.0)])
    left, _, lam, *_ = whitening(diagonal, (10, 10), 20.0, 0.0)
    assert np.allclose(left, np.ones(10)) and lam == pytest.approx(1.0)
