"""Checks of measurement matrices, which may come as rows, matrices, CSR rows or factors."""

import math
from collections.abc import Sequence
from functools import partial
from numbers import Real

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_array, check_X_y, validate_data

from skdp import _inputs, _validation
from skdp.data.blocks import is_dask_array
from skdp.data.records import MAX_ROWS
from skdp.data.units import in_memory
from skdp.regression._linear import LinearPredictor
from skdp.solvers.whitening import Whitening, mixing, whitening
from skdp.units import unit_of


def check_measurements(estimator, X, y):
    """Return (records, shape of a matrix): rows of d1 d2 numbers, or factors."""
    X, shape = _flat(X)
    if _inputs.as_blocks(X) is not None:
        placed = _inputs.in_blocks(estimator, X, y, numbers=True)
    elif isinstance(X, tuple):
        A, B = _check_factors(estimator, X)
        _, y = _inputs.advised(
            estimator, partial(check_X_y, estimator=estimator), A, y, y_numeric=True
        )
        y = _inputs.check_numbers(y).astype(np.float64, copy=False)
        placed, shape = in_memory(A, y=y, factors=B), (A.shape[1], B.shape[1])
    else:
        placed = _inputs.check_placed(estimator, X, y, numbers=True, multi_output=False)
    return placed, _shape(estimator, shape, math.prod(shape or (placed.rows.n_features,)))


def _flat(X):
    """Return matrices as rows, and their shape; what is not an array of matrices as it is."""
    if getattr(X, "ndim", 2) != 3 or sp.issparse(X) or is_dask_array(X):
        return X, None
    X = np.asanyarray(X)  # a map stays one
    return X.reshape(len(X), math.prod(X.shape[1:])), tuple(int(d) for d in X.shape[1:])


def predictions(estimator, X):
    """Return <X_i, M> + intercept of each record, cut; those in blocks where they are."""
    low, high = estimator.prediction_bounds_
    cut = partial(np.clip, a_min=low, a_max=high)
    if isinstance(X, tuple):
        A, B = _check_factors(estimator, X, reset=False)
        return cut(np.einsum("ij,ij->i", A @ estimator.coef_, B) + estimator.intercept_)
    X, shape = _flat(X)
    if shape not in (None, estimator.coef_.shape):
        name = type(estimator).__name__
        raise ValueError(f"{name} was fitted to matrices of {estimator.coef_.shape}. Got {shape}.")
    linear = LinearPredictor(estimator.coef_.ravel(), estimator.intercept_, cut)
    return _inputs.mapped(estimator, X, linear, None)


def _check_factors(estimator, factors, *, reset=True):
    if len(factors) != 2:
        raise ValueError(f"a tuple X must be factors (A, B), two arrays. Got {len(factors)} items.")
    A, B = (_inputs.advised(estimator, check_array, factor, input_name="X") for factor in factors)
    check_consistent_length(A, B)
    rows = np.broadcast_to(0.0, (len(A), A.shape[1] * B.shape[1]))  # only their shape is used
    validate_data(estimator, rows, skip_check_array=True, reset=reset)
    return A, B


def _shape(estimator, given, n_features):
    """Return (d1, d2): of the data, or the parameter, or (n_features, 1)."""
    if estimator.matrix_shape is None:
        return given or (n_features, 1)
    shape = _validation.check_shape(estimator, "matrix_shape")
    if math.prod(shape) != n_features or given not in (None, shape):
        expected = f"None or two integers whose product is the number of features, {n_features}"
        _validation.refuse_value(estimator, "matrix_shape", expected, shape)
    return shape


def check_design(design, shape, *, sparse):
    """Return the public whitening that `design` gives, or None if it is to be learnt."""
    if isinstance(design, str):
        return None
    if isinstance(design, Real) and not isinstance(design, bool):
        if not 0 < design < math.inf:
            raise ValueError(
                f"a number as 'measurement_covariance' must be positive and finite. Got {design!r}."
            )
        return Whitening(None, None, float(design))
    if isinstance(design, np.ndarray) and design.ndim == 2:
        return _full_design(design, math.prod(shape), sparse)
    if not isinstance(design, Sequence) or len(design) != 2:
        raise ValueError(
            "The 'measurement_covariance' parameter must be 'private', a number, one covariance "
            f"or a pair of them (of rows, of columns). Got {type(design).__name__} instead."
        )
    R, C = (_validation.public_array("measurement_covariance", part) for part in design)
    for part, d in zip((R, C), shape, strict=True):
        if not _is_covariance(part, d):
            raise ValueError(
                f"a covariance in 'measurement_covariance' must be positive definite, {d} x {d}."
            )
    if sparse and any(np.count_nonzero(part - np.diag(np.diagonal(part))) for part in (R, C)):
        raise ValueError(
            "full covariances in 'measurement_covariance' need dense X; give diagonal ones for CSR."
        )
    r, c = np.trace(R), np.trace(C)
    if sparse:
        R, C = np.diagonal(R), np.diagonal(C)
    moments = np.concatenate([(R * c).ravel(), (C * r).ravel()])
    return whitening(moments, shape, 1.0, 0.0)


def _is_covariance(matrix, d):
    """Return whether a matrix is symmetric and positive definite."""
    if matrix.shape != (d, d) or not np.allclose(matrix, matrix.T):
        return False
    return np.linalg.eigvalsh(matrix)[0] > 0


def searches_covariance(estimator):
    """Return whether the covariance of X costs budget; it is public for the unit "label"."""
    return isinstance(estimator.measurement_covariance, str) and not unit_of(estimator).of_targets


def _full_design(design, size, sparse):
    """Return the map of records that a full public covariance of vec(X) asks for."""
    design = _validation.public_array("measurement_covariance", design)
    if not _is_covariance(design, size):
        raise ValueError(
            "a full covariance as 'measurement_covariance' must be symmetric and positive "
            f"definite, {size} x {size}. Got shape {design.shape}."
        )
    if sparse or size > MAX_ROWS:
        raise ValueError(
            "a full covariance as 'measurement_covariance' needs dense X of at most "
            f"{MAX_ROWS} features; give a pair of covariances instead."
        )
    return mixing(design)


def check_parameters(estimator):
    """Check the parameters of a trace regression that need no data."""
    _validation.check_int(estimator, "rank", 1)
    _validation.check_int(estimator, "max_iter", 1)
    _validation.check_option(estimator, "privacy_unit", tuple(estimator._privacy_units))
    _validation.check_option(estimator, "solver", ("riemannian", "spectral_init"))
    _validation.check_bool(estimator, "shrink_singular_values", "fit_intercept", "fit_biases")
    level = _validation.check_real(
        estimator, "gradient_clip_factor", 1e-3, math.inf, closed="both", also=("auto",)
    )
    if level != "auto" and level > 1e6 and estimator.epsilon != math.inf:
        raise ValueError(
            "'gradient_clip_factor' bounds what one record adds: use a multiple of the median norm "
            f"from .001 to 1e6, or 'auto'. Only epsilon=inf needs no bound. Got {level!r}."
        )
    if isinstance(estimator.measurement_covariance, str):
        _validation.check_option(estimator, "measurement_covariance", ("private",))
