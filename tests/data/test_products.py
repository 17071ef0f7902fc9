"""Products in which a row's result depends on that row alone, bit by bit."""

import math

import numpy as np
import pytest

from skdp import DPPCA, DPTruncatedSVD
from skdp.data.products import GRID_BITS, _halves, _powers, row_products


def problem(n, d, k, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-30, 30, (n, 1))
    return X, rng.standard_normal((d, k)) * 10.0 ** rng.uniform(-3, 3, k)


@pytest.mark.parametrize("shape", [(1, 1, 1), (50, 3, 2), (400, 65, 7), (30, 3000, 5), (0, 4, 2)])
def test_rows_do_not_see_each_other(shape):
    X, V = problem(*shape)
    whole = row_products(X, V)
    order = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_array_equal(row_products(X[order], V), whole[order])
    np.testing.assert_array_equal(row_products(np.asfortranarray(X)[1:], V), whole[1:])
    for i in range(0, len(X), 7):
        np.testing.assert_array_equal(row_products(X[i : i + 1], V)[0], whole[i])
    size = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(V, axis=0)
    assert np.all(np.abs(whole - X @ V) <= shape[1] * 2.0**-49 * size)


def test_products_of_halves_are_exact():
    """The worst case: equal signs, the longest rows, and halves in every entry."""
    d = 2**14
    bits = GRID_BITS + 1 - 7
    full = np.full((1, d), 2.0 ** (GRID_BITS - 7) - 0.5 + 2.0**-20)  # of a norm just below 2**26
    high, low = _halves(full, bits)
    for a, b in ((high, high), (high, low), (low, high)):
        exact = sum(int(x) * int(y) for x, y in zip(a[0], b[0], strict=True))
        assert 2**50 < abs(exact) < 2**53
        assert int((a @ b.T)[0, 0]) == exact


def test_powers_lie_beyond_norms():
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
def test_columns_beyond_what_can_be_squared(size):
    """Components over small singular values: rows do not see each other there either."""
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


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("cls", [DPPCA, DPTruncatedSVD])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_fit_hands_on_rows_that_do_not_see_each_other(cls, dtype):
    X = np.random.default_rng(0).standard_normal((600, 37)).astype(dtype)
    model = cls(3, clip_norm=6.0)
    first = model.fit_transform(X)
    assert first.dtype == dtype
    np.testing.assert_allclose(first, model.transform(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model._transform_each(X[1:]), first[1:])
    np.testing.assert_array_equal(model._transform_each(X[5:6]), first[5:6])
