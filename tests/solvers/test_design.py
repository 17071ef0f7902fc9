"""Whitening of a design, from its released moments."""

import numpy as np
import pytest

from skdp.solvers.whitening import whitening


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_whitening_of_a_known_covariance(noise):
    rng = np.random.default_rng(4)
    R, C = (0.5 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d))) for d in (5, 4))
    n = 50.0
    moments = n * np.concatenate([(R * np.trace(C)).ravel(), (C * np.trace(R)).ravel()])
    moments = moments + noise * rng.standard_normal(moments.shape)
    left, right, lam, *_ = whitening(moments, (5, 4), n, noise)
    assert np.allclose(left @ R @ left * (right @ C @ right)[0, 0] / lam, np.eye(5), atol=1e-3)
    assert max(np.linalg.norm(left, 2), np.linalg.norm(right, 2)) == pytest.approx(1.0)


def test_whitening_ignores_what_is_noise():
    rng = np.random.default_rng(5)
    noise = 5.0
    moments = np.concatenate([(200.0 * np.eye(10)).ravel(), (200.0 * np.eye(10)).ravel()])
    left, _, lam, *_ = whitening(moments + noise * rng.standard_normal(200), (10, 10), 20.0, noise)
    assert np.linalg.cond(left) < 1.1
    assert lam == pytest.approx(1.0, rel=0.1)
    assert whitening(noise * rng.standard_normal(200), (10, 10), 20.0, noise) is None
    diagonal = np.concatenate([np.full(10, 200.0), np.full(10, 200.0)])
    left, _, lam, *_ = whitening(diagonal, (10, 10), 20.0, 0.0)
    assert np.allclose(left, np.eye(10)) and lam == pytest.approx(1.0)
