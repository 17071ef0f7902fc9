"""What a fitted model makes of each row, as a function of that row alone, bit by bit.

``model.predict(X)`` is not one: a batched product adds up in an order that depends on where a row
stands, and for half of the rows the last bit of a prediction changes when another row is added. A
sum of losses would then move by more than one unit's share. Known linear models are evaluated here
by sums over each row (numpy adds along contiguous rows in an order fixed by their length); any
other model gets its rows one at a time.
"""

import contextlib
import math
import warnings

import numpy as np
import scipy.sparse as sp
from sklearn import config_context
from sklearn.pipeline import Pipeline

from skdp.decomposition import DPPCA, DPTruncatedSVD
from skdp.preprocessing import DPStandardScaler, RowClipper
from skdp.regression import DPRidge, DPRidgeClassifier, DPTraceRegressor
from skdp.regression._ridge_classifier import best_class

# Models whose predict is <x, coef_> + intercept_, and whose transform is (x - mean_) components_'.
# Exactly these classes: a subclass may do something else.
LINEAR_REGRESSORS = (DPTraceRegressor,)
PROJECTIONS = (DPPCA, DPTruncatedSVD)
_BLOCK = 2**18  # entries of a block of rows


def n_rows(X):
    """Return the number of rows of X, which may be factors."""
    return n_rows(X[0]) if isinstance(X, tuple) else X.shape[0]


def take_rows(X, rows):
    """Return some rows of X (a slice or indices)."""
    if isinstance(X, tuple):
        return tuple(part[rows] for part in X)
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def fast_map(model, X, method):
    """Return a function X -> ``model.method(X)`` by sums over rows, or None if none is known.

    Parameters
    ----------
    model : fitted estimator
        A linear model of this package, or a Pipeline of them.
    X : array of floats, CSR matrix, data frame or factors
        Rows: only their type is looked at.
    method : str
        "predict", "transform" or "reconstruct" (transform and back).
    """
    if hasattr(X, "iloc"):  # under the names that the model was fitted with
        named = list(X.columns) == list(getattr(model, "feature_names_in_", ()))
        by_block = _fast_map(model, method) if named else None
        return None if by_block is None else lambda X: _by_block(by_block, as_numbers(X))
    plain = isinstance(X, np.ndarray) and X.ndim >= 2
    if not (plain or sp.issparse(X)) or X.dtype.kind not in "fiub":
        return None
    by_block = _fast_map(model, method)
    return None if by_block is None else lambda X: _by_block(by_block, X)


def as_numbers(X):
    """Return a frame as an array of numbers; anything else as it is."""
    return np.asarray(X, np.float64) if hasattr(X, "iloc") else X


def all_numbers(X):
    """Whether what is no frame, or every column of one, holds numbers alone."""
    if not hasattr(X, "iloc"):
        return True
    return all(isinstance(kind, np.dtype) and kind.kind in "fiub" for kind in X.dtypes)


def _by_block(linear, X):
    """Return what a map makes of rows, some of them at a time."""
    size = max(1, _BLOCK // max(1, math.prod(X.shape[1:])))
    blocks = (X[i : i + size] for i in range(0, max(1, X.shape[0]), size))
    return np.concatenate([linear(_dense(block)) for block in blocks])


def _dense(block):
    rows = (
        block.toarray()
        if sp.issparse(block)
        else block.reshape(len(block), math.prod(block.shape[1:]))
    )
    return np.ascontiguousarray(rows, np.float64)


def public_row(X):
    """Return a row of zeros like those of X; None for a data frame."""
    if isinstance(X, tuple):
        return tuple(public_row(part) for part in X)
    if hasattr(X, "iloc"):
        return None
    if sp.issparse(X):
        return sp.csr_array((1, X.shape[1]), dtype=X.dtype)
    return np.zeros((1, *X.shape[1:]), X.dtype if X.dtype.kind in "fiub" else np.float64)


def each_row(function, X, y):
    """Return the number function(one row, its y) of each row; NaN for a row that fails.

    Neither errors nor warnings of single rows are shown: they would tell of private values.
    """
    values = np.full(n_rows(X), np.nan)
    with config_context(assume_finite=True), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for i in range(len(values)):
            one = slice(i, i + 1)
            with contextlib.suppress(Exception):  # of whatever kind: it tells of a private row
                (values[i],) = np.ravel(function(take_rows(X, one), None if y is None else y[one]))
    return values


def apply(model, method, X):
    """Return ``model.method(X)``; "reconstruct" is transform and back."""
    if method == "reconstruct":
        return model.inverse_transform(model.transform(X))
    return getattr(model, method)(X)


def _products(X, M):
    """X @ M, each entry a sum along one contiguous row."""
    out = np.empty((len(X), M.shape[1]))
    for j in range(M.shape[1]):
        np.sum(X * M[:, j], axis=1, out=out[:, j])
    return out


def _fast_map(model, method):
    """Return a map of blocks of rows for models that are known to be linear, else None."""
    if isinstance(model, Pipeline):
        return _fast_pipeline(model, method)
    if type(model) in LINEAR_REGRESSORS and method == "predict":
        coef = np.asarray(model.coef_, np.float64).reshape(-1, 1)
        return lambda X: _products(X, coef)[:, 0] + model.intercept_
    if type(model) in (RowClipper, DPStandardScaler) and method == "transform":
        return model.transform  # entry by entry, and sums along rows; a derived class may do more
    if type(model) in (DPRidge, DPRidgeClassifier) and method == "predict":
        return _readout(model)
    if type(model) in PROJECTIONS and not getattr(model, "whiten", False):
        V = np.asarray(model.components_, np.float64).T
        mean = _mean(model)
        if method == "transform":
            return lambda X: _products(X - mean, V)
        if method == "reconstruct":
            return lambda X: _products(_products(X - mean, V), np.ascontiguousarray(V.T)) + mean
    return None


def _readout(model):
    """Return the map of a linear read-out: numbers, or labels."""
    W = np.atleast_2d(np.asarray(model.coef_, np.float64)).T
    if isinstance(model, DPRidgeClassifier):
        return lambda X: model.classes_[best_class(_products(X, W) + model.intercept_)]
    single = np.ndim(model.coef_) == 1
    return lambda X: (_products(X, W)[:, 0] if single else _products(X, W)) + model.intercept_


def _mean(model):
    mean = getattr(model, "mean_", None)
    return 0.0 if mean is None else np.asarray(mean, np.float64)


def _fast_pipeline(pipeline, method):
    steps = [step for _, step in pipeline.steps if step not in (None, "passthrough")]
    last = method if method != "reconstruct" or len(steps) == 1 else None
    maps = [_fast_map(step, "transform") for step in steps[:-1]]
    maps.append(_fast_map(steps[-1], last) if last else None)
    if any(each is None for each in maps):
        return None

    def chain(X):
        for each in maps:
            X = each(X)
        return X

    return chain


def as_rows(X):
    """Return X in a form whose rows can be taken one at a time."""
    if isinstance(X, tuple):
        return tuple(np.asarray(part) for part in X)
    if sp.issparse(X):
        return sp.csr_array(X)
    return X if hasattr(X, "iloc") else np.asarray(X)
