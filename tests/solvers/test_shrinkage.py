"""Shrunk eigenpairs against simulation: values and cosines of spiked matrices."""

import numpy as np
import pytest

from skdp.solvers.linalg import marchenko_pastur, top_eigenpairs, wigner


def spikes(n, k, rng):
    return np.linalg.qr(rng.standard_normal((n, k)))[0]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_wigner_finds_values_and_cosines(seed):
    n, scale, rng = 600, 0.3, np.random.default_rng(seed)
    U, theta = spikes(n, 3, rng), np.array([40.0, 25.0, 15.0])
    G = rng.standard_normal((n, n)) * scale * np.sqrt(2)  # (G + G')/2 has `scale` off the diagonal
    values, vectors = top_eigenpairs((U * theta) @ U.T + (G + G.T) / 2, 10)
    found = wigner(values, vectors, scale)
    assert len(found.values) == 3
    np.testing.assert_allclose(found.values, theta, rtol=0.08)
    true = np.sum((U.T @ found.vectors) ** 2, axis=0)
    np.testing.assert_allclose(found.cosines, true, atol=0.08)


@pytest.mark.deep
def test_wigner_reads_nothing_in_noise():
    rng = np.random.default_rng(0)
    n, rank = 300, 0
    for _ in range(20):
        G = rng.standard_normal((n, n))
        rank += len(wigner(*top_eigenpairs((G + G.T) / 2, 5), np.sqrt(0.5)).values)
    assert rank <= 2


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_marchenko_pastur_finds_values_and_cosines(seed):
    m, n, s, rng = 3000, 500, 0.7, np.random.default_rng(seed)
    V, strengths = spikes(n, 3, rng), np.array([80.0, 60.0, 45.0])
    Y = (spikes(m, 3, rng) * strengths) @ V.T + s * rng.standard_normal((m, n))
    values, vectors = top_eigenpairs(Y.T @ Y - m * s**2 * np.eye(n), 10)
    found = marchenko_pastur(values, vectors, m, s**2)
    assert len(found.values) == 3
    np.testing.assert_allclose(found.values, strengths**2, rtol=0.1)
    true = np.sum((V.T @ found.vectors) ** 2, axis=0)
    np.testing.assert_allclose(found.cosines, true, atol=0.08)


def test_without_noise_all_is_read():
    values, vectors = np.array([3.0, 1.0, -1.0]), np.eye(3)
    for found in (wigner(values, vectors, 0.0), marchenko_pastur(values, vectors, 10, 0.0)):
        np.testing.assert_allclose(found.values, [3.0, 1.0])
        np.testing.assert_allclose(found.cosines, 1.0)
