"""Fits of one user in a shared subspace."""

import math

import numpy as np
import pytest

from skdp.solvers import local_fits as fits
from skdp.solvers.local_fits import LOSSES


@pytest.mark.thorough
def test_expected_risk_of_a_head_in_a_tilted_subspace():
    """E excess = |(I - UU')theta|^2 (1 + k/(q-k-1)) + sigma^2 k/(q-k-1): q rows, least squares."""
    d, k, sigma, n = 12, 3, 0.7, 30_000
    rng = np.random.default_rng(3)
    theta = np.append(np.ones(k), np.zeros(d - k)) + 0.3 * rng.standard_normal(d)
    U = np.eye(d)[:, :k]
    outside = np.sum(theta[k:] ** 2)
    for q in (8, 12, 24):
        X = rng.standard_normal((n, q, d))
        Y = X @ theta[:, None] + sigma * rng.standard_normal((n, q, 1))
        path = fits.RidgePath.of(X @ U)
        fit = path.fit(Y, 0 * Y, LOSSES["squared"], np.full(n, 1e-9), 0.0)
        excess = np.sum((path.coefficients(fit)[:, :, 0] - theta[:k]) ** 2, axis=1) + outside
        expected = outside * (1 + k / (q - k - 1)) + sigma**2 * k / (q - k - 1)
        assert abs(excess.mean() - expected) < 6 * excess.std() / math.sqrt(n)


@pytest.mark.parametrize("far", [0.0, 1e3, 1e12, np.inf])
def test_spread_about_own_means_wherever_they_are(far):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, 7, 3))
    A = np.ones_like(A) * rng.standard_normal(3) if far == np.inf else A + far
    expected = fits.own_scale(fits.centred(A))
    np.testing.assert_allclose(fits.own_spread(A), expected, rtol=1e-9)
    assert (expected == 1.0).all() == (far == np.inf)  # constants have none
