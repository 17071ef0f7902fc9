"""Products in which a row's result depends on that row alone, bit by bit."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.pipeline import make_pipeline

from skdp import DPPCA, DPGridSearchCV, DPIncrementalPCA, DPStandardScaler, DPTruncatedSVD
from skdp.data import products
from skdp.data.products import GRID_BITS, IntegerSketch, SketchMap, _halves, _powers, row_products
from skdp.decomposition._base import each_by_itself


def problem(n, d, k, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-30, 30, (n, 1))
    return X, rng.standard_normal((d, k)) * 10.0 ** rng.uniform(-3, 3, k)


@pytest.mark.parametrize("shape", [(1, 1, 1), (50, 3, 2), (400, 65, 7), (30, 3000, 5), (0, 4, 2)])
def test_products_of_rows_do_not_depend_on_other_rows(shape):
    X, V = problem(*shape)
    whole = row_products(X, V)
    order = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_array_equal(row_products(X[order], V), whole[order])
    np.testing.assert_array_equal(row_products(np.asfortranarray(X)[1:], V), whole[1:])
    for i in range(0, len(X), 7):
        np.testing.assert_array_equal(row_products(X[i : i + 1], V)[0], whole[i])
    size = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(V, axis=0)
    assert np.all(np.abs(whole - X @ V) <= shape[1] * 2.0**-49 * size)


@pytest.mark.parametrize("d", [2**6, 2**12])
def test_products_of_the_longest_rows_do_not_depend_on_an_order(d):
    """Of norms just below 2**26: their integers cancel, so that the next bits show, of one sign."""
    most, rng = int(2**GRID_BITS / math.sqrt(d)), np.random.default_rng(0)
    first, second = np.repeat(rng.integers(most - most // 8, most - 1, (2, 8, d // 2)), 2, axis=2)
    X = 4 * (first * np.tile([1, -1], d // 2) + rng.uniform(0.49, 0.5, (8, d)))  # powers of 16
    V, order = second.T + 0.0, rng.permutation(d)
    whole = row_products(X, V)
    np.testing.assert_array_equal(row_products(X[:, order], V[order]), whole)
    np.testing.assert_array_equal(np.vstack([row_products(x[None], V) for x in X]), whole)


def test_products_of_halves_are_exact():
    """The worst case: equal signs, rows of the largest norm, and halves in every entry."""
    d = 2**14
    bits = GRID_BITS + 1 - 7
    full = np.full((1, d), 2.0 ** (GRID_BITS - 7) - 0.5 + 2.0**-20)  # of a norm just below 2**26
    high, low = _halves(full, bits)
    for a, b in ((high, high), (high, low), (low, high)):
        exact = sum(int(x) * int(y) for x, y in zip(a[0], b[0], strict=True))
        assert 2**50 < abs(exact) < 2**53
        assert int((a @ b.T)[0, 0]) == exact


def test_powers_exceed_norms():
    """At any scale, and as near to a norm as a bound of the precision needs."""
    X = (
        np.random.default_rng(0).standard_normal((300, 9))
        * 10.0 ** np.linspace(-320, 300, 300)[:, None]
    )
    for rows in (X, X[:1], X[100:102]):
        norms = [math.hypot(*row) for row in rows]
        powers = np.broadcast_to(_powers(rows), len(rows))
        beyond = np.array([math.log2(norm) if norm else -1e4 for norm in norms])
        assert np.all(powers >= beyond)
        assert np.all(powers[beyond > -1000] <= beyond[beyond > -1000] + 6)


@pytest.mark.parametrize("size", [1e300, 1.7e308, 1e-200, 5e-324])
def test_columns_with_squares_that_overflow(size):
    """Components divided by small singular values: rows are independent there too."""
    X, V = problem(40, 9, 3)
    V = size * (V / np.abs(V).max())
    X *= 1e-30 / np.abs(X).max()
    whole = row_products(X, V)
    for i in range(len(X)):
        np.testing.assert_array_equal(row_products(X[i : i + 1], V)[0], whole[i])
    if size > 1:
        np.testing.assert_allclose(whole, (X * size) @ (V / size), rtol=1e-9)


def test_extremes():
    X = np.array([[1.7e308, 1.7e308], [5e-324, 0.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
    out = row_products(X, np.eye(2) * 0.5)
    np.testing.assert_allclose(out[0], [0.85e308, 0.85e308])
    np.testing.assert_array_equal(out[2], 0.0)
    assert not np.isfinite(out[3:]).all()
    assert np.isfinite(products.saturated(np.array([np.inf, -np.inf]))).all()


def search(k, clip_norm):
    pipeline = make_pipeline(DPStandardScaler(), DPPCA(k))
    return DPGridSearchCV(pipeline, {"dppca__clip_norm": [clip_norm]})


@pytest.mark.thorough("cls")
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("cls", [DPPCA, DPTruncatedSVD, DPIncrementalPCA, search])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_a_fit_passes_on_do_not_depend_on_each_other(cls, dtype):
    X = np.random.default_rng(0).standard_normal((150, 37)).astype(dtype)
    model = cls(3, clip_norm=6.0)
    first = model.fit_transform(X)
    assert first.dtype == dtype
    np.testing.assert_allclose(first, model.transform(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(each_by_itself(model.transform, X[5:]), first[5:])


# -- integer sketches: exact modulo 2**64, and norms that hold for the integers as they are --------


M, N, V, T = 8, 99, 3, 4  # more columns than one exact product takes
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
RIGHT["gaussian"].matrix[:, 0] = 2**22 - 1
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


@pytest.mark.parametrize("bits", [5, 26, 39, 52])
@pytest.mark.parametrize("name", MAPS)
def test_products_are_exact_modulo_two_to_the_64(name, bits):
    """Two limbs of 26 bits, blocks of rows, sparse words, and updates in any order."""
    sketch = MAPS[name]
    Z = np.random.default_rng(bits).integers(-(2**bits), 2**bits, (M, N)).astype(float)
    Z[0] = 2**bits - 1
    expected = exactly(sketch, Z)
    total, one, two = np.zeros((3, *sketch.out_shape), np.int64)
    assert np.array_equal(sketch.add_matrix(one, Z, 0, bits <= 26), expected)
    assert np.array_equal(sketch.add_matrix(two, sp.csr_array(Z)), expected)
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
    for form in (A, sp.csr_array(A)):
        found = sketch.add_floats(np.zeros(sketch.out_shape), form)
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("side", ["gaussian", "sparse"])
def test_norms_are_rounded_up_by_little(side):
    sketch = LEFT[side]
    rows = np.linalg.norm(sketch.real(), axis=1).max()
    spectral = np.linalg.norm(sketch.real(), 2)
    assert rows <= sketch.largest_row() <= rows * (1 + 1e-8)
    assert spectral <= sketch.spectral() <= spectral * (1 + 1e-8)
