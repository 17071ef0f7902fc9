"""PublicScaler: what it maps to what, in all forms of bounds."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.pipeline import make_pipeline

from skdp import DPRidge, check_pipeline
from skdp.preprocessing import DPStandardScaler, PublicScaler

X = np.array([[18.0, -5.0, 0.0], [54.0, 0.0, 5e9], [200.0, 7.0, 1e5]])
LOW, HIGH = [18, -10, 0], [90, 10, 2e5]
EXPECTED = np.array([[-1.0, -0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.7, 0.5]])
FRAME = pd.DataFrame(X, columns=["age", "balance", "income"])
FORMS = {
    "two lists": (LOW, HIGH),
    "an array": np.array([LOW, HIGH]),
    "list of tuples": list(zip(LOW, HIGH, strict=True)),
    "low alone for each": (LOW, HIGH),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_bounds(form):
    np.testing.assert_allclose(PublicScaler(FORMS[form]).transform(X), EXPECTED)
    np.testing.assert_allclose(PublicScaler(FORMS[form]).fit_transform(FRAME), EXPECTED)


def test_bounds_by_column_name_and_one_pair():
    bounds = {"income": (0, 2e5), "age": (18, 90), "balance": [-10, 10]}
    scaler = PublicScaler(bounds)
    np.testing.assert_allclose(scaler.fit_transform(FRAME), EXPECTED)
    assert scaler.get_feature_names_out().tolist() == ["age", "balance", "income"]
    np.testing.assert_allclose(PublicScaler((-10, 10)).transform(X), np.clip(X, -10, 10) / 10)
    two = X[:, :2]  # a list of two tuples has one for each column, two lists are lows and highs
    pairs = PublicScaler([(18, 90), (-10, 10)]).transform(two)
    lists = PublicScaler([[18, -10], [90, 10]]).transform(two)
    np.testing.assert_allclose(pairs, lists)


def test_a_row_is_mapped_by_itself_and_float32_stays():
    scaler = PublicScaler((LOW, HIGH))
    assert scaler.transform(X.astype(np.float32)).dtype == np.float32
    alone = [scaler.transform(row[None])[0] for row in X]
    np.testing.assert_array_equal(alone, scaler.transform(X))


@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix, sp.coo_array])
def test_sparse_rows_stay_sparse_where_zero_is_a_bound(container):
    rows = np.abs(X)
    out = PublicScaler(([0, 0, 0], [90, 10, 2e5])).transform(container(rows))
    assert sp.issparse(out)
    assert out.nnz == np.count_nonzero(rows)
    np.testing.assert_allclose(out.toarray(), np.clip(rows / [90, 10, 2e5], 0, 1))
    with pytest.raises(ValueError, match=r"column 1 it is neither.*toarray"):
        PublicScaler(([0, -1, 0], [90, 10, 2e5])).transform(container(rows))


BAD = [
    (1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0), "auto", None, 3.0, (1.0,), (0, 1, 2),
    (True, False), ("0", "1"), [(0, 1), (0,)], [], {"age": (1, 0)}, {"age": 3},
]  # fmt: skip


@pytest.mark.parametrize("bounds", BAD, ids=repr)
def test_bad_bounds_are_refused_in_one_way(bounds):
    for act in (PublicScaler(bounds).fit, PublicScaler(bounds).transform):
        with pytest.raises(
            ValueError, match=r"The 'bounds' parameter of PublicScaler must be a pair"
        ):
            act(FRAME)


def test_bounds_that_do_not_fit_the_columns():
    with pytest.raises(ValueError, match=r"for 3 columns"):
        PublicScaler([(0, 1), (0, 2)]).fit(X)
    with pytest.raises(ValueError, match=r"Without bounds: \['income'\]; not in X: \['wage'\]"):
        PublicScaler({"age": (0, 1), "balance": (0, 1), "wage": (0, 1)}).fit(FRAME)
    with pytest.raises(ValueError, match="X has no column names"):
        PublicScaler({"age": (0, 1)}).fit(X)


def test_it_is_proven():
    pipeline = make_pipeline(PublicScaler((0, 5)), DPRidge(clip_norm=1.0, target_bounds=(0, 1)))
    assert check_pipeline(pipeline).ok


def test_the_way_back_quotes_no_text():
    X = np.random.default_rng(0).standard_normal((500, 2))
    scaler = DPStandardScaler(entry_bounds=(-9, 9)).fit(X)
    with pytest.raises(ValueError, match="found text") as error:
        scaler.inverse_transform(np.full((2, 2), "Rome"))
    assert "Rome" not in str(error.value)
