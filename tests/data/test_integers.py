"""The row map: bounded in exact integers, a function of one row alone, accurate."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from skdp.data import integers
from skdp.data.blocks import limbs_of
from skdp.data.integers import IntegerRows, PublicMatrix, clipped, row_map, row_norms


def exact_squares(Z):
    dense = Z.toarray() if sp.issparse(Z) else Z
    return [sum(int(v) ** 2 for v in row) for row in dense]


def hostile_rows(seed, d=7, n=200):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-30, 30, (n, 1))
    X[:5] = [[0] * d, [np.nan] + [1] * (d - 1), [np.inf] * d, [5e-324] * d, [1.7e308] * d]
    X[5:10] /= np.linalg.norm(X[5:10], axis=1, keepdims=True)
    X[10] = 0
    X[10, 0] = 1e200
    return X


@pytest.mark.parametrize("radius", [0.4, 1.0, 3.7, 50.0, 15384.2, 7e4])
@pytest.mark.parametrize("sparse", [False, True])
def test_integer_norm_never_exceeds_the_bound(radius, sparse):
    X = hostile_rows(0)
    rows = sp.csr_array(X) if sparse else X
    Z = IntegerRows(1.0, 1.0 / radius)(rows)
    assert max(exact_squares(Z)) <= radius**2
    dense = Z.toarray() if sparse else Z
    assert not dense[:4].any() or radius > 1e300
    assert np.array_equal(dense, np.rint(dense))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(-20, 20), st.floats(0.1, 1e5))
def test_integer_norm_is_bounded_for_any_row(seed, d, log_scale, radius):
    X = np.random.default_rng(seed).standard_normal((6, d)) * 10.0**log_scale
    assert max(exact_squares(IntegerRows(1.0, 1.0 / radius)(X))) <= radius**2


@pytest.mark.thorough
@pytest.mark.parametrize("sparse", [False, True])
def test_a_row_does_not_depend_on_its_neighbours(sparse):
    X = hostile_rows(1)
    make = sp.csr_array if sparse else np.asarray
    to_integers = IntegerRows(1.0, 1 / 15384.2)
    whole = to_integers(make(X))
    whole = whole.toarray() if sparse else whole
    for i in range(len(X)):
        for window in (slice(i, i + 1), slice(max(0, i - 3), i + 1)):
            alone = to_integers(make(X[window]))
            alone = alone.toarray() if sparse else alone
            assert np.array_equal(alone[-1], whole[i])


def test_sparse_and_dense_rows_agree():
    X = hostile_rows(2)
    X[np.random.default_rng(0).random(X.shape) < 0.4] = 0
    to_integers = IntegerRows(1.0, 1 / 15384.2)
    assert np.array_equal(to_integers(sp.csr_array(X)).toarray(), to_integers(X))


def test_clipped_rows_keep_direction_and_norm(rng):
    X = rng.standard_normal((500, 20)) * 10.0 ** rng.uniform(-1, 8, (500, 1))
    unit = 1 / 15384.2
    Z = IntegerRows(1.0, unit)(X) * unit
    clipped = X * np.minimum(1, 1 / np.linalg.norm(X, axis=1))[:, None]
    assert np.abs(Z - clipped).max() < 3 * unit


def test_unit_rows_are_rarely_truncated(rng):
    """Rows on the sphere of the clip norm: rounded norms stay within two units of it."""
    X = rng.standard_normal((2000, 64))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    radius = 15384.2
    lengths = np.sqrt(exact_squares(IntegerRows(1.0, 1 / radius)(X)))
    assert lengths.max() <= radius
    assert np.mean(lengths > radius - 5) > 0.98


def test_row_norms_at_any_scale(rng):
    X = rng.standard_normal((300, 9)) * 10.0 ** rng.uniform(-150, 150, (300, 1))
    assert np.allclose(row_norms(X), np.linalg.norm(X, axis=1), rtol=1e-4)
    assert np.array_equal(row_norms(X), row_norms(sp.csr_array(X)))
    assert np.array_equal(row_norms(np.array([[np.nan, 1], [0, 0], [np.inf, 0]])), np.zeros(3))


@pytest.mark.parametrize("scale", [1e-300, 1e-6, 1.0, 2.0**40, 1e200])
def test_norms_in_a_unit(scale):
    """Rows of too few or too many units are measured in units of their own."""
    X = scale * np.random.default_rng(0).standard_normal((50, 30))
    X[3], X[4, 2] = 0.0, np.nan
    expected = np.where(np.arange(50) == 4, 0.0, scale * np.linalg.norm(X / scale, axis=1))
    norms = row_norms(X, integers.length_unit(30))
    np.testing.assert_allclose(norms, expected, rtol=1e-3)
    assert row_norms(np.array([X[7], 2 * X[0], X[1]]), integers.length_unit(30))[0] == norms[7]


@pytest.mark.parametrize("n_features", [1, 7, 100, 4000])
def test_a_row_of_norm_one_has_norm_one(n_features):
    assert row_norms(np.eye(1, n_features), integers.length_unit(n_features)) == [1.0]


# -- contributions of users are clipped to a norm at every scale: exactly for integers -------------


def test_norms_of_contributions(rng):
    for scale in (1e-300, 1e-200, 1e-8, 1.0, 1e8, 1e200, 1e308):
        values = rng.uniform(-1, 1, (50, 17)) * scale
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(clipped(values, 0.7) / 0.7, axis=1)
        assert (norms <= 1 + 1e-12).all()
        if scale >= 1:
            assert norms.min() > 1 - 1e-12
    bad = np.array([[np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0]])
    assert not clipped(bad, 1.0).any()
    assert not any(row_map(C, 0.0)(bad).any() for C in (1.0, np.inf))  # as with finite epsilon
    assert np.array_equal(clipped(np.array([[0.3, 0.4]]), 1.0), [[0.3, 0.4]])


@pytest.mark.thorough
@pytest.mark.parametrize("step", [0.3, 1e-10, 1e-7, 1e-4, 1e-2])
def test_integer_factors_are_exactly_bounded(step, rng):
    """The exact norm, in Python integers, of factors of every shape and scale."""
    for p, d in ((2, 1), (2, 4), (6, 5), (4, 30), (10, 2)):
        F = rng.standard_normal((30, p, d)) * 10.0 ** rng.uniform(-9, 9, (30, 1, 1))
        F[2] = 0
        F[4, 0, 0], F[5] = -np.inf, -1e200  # the largest entry may be a negative one
        F[6] = 1e-200 * (np.arange(p * d) == 0).reshape(p, d)
        F[3] = F[3, :1, :1]  # at (2, 4) and 0.3 all entries are rounded up, whatever shrinks them
        for Z in integers.unit_factors(F, step):
            rows = [[int(z) for z in row] for row in Z]
            G = [[sum(a * b for a, b in zip(r, s, strict=True)) for s in rows] for r in rows]
            assert sum(entry**2 for row in G for entry in row) <= 1 / step**2
        assert integers.unit_factors(F, step)[6, 0, 0] > 0  # however small the user's rows are


# -- wide integers in digits: the same numbers as Python's integers --------------------------------


RNG = np.random.default_rng(0)
BITS = 21


def exact(array):
    return np.vectorize(int, otypes=[object])(array)


def sum_of_digits(digits):
    return sum(exact(digit) * 2 ** (BITS * i) for i, digit in enumerate(digits))


def wide(shape):
    """Integers that floats hold, of all sizes, powers of two and their neighbours among them."""
    exponents = RNG.integers(0, 38, shape)
    values = RNG.integers(-(2**53), 2**53, shape) * 2.0**exponents
    values.flat[:6] = [0.0, 1.0, -(2.0**20), 2.0**20, -(2.0**90), np.nextafter(2.0**53, 0)]
    return values


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_digits_are_small_and_sum_to_the_number(form):
    Z = wide((7, 9))
    digits = integers.split(form(Z), BITS)
    assert len(digits) == math.ceil(91 / BITS)
    assert all(np.abs(integers.stored(digit)).max() <= 2 ** (BITS - 1) for digit in digits)
    parts = [digit.toarray() if sp.issparse(digit) else digit for digit in digits]
    assert np.array_equal(sum_of_digits(parts), exact(Z))
    assert len(integers.split(form(np.clip(Z, -1000, 1000)), BITS)) == 1


@pytest.mark.parametrize("longest", [2, 1000, 4096, 10**6])
def test_sums_of_products_stay_exact(longest):
    W, _ = integers.on_column_grid(np.full((longest, 1), 1.9))
    assert float(np.abs(W).sum()) * 2 ** (integers.digit_bits(longest) - 1) < 2**53
    assert integers.digit_bits(longest) >= 17


def test_a_public_matrix_moves_by_less_than_its_bound():
    for scale in (1e-300, 1.0, 1e300):
        V = RNG.standard_normal((30, 4)) * [1, 1e-3, 1, 1] * scale
        W, g = integers.on_column_grid(V)
        moved = np.linalg.norm((np.ldexp(W, -g) - V) / scale)
        assert moved <= 2.0**-25 * math.sqrt(V.size) * np.linalg.norm(V / scale, 2)
    assert not integers.on_column_grid(np.zeros((3, 2)))[0].any()


@pytest.mark.parametrize("shift", [-70, -3, 0, 5, 20, 21, 42, 60, 95, 300])
def test_products_and_their_floor(shift):
    Z = wide((7, 9))
    W, _ = integers.on_column_grid(RNG.standard_normal((9, 3)))
    parts = integers.products(integers.split(Z, BITS), W)
    product = exact(Z) @ exact(W)
    assert np.array_equal(sum_of_digits(parts), product)
    assert np.array_equal(sum_of_digits(integers.digits_of(parts, BITS)), product)
    expected = [x >> shift if shift > 0 else x << -shift for x in product.ravel()]
    cut = np.array([max(-(2**62), min(2**62, x)) for x in expected]).reshape(7, 3)
    assert np.array_equal(integers.floored(parts, BITS, shift), cut)


@pytest.mark.parametrize("shift", [0, 1, 25])
def test_the_floor_is_clipped_at_two_to_the_62_exactly(shift):
    edge = 2 ** (62 + shift)
    for value in (edge - 1, edge, edge + 1, edge * 5 // 4 + 3, -edge - 1, -edge + 1, edge * 2**70):
        parts, rest = [], value
        while rest:
            parts.append(np.array([rest % 2**BITS]) if abs(rest) >= 2**40 else np.array([rest]))
            rest = (rest - int(parts[-1][0])) >> BITS
        expected = max(-(2**62), min(2**62, value >> shift))
        assert integers.floored(parts, BITS, shift)[0] == expected


# -- exact products with public matrices, against Python integers ----------------------------------


def floored_exactly(grid, K, shift=26):
    """floor(grid K / 2**shift) of Python integers, wrapped to 64 bits."""
    n, d = grid.shape
    exact = [
        [sum(int(grid[i, m]) * int(K[m][j]) for m in range(d)) >> shift for j in range(len(K[0]))]
        for i in range(n)
    ]
    return np.array([[(v + 2**63) % 2**64 - 2**63 for v in row] for row in exact])


@pytest.mark.parametrize("bits", [3, 25, 45, 61])
def test_exact_map(bits):
    rng = np.random.default_rng(bits)
    grid = rng.integers(-(2**25), 2**25, (7, 3)).astype(np.float64)
    K = rng.integers(-(2**bits), 2**bits, (3, 3))
    assert np.array_equal(integers.exact_map(grid, K), floored_exactly(grid, K))


@pytest.mark.parametrize("bits", [3, 25, 45, 62])
def test_wide_map(bits):
    rng = np.random.default_rng(bits)
    grid = rng.integers(-(2**26), 2**26, (7, 3)).astype(np.float64)
    high = rng.integers(-(2**bits), 2**bits, (3, 3))
    low = rng.integers(-(2**50), 2**50, (3, 3))
    K = [[(int(high[i, j]) << 20) + int(low[i, j]) for j in range(3)] for i in range(3)]
    for drop in (0, 3):
        expected = floored_exactly(grid, K, 26 + drop)
        assert np.array_equal(integers.wide_map(grid, high, low, drop), expected)


@pytest.mark.thorough("bits", "ratio")
@pytest.mark.parametrize("bits", [12, 30, 62, 65])
@pytest.mark.parametrize("scale", [1.0, 1.3])
@pytest.mark.parametrize(("ratio", "length"), [(1.0, 2**15), (0.3, 2**15), (3.0, 2**4), (1e-7, 9)])
def test_a_projected_moment_is_rounded_by_at_most_its_bound(bits, scale, ratio, length):
    """Sums of all sizes: the change by one row, against Python integers."""
    rng = np.random.default_rng(bits)
    d, k = 12, 4
    matrix = PublicMatrix(np.linalg.qr(rng.standard_normal((d, k)))[0] * scale)
    integers, far, longest = matrix.integers.astype(np.int64).astype(object), [], d * length**2
    bits -= max(0, 32 - math.frexp(longest)[1])
    for _ in range(20):
        new, old = (
            np.outer(row, row) for row in rng.integers(-length, length, (2, d)).astype(object)
        )
        wide = rng.standard_normal((d, d))
        wide = ((wide @ wide.T / np.trace(wide @ wide.T)) * 2**50).astype(np.int64).astype(object)
        before = wide * 2 ** (bits + 60) // 2**110 + old
        limbs = [
            np.array([(G >> 20) - 5, (G & (2**20 - 1)) + 5 * 2**20]).astype(np.int64)
            for G in (before, before + new)
        ]
        first, second = (matrix.projected(G, ratio, longest).astype(object) for G in limbs)
        assert np.array_equal(first, first.T)
        change, whole = (
            (integers.T @ G @ integers).astype(float) * ratio * matrix.unit**2
            for G in (new, before)
        )
        if np.abs(whole).max() < 2.0**62:  # larger sums wrap, as those of rows do
            near = {"rtol": 1e-7, "atol": 100 + 1e-7 * longest}
            np.testing.assert_allclose(first.astype(float), whole, **near)
        far.append(np.linalg.norm((second - first).astype(float) - change))
    wider, steps = matrix.rounding
    assert max(far) <= (wider * ratio * longest * matrix.norms[0] ** 2 + steps)
    assert max(far) >= 0.1 * steps or ratio < 0.1  # then a row adds less than a step
    assert matrix.projected(limbs[0], 1e9 / longest * 2**32, longest) is None


def test_a_moment_of_many_columns_is_not_projected():
    matrix = PublicMatrix(np.eye(5000, 1))
    assert matrix.rounding == (0, 0) and matrix.projected(np.ones((2, 1, 1), int), 1, 1) is None


@pytest.mark.parametrize("e", [-19, 0, 5, 16])
def test_sums_are_scaled_down_modulo_two_to_the_64(e):
    """If a fine step makes a sum wrap, neighbours still differ by the contribution of one row."""
    K = np.array([sign * 2 ** min(62, 63 - e) + i for sign in (1, -1) for i in range(-3, 3)])
    factor = Fraction(math.floor(0.9 * 2**26)) * Fraction(2) ** (e - 26)
    wanted = [math.floor(factor * int(k)) % 2**64 for k in K]
    assert integers.scaled_down(K, math.ldexp(0.9, e)).view(np.uint64).tolist() == wanted


def test_joined_limbs_give_the_integer(rng):
    values = rng.integers(-(2**52), 2**52, 50)
    high, low = limbs_of(values.astype(np.float64)).astype(np.int64)
    assert np.array_equal(integers.joined(high, low, 0), values)
    high, low = rng.integers(-(2**30), 2**30, 50), rng.integers(0, 2**35, 50)
    for shift in (1, 20, 33):
        exact = [(int(h) * 2**20 + int(k)) >> shift for h, k in zip(high, low, strict=True)]
        assert np.array_equal(integers.joined(high, low, shift), exact)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 3e7])
def test_public_matrix_and_its_norms_are_exact(scale, rng):
    V = rng.standard_normal((6, 3)) * scale
    matrix = PublicMatrix(V)
    np.testing.assert_allclose(matrix.norms, np.linalg.svd(V, compute_uv=False)[:2], rtol=1e-6)
    assert 2.0**25 <= np.linalg.norm(matrix.integers, 2) <= 1.001 * 2.0**26  # and no bit more
    Z = rng.integers(-(2**20), 2**20, (40, 6)).astype(np.float64)
    whole = matrix.multiply(Z)
    np.testing.assert_allclose(whole, Z @ V, rtol=0, atol=1e-6 * np.abs(Z @ V).max())
    assert np.array_equal(matrix.multiply(sp.csr_array(Z)), whole)
    assert np.array_equal(matrix.multiply(Z[::-1])[::-1], whole)
    assert np.all(np.linalg.norm(whole, axis=1) <= np.linalg.norm(Z, axis=1) * matrix.norms[0])


def test_grid_is_fine():
    V = np.linalg.qr(np.random.default_rng(1).standard_normal((5, 3)))[0]
    assert np.abs(integers.on_grid(V) * 2.0**-26 - V).max() <= 2.0**-27
