"""The row map: bounded in exact integers, a function of one row alone, accurate."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from skdp.data.integers import IntegerRows, length_unit, row_norms


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
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((6, d)) * 10.0**log_scale
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


def test_clipped_rows_keep_direction_and_length():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((500, 20)) * 10.0 ** rng.uniform(-1, 8, (500, 1))
    unit = 1 / 15384.2
    Z = IntegerRows(1.0, unit)(X) * unit
    norms = np.linalg.norm(X, axis=1)
    clipped = X * np.minimum(1, 1 / norms)[:, None]
    assert np.abs(Z - clipped).max() < 3 * unit


def test_unit_rows_are_rarely_truncated():
    """Rows on the sphere of the clip norm: rounded lengths stay within two units of it."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((2000, 64))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    radius = 15384.2
    lengths = np.sqrt(exact_squares(IntegerRows(1.0, 1 / radius)(X)))
    assert lengths.max() <= radius
    assert np.mean(lengths > radius - 5) > 0.98


def test_row_norms_at_any_scale():
    rng = np.random.default_rng(5)
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
    norms = row_norms(X, length_unit(30))
    np.testing.assert_allclose(norms, expected, rtol=1e-3)
    one = row_norms(np.array([X[7], 2 * X[0], X[1]]), length_unit(30))[0]
    assert one == norms[7]


@pytest.mark.parametrize("n_features", [1, 7, 100, 4000])
def test_a_row_of_length_one_has_length_one(n_features):
    assert row_norms(np.eye(1, n_features), length_unit(n_features)) == [1.0]
