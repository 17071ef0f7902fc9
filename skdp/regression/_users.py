"""Users of a personalised model: labels, heads on their own devices, public copies, messages."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import feature_names
from skdp.base import atomic
from skdp.exceptions import PartialSignalWarning, PrivacyError, warn_caller

# User labels: how they are passed, checked and looked up; and the head on a user's own device.


def positions(known, labels):
    """Return (index into the sorted known users, whether it is known) of each label."""
    if (known.dtype.kind in "US") != (labels.dtype.kind in "US"):
        raise ValueError(
            "Labels of users must have one type, in fit and in predict: use astype(str)."
        )
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
    """Return rows whose entries beyond the bounds (2, d) are folded; see `Scaling`."""
    low, high = bounds
    if sp.issparse(X) and ((low > 0).any() or (high < 0).any()):  # zeros are beyond
        X = X.toarray()
    X = X.copy()
    if sp.issparse(X):
        X.sum_duplicates()
        values, column = X.data, X.indices
        where = np.flatnonzero((values < low[column]) | (values > high[column]))
        column = column[where]
    else:
        values, where = X, np.nonzero((low > X) | (high < X))
        column = where[1]
    half = high[column] / 2 - low[column] / 2
    middle = low[column] + half
    values[where] = middle + half * (half / (values[where] - middle))
    return X


class UserHead(BaseEstimator):
    """A personal model on one user's device: public attributes, and the user's own rows.

    Fitting and predicting release nothing: both stay on the device.

    Parameters
    ----------
    public : estimator
        What ``public_copy()`` returns.

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


# What leaves the house: public copies, and heads for devices.


class PublicationMixin:
    """Publication of a personalised estimator, and a fit whose users are elsewhere."""

    @atomic
    def _fit_elsewhere(self, schema, connect):
        """Fit from users without numbers; ``connect(session)`` asks where they are. No heads."""
        self._check_parameters()
        self._unit = "group"
        session = self._open_session()
        released = self._fit_session(connect(session), schema)
        vars(self).pop("feature_names_in_", None)
        self.n_features_in_ = schema.n_features
        self._close_session(session, released)
        del self._unit
        return self

    def public_copy(self) -> Any:
        """Return the copy that may be published: no heads, no user labels, no counts.

        Returns
        -------
        public : object
            A fitted estimator of the same class: it predicts by the global model, and ``adapt``
            gives it heads.
        """
        self._check_published()
        if self.target_scale_found_ and not self.global_model_found_:
            warn_caller(
                f"{type(self).__name__} could use no model common to all users: the public copy "
                "predicts about the mean of the targets, or how frequent classes are, until it "
                "adapts to users. Use more users, a larger 'epsilon' or fewer columns.",
                PartialSignalWarning,
            )
        return self._copy()

    def _check_published(self):
        check_is_fitted(self, "components_")
        if self.privacy_spent_.seeded or self.privacy_spent_.epsilon == math.inf:
            raise PrivacyError(
                "This fit is not private: its noise was seeded, or epsilon is infinite. Fit with "
                "random_state=None and a finite epsilon to publish the result."
            )

    def _copy(self):
        params = self.get_params(deep=False) | {"random_state": None}
        copy = type(self)(**params)
        for name, value in vars(self).items():
            if name.endswith("_") and not name.startswith("_") and name != "n_groups_":
                setattr(copy, name, value)
        return copy

    def make_head(self) -> Any:
        """Return a tiny estimator for one user's device, made of public attributes only.

        Returns
        -------
        head : UserHead
            ``head.fit(X, y)`` fits the user's own rows; ``head.predict(X)`` predicts.
        """
        self._check_published()
        public = self._copy()
        if public.group_column is not None:  # a device has no column of users
            if (names := feature_names(self)) is not None:
                public.feature_names_in_ = names
            public.group_column = None
            public.n_features_in_ = public.components_.shape[1]
        return UserHead(public)
