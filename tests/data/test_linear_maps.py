"""Integer sketches: exact modulo 2**64, and norms that hold for the integers as they are."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.products import IntegerSketch, SketchMap

M, N, V, T = 8, 9, 3, 4
RNG = np.random.default_rng(0)
SPARSE = (RNG.permuted(np.tile(np.arange(V), (M, 1)), axis=1)[:, :2], RNG.choice([-1, 1], (M, 2)))
LEFT = {
    "none": None,
    "gaussian": IntegerSketch("gaussian", V, 2.0**20, RNG.integers(-(2**22), 2**22, (M, V))),
    "sparse": IntegerSketch("sparse", V, 2.0**0.5, None, *SPARSE),
}
RIGHT = {
    "none": None,
    "gaussian": IntegerSketch("gaussian", T, 2.0**20, RNG.integers(-(2**22), 2**22, (N, T))),
}
MAPS = {
    f"{left}-{right}": SketchMap("s", (M, N), LEFT[left], RIGHT[right])
    for left in LEFT
    for right in RIGHT
}


def exactly(sketch, Z):
    """S'Z F of Python integers, wrapped to 64 bits."""
    total = np.array([[int(z) for z in row] for row in Z], dtype=object)
    if sketch.left is not None:
        total = sketch.left.integers().astype(object).T @ total
    if sketch.right is not None:
        total = total @ sketch.right.integers().astype(object)
    return np.array([[(x + 2**63) % 2**64 - 2**63 for x in row] for row in total])


@pytest.mark.parametrize("bits", [5, 26, 52])
@pytest.mark.parametrize("name", MAPS)
def test_products_are_exact_modulo_two_to_the_64(name, bits):
    """Two limbs of 26 bits, blocks of rows, sparse words, and updates in any order."""
    sketch = MAPS[name]
    Z = np.random.default_rng(bits).integers(-(2**bits), 2**bits, (M, N)).astype(float)
    expected = exactly(sketch, Z)
    assert np.array_equal(sketch.of_matrix(Z, 0, bits <= 26), expected)
    assert np.array_equal(sketch.of_matrix(sp.csr_array(Z), 0, False), expected)
    total = np.zeros(sketch.out_shape, np.int64)
    for first, last in ((5, M), (0, 2), (2, 5)):
        sketch.add_matrix(total, Z[first:last], first, bits <= 26)
    assert np.array_equal(total, expected)
    rows, columns = np.divmod(np.random.default_rng(1).permutation(M * N), N)
    z = Z[rows, columns].astype(np.int64)
    assert np.array_equal(sketch.of_updates(rows, columns, z), expected)


@pytest.mark.parametrize("name", MAPS)
def test_float_sketches_are_those_of_the_real_matrices(name):
    sketch, A = MAPS[name], RNG.standard_normal((M, N))
    expected = A if sketch.left is None else sketch.left.real().T @ A
    expected = expected if sketch.right is None else expected @ sketch.right.real()
    np.testing.assert_allclose(sketch.of_floats(A, 0), expected, atol=1e-12)
    np.testing.assert_allclose(sketch.of_floats(sp.csr_array(A), 0), expected, atol=1e-12)


@pytest.mark.parametrize("side", ["gaussian", "sparse"])
def test_norms_are_rounded_up_and_near(side):
    sketch = LEFT[side]
    rows = np.linalg.norm(sketch.real(), axis=1).max()
    spectral = np.linalg.norm(sketch.real(), 2)
    assert rows <= sketch.largest_row() <= rows * (1 + 1e-8)
    assert spectral <= sketch.spectral() <= spectral * (1 + 1e-8)
