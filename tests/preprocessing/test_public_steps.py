"""RowClipper and PublicScaler."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper
from skdp.preprocessing._standard_scaler import Standardisation
from tools.outcomes import refuses


def wild_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4)) * 10.0 ** rng.uniform(-3, 3, (60, 1))
    X[3], X[4], X[5], X[6] = 1.7e308, 5e-324, 0.0, 1.5  # the last: only its norm is large
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


def test_a_row_is_clipped_alike_wherever_it_lies():
    """A sum by BLAS has other bits in another place, for some of many rows."""
    X = np.random.default_rng(0).standard_normal((200, 101))
    rows = [RowClipper().transform(x[None])[0] for x in X]
    np.testing.assert_array_equal(RowClipper().transform(X), rows)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", [3, 7, 33, 257])
@pytest.mark.parametrize("step", [RowClipper(1.0), PublicScaler((-3, 4)), PublicScaler((0, 1e-60))])
def test_neither_layout_nor_other_rows_change_a_bit(step, d, dtype):
    """A single row is in C order and in Fortran order, a table in one of them only."""
    X = (10 * np.random.default_rng(1).standard_normal((40, d))).astype(dtype)
    X[:9] *= (10.0 ** np.arange(-20, 16, 4)).astype(dtype)[:, None]
    expected = step.transform(X)
    assert expected.dtype == dtype and np.isfinite(expected).all()
    np.testing.assert_array_equal(step.transform(np.asfortranarray(X)), expected)
    np.testing.assert_array_equal(step.transform(X[::-1])[::-1], expected)
    for n in (1, 2, 40):
        rows = np.asfortranarray(X[:n])
        np.testing.assert_array_equal(step.transform(rows), expected[:n])


def test_what_is_beyond_the_floats_of_a_dtype_is_its_largest_number():
    scaled = Standardisation((np.array([-1e30]), np.array([1e30])), None, np.array([1e-20]))
    for form in (np.asarray, sp.csr_array):
        found = scaled(form(np.array([[1e30]], np.float32)))
        assert found.dtype == np.float32 and found[0, 0] == np.finfo(np.float32).max


def test_entries_that_come_twice_are_one():
    doubled = sp.csr_array((np.array([0.3, 0.3]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    np.testing.assert_allclose(RowClipper(0.5).transform(doubled).toarray(), [[0, 0.5, 0]])


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, "auto", None, True])
def test_bad_clip_norm(clip_norm):
    refuses(ValueError, "clip_norm", RowClipper(clip_norm).fit, np.eye(2))


# -- public scaler ---------------------------------------------------------------------------------

X = np.array([[18.0, -5.0, 0.0], [54.0, 0.0, 5e9], [200.0, 7.0, 1e5]])
LOW, HIGH = [18, -10, 0], [90, 10, 2e5]
EXPECTED = np.array([[-1.0, -0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.7, 0.5]])
FRAME = pd.DataFrame(X, columns=["age", "balance", "income"])
FORMS = {
    "two lists": (LOW, HIGH),
    "an array": np.array([LOW, HIGH]),
    "list of tuples": list(zip(LOW, HIGH, strict=True)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_bounds(form):
    np.testing.assert_allclose(PublicScaler(FORMS[form]).transform(X), EXPECTED)
    np.testing.assert_allclose(PublicScaler(FORMS[form]).fit_transform(FRAME), EXPECTED)


def test_bounds_by_column_name_and_one_pair():
    scaler = PublicScaler({"income": (0, 2e5), "age": (18, 90), "balance": [-10, 10]})
    np.testing.assert_allclose(scaler.fit_transform(FRAME), EXPECTED)
    assert scaler.get_feature_names_out().tolist() == ["age", "balance", "income"]
    np.testing.assert_allclose(PublicScaler((-10, 10)).transform(X), np.clip(X, -10, 10) / 10)
    two = X[:, :2]  # a list of two tuples has one for each column, two lists are lows and highs
    pairs = PublicScaler([(18, 90), (-10, 10)]).transform(two)
    np.testing.assert_allclose(pairs, PublicScaler([[18, -10], [90, 10]]).transform(two))


@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix, sp.coo_array])
def test_sparse_rows_stay_sparse_where_zero_is_a_bound(container):
    rows = np.abs(X)
    out = PublicScaler(([0, 0, 0], [90, 10, 2e5])).transform(container(rows))
    assert sp.issparse(out)
    assert out.nnz == np.count_nonzero(rows)
    np.testing.assert_allclose(out.toarray(), np.clip(rows / [90, 10, 2e5], 0, 1))
    with pytest.raises(ValueError, match=r"column 1 it is not.*toarray"):
        PublicScaler(([0, -1, 0], [90, 10, 2e5])).transform(container(rows))


BAD = [
    (1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0), "auto", None, 3.0, (1.0,), (0, 1, 2),
    (True, False), ("0", "1"), [(0, 1), (0,)], [], {"age": (1, 0)}, {"age": 3},
]  # fmt: skip


@pytest.mark.parametrize("bounds", BAD, ids=repr)
def test_bad_bounds_are_refused_in_one_way(bounds):
    for act in (PublicScaler(bounds).fit, PublicScaler(bounds).transform):
        refuses(ValueError, r"The 'bounds' parameter of PublicScaler must be a pair", act, FRAME)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_way_back_restores_what_was_not_truncated(dtype):
    scaler = PublicScaler([(18, 90), (-10, 0), (0, 2e5)])
    Z = scaler.transform(X.astype(dtype))
    back = scaler.inverse_transform(Z)
    assert back.dtype == dtype
    np.testing.assert_allclose(back, np.clip(X, [18, -10, 0], [90, 0, 2e5]), rtol=1e-5)
    np.testing.assert_array_equal(Z, scaler.transform(X.astype(dtype)))  # untouched
    sparse, rows = PublicScaler((0, 9)), sp.csr_array(np.abs(X))
    back = sparse.inverse_transform(sparse.transform(rows))
    np.testing.assert_allclose(back.toarray(), np.clip(rows.toarray(), 0, 9))
    refuses(ValueError, "for 2 columns", scaler.inverse_transform, X[:, :2])
    by_name = PublicScaler({"balance": (0, 2), "age": (0, 4), "income": (0, 8)}).fit(FRAME)
    ends = dict(zip(FRAME, by_name.inverse_transform(np.ones((1, 3), int))[0], strict=True))
    assert ends == {"balance": 2, "age": 4, "income": 8}


def test_a_column_below_zero_stays_below_zero():
    found = PublicScaler((-5.0, 0.0)).transform([[-9.0], [-5.0], [-2.5], [0.0], [3.0]])
    assert found.ravel().tolist() == [-1.0, -1.0, -0.5, 0.0, 0.0]


def test_bounds_that_do_not_fit_the_columns():
    refuses(ValueError, r"for 3 columns", PublicScaler([(0, 1), (0, 2)]).fit, X)
    for step in (PublicScaler(), RowClipper()):
        refuses(ValueError, "is expecting 3 features", step.fit(X).transform, X[:, :2])
    with pytest.raises(ValueError, match=r"Without bounds: \['income'\]; no feature: \['wage'\]"):
        PublicScaler({"age": (0, 1), "balance": (0, 1), "wage": (0, 1)}).fit(FRAME)
    refuses(ValueError, "X has no column names", PublicScaler({"age": (0, 1)}).fit, X)
    refuses(ValueError, "may have wide ones", DPStandardScaler(bounds={"age": (0, 1)}).fit, FRAME)


def test_the_way_back_quotes_no_text():
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((5000, 2)), columns=[*"ab"])
    scaler = DPStandardScaler(bounds={"b": (-9, 9), "a": (-8, 9)}).fit(X)
    assert scaler.feature_bounds_[0].tolist() == [-8, -9]  # in the order of the columns
    with pytest.raises(ValueError, match="found text in 'b'") as error:
        scaler.inverse_transform(X.assign(b="Rome"))
    assert "Rome" not in str(error.value)
