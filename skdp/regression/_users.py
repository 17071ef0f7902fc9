"""Users of a personalised model: labels, heads on their own devices, public copies, messages."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skdp.base import atomic
from skdp.data.units import UserRows
from skdp.exceptions import PrivacyError
from skdp.queries.users import UserQuery
from skdp.theory import Expectation, constant_error, vote_error, vote_threshold, zero_rows
from skdp.theory._plan import _HALF_MISSED, _SHARP

# User labels: how they are passed, checked and looked up; and the head on a user's own device.


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
    """Return rows whose entries beyond the bounds (2, d) are folded; see `Sight`."""
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
        self._close_session(session, self._target_attributes() | released)
        self._warn_if_few(released["n_users_"])
        del self._unit
        return self

    def released(self) -> Any:
        """Return the copy that may be published: no heads, no user labels, no counts.

        Returns
        -------
        public : object
            A fitted estimator of the same class: it predicts by the global model, and ``adapt``
            gives it heads.
        """
        check_is_fitted(self, "components_")
        if self.privacy_spent_.seeded or self.privacy_spent_.epsilon == math.inf:
            raise PrivacyError(
                "This fit is not private: its noise was seeded, or epsilon is infinite. Fit with "
                "random_state=None and a finite epsilon to publish the result."
            )
        return self._copy()

    def _copy(self):
        params = self.get_params(deep=False) | {"random_state": None}
        copy = type(self)(**params)
        for name, value in vars(self).items():
            if name.endswith("_") and not name.startswith("_") and name != "n_users_":
                setattr(copy, name, value)
        return copy

    def make_head(self) -> Any:
        """Return a tiny estimator for one user's device, made of public attributes only.

        Returns
        -------
        head : UserHead
            ``head.fit(X, y)`` fits the user's own rows; ``head.predict(X)`` predicts.
        """
        public = self.released()
        if public.user_column is not None:  # a device has no column of users
            public.user_column = None
            public.n_features_in_ = public.components_.shape[1]
            vars(public).pop("feature_names_in_", None)
        return UserHead(public)


# -- users -------------------------------------------------------------------------------------


def no_users(n, d, adjacency):
    """Return a query of so many users without numbers; one output, as more change no norm.

    A private number of users is not asked for.
    """
    n = n if adjacency == "replace" else 1
    rows = UserRows(zero_rows(n, d), zero_rows(n, 1), np.arange(n), True)
    return UserQuery(rows, adjacency=adjacency)


def user_risk(n, angle, k, rows, noise, found):
    """Return the expected risk of least-squares heads, relative to the model of all.

    With fewer users than `found` the subspace is missed more and more often.

    A head of h numbers on m rows costs h/(m - h - 1) of what it cannot explain: the noise, and what
    lies outside the subspace.
    """
    error, spare = angle(n), rows - k - 1
    cost = k / (spare - 1) if spare > 1 else math.inf
    risk = min(1.0, error + (error + noise) * cost)
    missed = 1 / (1 + (n / (_HALF_MISSED * found)) ** _SHARP) if found else 0.0
    return missed + (1 - missed) * risk


def expect_risk(expected, k, rows, noise):
    """Expect the risk of heads on so many rows, in place of the angle of the subspace."""
    facts = {"angle": expected.error, "k": k, "rows": rows, "found": expected.found}
    assumed = (
        f"users have {rows:g} rows, with noise of {noise:g} times the variance to be explained"
    )
    return replace(
        expected,
        error=partial(user_risk, noise=noise, **facts),
        meaning="risk of heads, 1 is the model of all",
        assumptions=(*expected.assumptions[:1], f"{k} components of equal weight", assumed),
        goal=0.5,
    )


def expect_users(rehearsal, d, k, alignment):
    """Expect the angle that votes leave."""
    votes = rehearsal.named("votes")
    facts = {"d": d, "k": k, "alignment": alignment}
    known = bool(votes) and math.isfinite(rehearsal.mu)
    if known:
        facts["noise_scale"] = votes[0].noise_scale
    return Expectation(
        error=partial(vote_error, **facts) if known else constant_error,
        meaning="squared sine between released and true subspace",
        found=vote_threshold(**facts) if known else 0.0,
        signal="users from which the subspace stands out",
        assumptions=(
            f"{alignment:g} of the square of a user's own direction lies in the subspace",
            f"{k} components of equal weight",
        ),
        goal=0.5 * (1 - k / d) if known and k < d else 0.0,
    )
