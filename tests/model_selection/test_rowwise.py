"""Predictions row by row: one row never changes another."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline

from skdp import DPPCA, DPRidge
from skdp.model_selection import PrivateScorer
from skdp.model_selection._proven import _products, each_row, fast_map
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 31, 64, 129, 1000])
def test_products_of_a_row_do_not_depend_on_the_others(d):
    rng = np.random.default_rng(d)
    X = rng.standard_normal((67, d)) * 10.0 ** rng.uniform(-9, 9, (67, 1))
    M = rng.standard_normal((d, 3))
    whole = _products(X, M)
    alone = np.concatenate([_products(X[i : i + 1], M) for i in range(len(X))])
    moved = _products(np.ascontiguousarray(X[5:]), M)
    assert np.array_equal(whole, alone)
    assert np.array_equal(whole[5:], moved)
    scale = np.abs(X) @ np.abs(M)
    assert np.all(np.abs(whole - X @ M) <= 1e-13 * scale)


def test_rows_that_fail_are_nan_and_silent():
    def function(x, y):
        if x[0, 0] < 0:
            raise ValueError(f"a private value: {x}")
        return np.log(x[:, 0])

    X = np.array([[1.0], [-1.0], [0.0]])
    assert np.array_equal(each_row(function, X, None), [0.0, np.nan, -np.inf], equal_nan=True)


def test_unknown_models_have_no_fast_map():
    assert fast_map(object(), np.zeros((2, 2)), "predict") is None


def test_frames_are_scored_as_arrays_whatever_else_they_hold():
    """One entry that is no number changes the type of its column, and the loss of its row alone."""
    A = np.random.default_rng(0).standard_normal((30, 3))
    X = pd.DataFrame(A, columns=list("abc"))
    model = DPPCA(1, epsilon=99.0, clip_norm=3.0, center=np.ones(3)).fit(X)
    scorer = PrivateScorer("share_lost", (0.0, 1.0))
    unnamed = copy.copy(model)
    del unnamed.feature_names_in_
    expected = scorer._losses_of(unnamed, A, None)()
    np.testing.assert_array_equal(scorer._losses_of(model, X, None)(), expected)
    mixed = X.astype(object)
    mixed.iloc[4, 1] = "private"
    found = scorer._losses_of(model, mixed, None)()
    assert np.isnan(found[4])
    np.testing.assert_array_equal(np.delete(found, 4), np.delete(expected, 4))
    for other in (X[["b", "a", "c"]], X[["a"]]):
        assert fast_map(model, other, "reconstruct") is None
    assert fast_map(unnamed, X, "reconstruct") is None


@pytest.mark.parametrize(
    "step", [RowClipper(2.0), PublicScaler((-3.0, 3.0)), DPStandardScaler(bounds=(-3, 3))]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("frame", [False, True])
def test_steps_of_a_pipeline_are_mapped_together(step, frame):
    A = np.random.default_rng(0).standard_normal((50, 4))
    X = pd.DataFrame(A, columns=list("abcd")) if frame else A
    ridge = DPRidge(epsilon=9.0, clip_norm=2.0, target_bounds=(-5, 5))
    model = make_pipeline(step, ridge).fit(X, A.sum(axis=1))
    mapped = fast_map(model, X, "predict")
    found = mapped(X)
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(mapped(X[7:]), found[7:])
