"""Synthetic regressions: measurements of a low-rank matrix, and tasks of many users."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp


def make_trace_regression(
    n_samples: int = 5000,
    matrix_shape: Any = (20, 20),
    rank: int = 2,
    *,
    noise_sd: float = 0.5,
    design: str = "gaussian",
    coef: bool = False,
    random_state: Any = None,
) -> Any:
    """Measurements y_i = <X_i, M> + noise of a matrix M of low rank.

    All singular values of M are equal, and the variance of <X_i, M> is `rank`.

    Parameters
    ----------
    n_samples : int
        Number of records.
    matrix_shape : tuple of int
        Shape (d1, d2) of M.
    rank : int
        Rank of M.
    noise_sd : float
        Standard deviation of the noise of y.
    design : {"gaussian", "factored", "entries"}, default="gaussian"
        Dense Gaussian measurements; rank-one measurements as factors (A, B); or one entry a record,
        as rows of a CSR array (matrix completion).
    coef : bool, default=False
        Whether to return M.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    X : array (n_samples, d1, d2), tuple of arrays (n_samples, d1) and (n_samples, d2), or csr_array
        Measurements, in a form that `DPTraceRegressor` takes.
    y : ndarray of shape (n_samples,)
        Targets.
    M : ndarray of shape (d1, d2)
        The matrix, if `coef`.

    Examples
    --------
    >>> from skdp.datasets import make_trace_regression
    >>> X, y = make_trace_regression(50, (4, 3), 1, random_state=0)
    >>> X.shape, y.shape
    ((50, 4, 3), (50,))
    """
    if design not in ("gaussian", "factored", "entries"):
        raise ValueError(
            "The 'design' parameter of make_trace_regression must be a str among 'gaussian', "
            f"'factored' and 'entries'. Got {design!r} instead."
        )
    rng = np.random.default_rng(random_state)
    d1, d2 = matrix_shape
    left, right = (np.linalg.qr(rng.standard_normal((d, rank)))[0] for d in matrix_shape)
    M = left @ right.T
    if design == "gaussian":
        X = rng.standard_normal((n_samples, d1, d2))
        y = np.einsum("ijk,jk->i", X, M)
    elif design == "factored":
        X = rng.standard_normal((n_samples, d1)), rng.standard_normal((n_samples, d2))
        y = np.einsum("ij,ij->i", X[0] @ M, X[1])
    else:
        cells = rng.integers(0, d1 * d2, n_samples)
        values = np.full(n_samples, math.sqrt(d1 * d2))
        rows = (values, cells, np.arange(n_samples + 1))
        X = sp.csr_array(rows, shape=(n_samples, d1 * d2))
        y = values * M.ravel()[cells]
    y = y + noise_sd * rng.standard_normal(n_samples)
    return (X, y, M) if coef else (X, y)


def make_user_tasks(
    n_users: int = 1000,
    n_features: int = 20,
    n_components: int = 2,
    *,
    rows_per_user: int = 10,
    noise_sd: float = 0.5,
    classes: bool = False,
    coef: bool = False,
    random_state: Any = None,
) -> Any:
    """Linear tasks of many users whose coefficients lie in one small subspace.

    Parameters
    ----------
    n_users, n_features : int
        Sizes.
    n_components : int
        Dimension of the subspace.
    rows_per_user : int or tuple of int
        Rows of a user; (least, most) draws a number for each user.
    noise_sd : float
        Standard deviation of the noise of the targets.
    classes : bool, default=False
        Return the signs of the targets, 0 and 1, instead of the targets.
    coef : bool, default=False
        Whether to return the coefficients of the users.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    X : ndarray of shape (n_rows, n_features)
        Rows.
    y : ndarray of shape (n_rows,)
        Targets.
    groups : ndarray of shape (n_rows,)
        The user of each row.
    coefs : ndarray of shape (n_users, n_features)
        Coefficients of each user, if `coef`.

    Examples
    --------
    >>> from skdp.datasets import make_user_tasks
    >>> X, y, groups = make_user_tasks(50, 6, rows_per_user=4, random_state=0)
    >>> X.shape, y.shape, groups[:5]
    ((200, 6), (200,), array([0, 0, 0, 0, 1]))
    """
    rng = np.random.default_rng(random_state)
    low, high = rows_per_user if isinstance(rows_per_user, tuple) else (rows_per_user,) * 2
    groups = np.repeat(np.arange(n_users), rng.integers(low, high + 1, n_users))
    shared = np.linalg.qr(rng.standard_normal((n_features, n_components)))[0]
    coefs = rng.standard_normal((n_users, n_components)) @ shared.T
    X = rng.standard_normal((len(groups), n_features))
    y = np.einsum("ij,ij->i", X, coefs[groups]) + noise_sd * rng.standard_normal(len(groups))
    if classes:
        y = (y > 0).astype(np.int64)
    return (X, y, groups, coefs) if coef else (X, y, groups)
