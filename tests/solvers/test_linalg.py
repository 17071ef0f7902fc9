"""Linear algebra on public arrays."""

import numpy as np
import pytest

from skdp.solvers.linalg import fix_signs, orthonormal, symmetric_noise_edge, top_eigenpairs

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(7, 3), (7, 1), (5, 5), (6, 0)])
def test_orthonormal_keeps_the_span(shape):
    Y = RNG.standard_normal(shape)
    Q = orthonormal(Y)
    assert Q.shape == shape
    assert np.allclose(Q.T @ Q, np.eye(shape[1]))
    assert np.allclose(Q @ (Q.T @ Y), Y)


def test_orthonormal_of_zeros_is_still_orthonormal():
    Q = orthonormal(np.zeros((5, 2)))
    assert np.allclose(Q.T @ Q, np.eye(2))


def test_fix_signs():
    components = np.array([[1.0, -3.0, 2.0], [0.5, 0.1, -0.2], [0.0, 0.0, 0.0]])
    fixed = fix_signs(components)
    assert np.array_equal(fixed, [[-1.0, 3.0, -2.0], [0.5, 0.1, -0.2], [0.0, 0.0, 0.0]])
    assert np.array_equal(fix_signs(-fixed), fixed)
    assert components[0, 0] == 1.0  # a new array


@pytest.mark.parametrize(
    ("d", "k"),
    [(1, None), (1, 1), (2, 1), (2, 2), (5, 1), (5, 4), *((12, k) for k in (1, 2, 3, 11, 12))],
)
def test_top_eigenpairs(d, k):
    M = RNG.standard_normal((d, d))
    M = M + M.T
    values, vectors = top_eigenpairs(M, k)
    expected = np.linalg.eigvalsh(M)[::-1][:k]
    assert np.allclose(values, expected)
    assert vectors.shape == (d, len(expected))
    assert np.allclose(M @ vectors, vectors * values)
    assert np.allclose(vectors.T @ vectors, np.eye(len(expected)))


def test_symmetric_noise_edge():
    """The largest eigenvalue of (G + G')/2 lies at the edge, up to a few percent."""
    G = np.random.default_rng(1).standard_normal((600, 600)) * 3.0
    largest = np.linalg.eigvalsh((G + G.T) / 2)[-1]
    assert largest == pytest.approx(symmetric_noise_edge(3.0, 600), rel=0.04)
