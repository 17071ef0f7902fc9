"""Measurement matrices as users hand them over: rows, matrices, CSR rows or factors."""

import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_array, check_X_y, validate_data

from skdp._inputs import refuse_blocks
from skdp._validation import check_bool, check_int, check_option, check_real
from skdp.solvers.design import Whitening, whitening

__all__ = [
    "check_design",
    "check_measurements",
    "check_parameters",
    "inner_products",
    "pay_the_rest",
]

_NO_BLOCKS = (
    "or a memory map: its steps keep numbers of single records beside X. Write the blocks into one "
    "npy file (numpy.lib.format.open_memmap) and pass np.load(path, mmap_mode='r')"
)
_FLOATS = [np.float64, np.float32]


def check_measurements(estimator, X, y="no_validation", *, reset=True):
    """Return (X as rows or factors, y, shape of a matrix)."""
    shape = None
    refuse_blocks(estimator, X, _NO_BLOCKS)
    if isinstance(X, tuple):
        X, y = _check_factors(estimator, X, y, reset)
        shape = (X[0].shape[1], X[1].shape[1])
        n_features = math.prod(shape)
    else:
        if getattr(X, "ndim", 2) == 3 and not sp.issparse(X):
            shape = tuple(int(d) for d in X.shape[1:])
            X = np.asarray(X).reshape(len(X), -1)
        X, y = _check_rows(estimator, X, y, reset)
        n_features = X.shape[1]
    return X, y, _shape(estimator, shape, n_features)


def _check_rows(estimator, X, y, reset):
    options = {"accept_sparse": "csr", "dtype": _FLOATS, "reset": reset}
    if isinstance(y, str):
        return validate_data(estimator, X, **options), None
    X, y = validate_data(estimator, X, y, y_numeric=True, **options)
    return X, np.asarray(y, np.float64)


class _Width:
    """Stands for factors where only the shape of the d1 d2 columns is asked for."""

    def __init__(self, shape):
        self.shape = shape


def _check_factors(estimator, factors, y, reset):
    if len(factors) != 2:
        raise ValueError(f"a tuple X must be factors (A, B), two arrays. Got {len(factors)} items.")
    A, B = (check_array(factor, dtype=_FLOATS, input_name="X") for factor in factors)
    check_consistent_length(A, B)
    width = _Width((len(A), A.shape[1] * B.shape[1]))
    validate_data(estimator, width, skip_check_array=True, reset=reset)
    if isinstance(y, str):
        return (A, B), None
    _, y = check_X_y(A, y, y_numeric=True, estimator=estimator)
    return (A, B), np.asarray(y, np.float64)


def _shape(estimator, given, n_features):
    """Return (d1, d2): of the data, or the parameter, or (n_features, 1)."""
    shape = estimator.matrix_shape
    if shape is None:
        return given or (n_features, 1)
    valid = (
        isinstance(shape, Sequence)
        and len(shape) == 2
        and all(isinstance(d, Integral) and not isinstance(d, bool) and d >= 1 for d in shape)
    )
    if not valid or math.prod(shape) != n_features or given not in (None, tuple(shape)):
        raise ValueError(
            f"The 'matrix_shape' parameter of {type(estimator).__name__} must be None or two "
            f"integers whose product is the number of features, {n_features}. Got {shape!r}."
        )
    return (int(shape[0]), int(shape[1]))


def check_design(design, shape, *, sparse=False):
    """Return the public whitening that `design` gives, or None if it is to be learnt."""
    if isinstance(design, str):
        return None
    if isinstance(design, Real) and not isinstance(design, bool):
        if not 0 < design < math.inf:
            raise ValueError(f"a number as 'design' must be positive and finite. Got {design!r}.")
        return Whitening(None, None, float(design))
    if not isinstance(design, Sequence) or len(design) != 2:
        raise ValueError(
            "The 'design' parameter must be 'private', a number, or a pair of covariances (of "
            f"rows, of columns). Got {design!r} instead."
        )
    R, C = (check_array(part, dtype=np.float64, input_name="design") for part in design)
    for part, d in zip((R, C), shape, strict=True):
        symmetric = part.shape == (d, d) and np.allclose(part, part.T)
        if not symmetric or np.linalg.eigvalsh(part)[0] <= 0:
            raise ValueError(f"a covariance in 'design' must be positive definite, {d} x {d}.")
    if sparse and any(np.count_nonzero(part - np.diag(np.diagonal(part))) for part in (R, C)):
        raise ValueError("full covariances in 'design' need dense X; give diagonal ones for CSR.")
    moments = np.concatenate([(R * np.trace(C)).ravel(), (C * np.trace(R)).ravel()])
    return whitening(moments, shape, 1.0, 0.0)


def inner_products(X, coef):
    """Return <X_i, coef> for each record."""
    if isinstance(X, tuple):
        return np.einsum("ij,ij->i", X[0] @ coef, X[1])
    return np.asarray(X @ coef.ravel())


def check_parameters(estimator):
    """Check the parameters of a trace regression that need no data."""
    check_int(estimator, "rank", 1)
    check_int(estimator, "max_iter", 1)
    check_option(estimator, "privacy_unit", ("row", "label"))
    check_option(estimator, "solver", ("riemannian", "spectral_init"))
    for name in ("tail_average", "shrink", "fit_intercept"):
        check_bool(estimator, name)
    level = check_real(estimator, "clip_level", 0, math.inf, closed="right", also=("auto",))
    if level == math.inf and estimator.epsilon != math.inf:
        raise ValueError(
            "clip_level=inf leaves one record unbounded; it needs epsilon=inf. Use a number of "
            "medians, or 'auto'."
        )
    if isinstance(estimator.design, str):
        check_option(estimator, "design", ("private",))


def pay_the_rest(session):
    """Pay for what an early stop left out: how much is spent depends on parameters alone."""
    mu = session.budget.mu
    left = 1 - math.fsum((line.loss.value / mu) ** 2 for line in session.ledger)
    if math.isfinite(mu) and left > 1e-12:
        session.forfeit(left)
