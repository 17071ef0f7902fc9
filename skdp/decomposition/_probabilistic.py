"""The probabilistic model behind PCA, from released values only."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp._bounds import column_bounds
from skdp._inputs import checked
from skdp.solvers.postprocess import log_likelihood_rows, model_covariance, model_precision


class ProbabilisticModelMixin:
    """Covariance, precision, likelihoods and synthetic rows of a fitted PCA."""

    def get_covariance(self) -> Any:
        """Return the covariance of the probabilistic model.

        Returns
        -------
        cov : ndarray of shape (n_features, n_features)
            Covariance, from released values.
        """
        check_is_fitted(self)
        return model_covariance(*self._model())

    def get_precision(self) -> Any:
        """Return the inverse of the model's covariance.

        Returns
        -------
        precision : ndarray of shape (n_features, n_features)
            Precision, from released values.
        """
        check_is_fitted(self)
        return model_precision(*self._model())

    def _model(self, *, scaled=True):
        components = self.components_
        if self.whiten and scaled:  # scikit-learn scales the axes of a whitened model, and so do we
            components = components * np.sqrt(self.explained_variance_)[:, None]
        return components, self.explained_variance_, self.noise_variance_

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """Draw synthetic rows from the probabilistic model; free, and they may be shared.

        Normal rows with the released mean and covariance, cut to public `bounds` if there are any.
        They show what is linear: means, variances, correlations. They have no clusters, no skew, no
        dependence of another kind; fit one model for each class to keep classes apart.

        Parameters
        ----------
        n_samples : int, default=1
            Number of rows; `n_samples_` is the released number of private ones.
        random_state : int, Generator or None, default=None
            Of the draws. They are made of released values, so a seed takes no privacy away.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Synthetic rows.

        Examples
        --------
        >>> import numpy as np
        >>> from skdp import DPPCA
        >>> X = np.random.default_rng(0).uniform(0, 1, (5000, 3))
        >>> pca = DPPCA(epsilon=1.0, bounds=(0, 1)).fit(X)
        >>> pca.sample(4, random_state=0).shape
        (4, 3)
        """
        check_is_fitted(self)
        if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 1:
            raise ValueError(f"'n_samples' must be an int of at least 1. Got {n_samples!r}.")
        rng = np.random.default_rng(random_state)
        components, variances, noise = self._model(scaled=False)
        excess = np.sqrt(np.maximum(variances - noise, 0.0))
        inside = rng.standard_normal((n_samples, len(components))) * excess @ components
        outside = np.sqrt(noise) * rng.standard_normal((n_samples, components.shape[1]))
        rows = self.mean_ + inside + outside
        if getattr(self, "bounds", None) is not None:
            names = getattr(self, "feature_names_in_", None)
            rows = np.clip(rows, *column_bounds(self, "bounds", rows.shape[1], names))
        return rows.astype(self.components_.dtype, copy=False)

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of each row; for private rows it is not covered by epsilon.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score.

        Returns
        -------
        ll : ndarray of shape (n_samples,)
            Log-likelihood of each row.
        """
        check_is_fitted(self)
        X = checked(self, X, reset=False)
        return log_likelihood_rows(X - self.mean_, self.get_precision())

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood; on private rows it is not covered by epsilon.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score.
        y : Ignored
            Not used.

        Returns
        -------
        ll : float
            Mean log-likelihood.
        """
        return float(np.mean(self.score_samples(X)))
