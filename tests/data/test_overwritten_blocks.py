"""Blocks of rows that are overwritten by the next one, as files and arrays of other types do."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from skdp import DPPCA, DPRidge, DPRidgeClassifier, DPTraceRegressor, DPTruncatedSVD
from skdp.data.blocks import row_source
from skdp.decomposition import DPIncrementalPCA
from skdp.preprocessing import DPStandardScaler
from skdp.queries.columns import ColumnQuery
from skdp.recommend import DPRecommender


class OverwrittenRows:
    """Yields each block in the memory of the last one, which is NaN in between."""

    def __init__(self, X, at_once=7):
        self.X, self.at_once, self.n_features = X, at_once, X.shape[1]
        self.sparse, self.dtype = sp.issparse(X), np.dtype(np.float64)

    def n_rows(self):
        return self.X.shape[0]

    def parts(self, n):
        cuts = np.array_split(np.arange(self.X.shape[0]), n)
        return [OverwrittenRows(self.X[part]) for part in cuts if len(part)]

    def blocks(self):
        buffer = np.empty((self.at_once, self.n_features))
        for start in range(0, self.X.shape[0], self.at_once):
            rows = self.X[start : start + self.at_once]
            block = rows.copy() if sp.issparse(rows) else buffer[: len(rows)]
            held = block.data if sp.issparse(rows) else block
            held[...] = rows.data if sp.issparse(rows) else rows
            yield block
            held[...] = np.nan


DECOMPOSITIONS = [
    DPPCA(2, random_state=0), DPPCA(2, center="none", random_state=0),
    DPTruncatedSVD(2, random_state=0), DPStandardScaler(random_state=0),
    DPIncrementalPCA(2, random_state=0), DPRecommender(privacy_unit="interaction", random_state=0),
]  # fmt: skip
REGRESSIONS = [
    DPRidge(random_state=0),
    DPRidgeClassifier(classes=[0, 1], random_state=0),
    DPTraceRegressor(1, matrix_shape=(2, 2), random_state=0),
]
# Rows of one block are unlike those of another.
X = np.random.default_rng(0).standard_normal((400, 4)) + np.arange(400)[:, None] / 100


def outcome(estimator, rows, **options):
    """Return the releases, and the fitted arrays as those of float32."""
    fitted = vars(estimator.fit(rows, **options))
    arrays = {k: v for k, v in fitted.items() if k.endswith("_") and isinstance(v, np.ndarray)}
    return estimator.releases_, {k: v.astype(np.float32).tolist() for k, v in arrays.items()}


@pytest.mark.thorough("estimator")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("estimator", DECOMPOSITIONS, ids=repr)
def test_a_fit_keeps_no_array_that_a_source_overwrites(estimator, sparse):
    rows = sp.csr_array(np.where(X > 1, X, 0.0)) if sparse else X
    if sparse and isinstance(estimator, DPStandardScaler):
        estimator = DPStandardScaler(with_mean=False, random_state=0)
    assert outcome(estimator, OverwrittenRows(rows)) == outcome(estimator, rows)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.thorough("estimator")
@pytest.mark.parametrize("unit", ["group", "row"])
@pytest.mark.parametrize("estimator", DECOMPOSITIONS + REGRESSIONS, ids=repr)
def test_rows_of_another_type_give_the_fit_of_floats(monkeypatch, estimator, unit):
    """They are converted block by block in one buffer; a row that stayed there counted twice."""
    monkeypatch.setattr("skdp.data.blocks.BLOCK", 64)
    rows, options = X.astype(np.float32), {}
    if estimator in REGRESSIONS:
        y = X.sum(axis=1)
        options["y"] = (y > 8).astype(int) if isinstance(estimator, DPRidgeClassifier) else y
    if unit == "group":
        if "group" not in estimator._privacy_units:
            pytest.skip("no groups")
        estimator = clone(estimator).set_params(privacy_unit="group")
        options["groups"] = np.arange(400) // 4
    assert outcome(estimator, rows, **options) == outcome(estimator, rows.astype(float), **options)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_rows_of_another_type_are_counted_once(monkeypatch, dtype):
    monkeypatch.setattr("skdp.data.blocks.BLOCK", 64)
    rows = np.arange(400).reshape(100, 4).astype(dtype)
    assert {block.dtype.char for block in row_source(rows).blocks()} == {"d"}
    ask = ColumnQuery(rows, adjacency="add_remove").grid(np.array([[40.0, 200.0, 320.0]] * 4))
    for i in range(3):
        exact = (rows <= [40, 200, 320][i]).sum(axis=0) - 50.0
        np.testing.assert_array_equal(ask.ranks(np.full(4, i)).answer(0.0), exact)
