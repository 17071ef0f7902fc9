"""User labels: how they are passed, checked and looked up; and the head on a user's own device."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted


def check_candidates(candidates, shape):
    """Return public candidate subspaces as orthonormal columns, (n, *shape)."""
    candidates = np.asarray(candidates, np.float64)
    if candidates.ndim != 3 or candidates.shape[1:] != shape or not len(candidates):
        raise ValueError(
            f"'candidates' must have the shape (n, {shape[0]}, {shape[1]}). Got {candidates.shape} "
            "instead."
        )
    if not np.isfinite(candidates).all():
        raise ValueError("'candidates' must be finite.")
    return np.linalg.qr(candidates)[0]


def positions(known, labels):
    """Return (index into the sorted known users, whether it is known) of each label."""
    if (known.dtype.kind in "US") != (labels.dtype.kind in "US"):
        raise ValueError("User labels are strings in one place and numbers in the other.")
    at = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    found = known[at] == labels
    if (known.dtype.kind == "f") != (labels.dtype.kind == "f") and known.dtype.kind not in "US":
        found &= np.abs(labels.astype(np.float64)) < 2.0**53  # beyond, two ids look equal
    return at, found


def same_kind(known, labels):
    """Raise unless both label arrays hold the same kind of label, so that joining merges none."""
    kinds = ["text" if array.dtype.kind in "US" else array.dtype.kind for array in (known, labels)]
    if kinds[0] != kinds[1] and not set(kinds) <= {"i", "u", "b"}:
        raise ValueError("User labels are of another kind than those of the fitted users.")


def within_bounds(X, bounds):
    """Return rows with entries cut to the bounds (2, d) of their columns; None cuts nothing."""
    if bounds is None:
        return X
    low, high = bounds
    if not sp.issparse(X):
        return np.clip(X, low, high)
    if (low > 0).any() or (high < 0).any():  # zeros are cut too
        return np.clip(X.toarray(), low, high)
    X = X.copy()
    X.sum_duplicates()
    X.data = np.clip(X.data, low[X.indices], high[X.indices])
    return X


class UserHead(BaseEstimator):
    """A personal model on one user's device: public attributes, and the user's own rows.

    Fitting and predicting release nothing: both stay on the device.

    Parameters
    ----------
    public : estimator
        What ``released()`` returns.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_outputs, n_features)
        The user's coefficients: private to the user.
    intercept_ : float or ndarray of shape (n_outputs,)
        The user's intercept.
    """

    def __init__(self, public: Any = None) -> None:
        self.public = public

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the head of this user to all its rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The user's rows.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        self : UserHead
            The fitted head.
        """
        model = self.public._copy()
        model.adapt(X, y, groups=np.zeros(len(y), int))
        head = model._private["heads"][0]
        shape = np.atleast_2d(model.global_coef_).shape
        coef = head[: shape[0] * shape[1]].reshape(shape[::-1]).T
        intercept = head[shape[0] * shape[1] :]
        self.coef_ = coef[0] if model.global_coef_.ndim == 1 else coef
        self.intercept_ = float(intercept[0]) if model.global_coef_.ndim == 1 else intercept
        self._model = model
        return self

    def predict(self, X: Any) -> Any:
        """Predict rows of this user.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The user's rows.

        Returns
        -------
        y : ndarray of shape (n_rows,)
            Predictions.
        """
        check_is_fitted(self, "coef_")
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        return self._model.predict(X, groups=np.zeros(n, int))
