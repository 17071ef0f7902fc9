"""What leaves the house: public copies, heads for devices, messages and steps of further rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import checked
from skdp.answer import Answer
from skdp.base import atomic
from skdp.exceptions import PrivacyError
from skdp.regression._users import UserHead
from skdp.solvers.linalg import fix_signs
from skdp.solvers.personalization import Count, Shared
from skdp.solvers.user_rounds import ResidualRound, residual_step


class PublicationMixin:
    """Publication and federation of a personalised estimator."""

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

    def client_update(self, X: Any, y: Any) -> Any:
        """Compute the message of one user for a further round; what a device sends.

        It is private: it may only enter a sum to which noise is added, by secure aggregation.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            All rows of the user.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        message : ndarray of shape (k * n_features + k * k,)
            Norm at most ``clip_level * sqrt(1 + 1/9)``; add the messages of all users.
        """
        check_is_fitted(self, "components_")
        X, y = checked(self, X, y, accept_sparse="csr", reset=False, y_numeric=self._y_numeric)
        query = self._query(X, self._encoded(y, reset=False), np.zeros(X.shape[0], int))
        return self._round(query, self.components_).answer(0.0)

    def _round(self, query, components):
        """Return the bounded sum of the messages of a query's users at public components."""
        return ResidualRound(self._public_view(), components.T, self.clip_level).asked(query)

    def server_update(self, total: Any, noise_scale: Any) -> Any:
        """Return a public copy after one more round, from the noisy sum of all messages.

        Parameters
        ----------
        total : ndarray of shape (k * n_features + k * k,)
            Sum of the users' messages plus Gaussian noise.
        noise_scale : float
            Its standard deviation: the norm bound of a message (twice that under "replace") over
            the mu of the round. Its loss is not part of any receipt here.

        Returns
        -------
        public : object
            A copy without heads and without a receipt, with new `components_`.
        """
        check_is_fitted(self, "components_")
        released = Answer(np.asarray(total, np.float64), float(noise_scale))
        start = Shared(self.components_.T, 1.0, Count())
        shared = residual_step(start, released, self.clip_level)
        copy = self._copy()
        copy.components_ = fix_signs(shared.U.T)
        # This round was paid elsewhere: a receipt without it would claim too little.
        for name in ("privacy_spent_", "ledger_"):
            vars(copy).pop(name, None)
        return copy
