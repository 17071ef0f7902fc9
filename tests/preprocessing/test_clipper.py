"""RowClipper."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.preprocessing import RowClipper


def wild_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4)) * 10.0 ** rng.uniform(-3, 3, (60, 1))
    X[3], X[4], X[5] = 1.7e308, 5e-324, 0.0
    return X


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csc_matrix])
def test_no_row_is_longer_and_short_rows_stay(form, dtype):
    with np.errstate(over="ignore", under="ignore"):
        X = np.minimum(wild_rows(), np.finfo(dtype).max / 2).astype(dtype)
    Z = RowClipper(2.0).fit_transform(form(X))
    assert Z.dtype == dtype
    Z = Z.toarray() if sp.issparse(Z) else Z
    exact = np.array([math.hypot(*row) for row in Z.tolist()])
    before = np.array([math.hypot(*row) for row in X.astype(float).tolist()])
    assert exact.max() <= 2.0
    assert np.all(exact[before > 2] > 2.0 * (1 - 1e-5))
    np.testing.assert_array_equal(Z[before <= 2], X[before <= 2])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", [3, 7, 33, 257])
def test_neither_layout_nor_other_rows_change_a_bit(d, dtype):
    """A single row is in C and in Fortran order at once, a table is in one of them."""
    X = (10 * np.random.default_rng(1).standard_normal((40, d))).astype(dtype)
    clipper = RowClipper(1.0)
    expected = clipper.transform(X)
    np.testing.assert_array_equal(clipper.transform(np.asfortranarray(X)), expected)
    for n in (1, 2, 40):
        rows = np.asfortranarray(X[:n])
        np.testing.assert_array_equal(clipper.transform(rows), expected[:n])


def test_a_row_is_clipped_by_itself():
    X = wild_rows()
    alone = [RowClipper().transform(row[None])[0] for row in X]
    np.testing.assert_array_equal(alone, RowClipper().transform(X))
    np.testing.assert_array_equal(alone, RowClipper().transform(X[::-1])[::-1])
    doubled = sp.csr_array((np.array([0.3, 0.3]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    np.testing.assert_allclose(RowClipper(0.5).transform(doubled).toarray(), [[0, 0.5, 0]])


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, "auto", None, True])
def test_bad_clip_norm(clip_norm):
    with pytest.raises(ValueError, match="clip_norm"):
        RowClipper(clip_norm).fit(np.eye(2))
