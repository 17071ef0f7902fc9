"""Exact products with public matrices, against Python integers."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.integers import PublicMatrix, exact_map, joined, limbs_of, on_grid, wide_map


def floored(grid, K):
    """floor(grid K / 2**26) of Python integers, wrapped to 64 bits."""
    n, d = grid.shape
    exact = [
        [sum(int(grid[i, m]) * int(K[m][j]) for m in range(d)) >> 26 for j in range(len(K[0]))]
        for i in range(n)
    ]
    return np.array([[(v + 2**63) % 2**64 - 2**63 for v in row] for row in exact])


@pytest.mark.parametrize("bits", [3, 25, 45, 61])
def test_exact_map(bits):
    rng = np.random.default_rng(bits)
    grid = rng.integers(-(2**25), 2**25, (7, 3)).astype(np.float64)
    K = rng.integers(-(2**bits), 2**bits, (3, 3))
    assert np.array_equal(exact_map(grid, K), floored(grid, K))


@pytest.mark.parametrize("bits", [3, 25, 45, 62])
def test_wide_map(bits):
    rng = np.random.default_rng(bits)
    grid = rng.integers(-(2**26), 2**26, (7, 3)).astype(np.float64)
    high = rng.integers(-(2**bits), 2**bits, (3, 3))
    low = rng.integers(-(2**50), 2**50, (3, 3))
    K = [[(int(high[i, j]) << 20) + int(low[i, j]) for j in range(3)] for i in range(3)]
    assert np.array_equal(wide_map(grid, high, low), floored(grid, K))


def test_limbs_are_joined_to_what_they_were():
    rng = np.random.default_rng(5)
    values = rng.integers(-(2**52), 2**52, 50)
    high, low = limbs_of(values.astype(np.float64)).astype(np.int64)
    assert np.array_equal(joined(high, low, 0), values)
    high, low = rng.integers(-(2**30), 2**30, 50), rng.integers(0, 2**35, 50)
    for shift in (1, 20, 33):
        exact = [(int(h) * 2**20 + int(k)) >> shift for h, k in zip(high, low, strict=True)]
        assert np.array_equal(joined(high, low, shift), exact)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 3e7])
def test_public_matrix_is_exact_and_knows_its_norms(scale):
    rng = np.random.default_rng(0)
    V = rng.standard_normal((6, 3)) * scale
    matrix = PublicMatrix(V)
    true = np.linalg.svd(V, compute_uv=False)[:2]
    np.testing.assert_allclose(matrix.norms, true, rtol=1e-6)
    Z = rng.integers(-(2**20), 2**20, (40, 6)).astype(np.float64)
    whole = matrix.multiply(Z)
    np.testing.assert_allclose(whole, Z @ V, rtol=0, atol=1e-6 * np.abs(Z @ V).max())
    assert np.array_equal(matrix.multiply(sp.csr_array(Z)), whole)
    assert np.array_equal(matrix.multiply(Z[::-1])[::-1], whole)
    images = np.linalg.norm(whole, axis=1)
    assert np.all(images <= np.linalg.norm(Z, axis=1) * matrix.norms[0])


def test_grid_is_fine():
    V = np.linalg.qr(np.random.default_rng(1).standard_normal((5, 3)))[0]
    assert np.abs(on_grid(V) * 2.0**-26 - V).max() <= 2.0**-27
