"""The probabilistic model behind PCA, from released values only."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import checked
from skdp.solvers.postprocess import log_likelihood_rows, model_covariance, model_precision


class ProbabilisticModelMixin:
    """Covariance, precision and likelihoods of a fitted PCA."""

    def get_covariance(self):
        """Return the covariance of the probabilistic model.

        Returns
        -------
        cov : ndarray of shape (n_features, n_features)
            Covariance, from released values.
        """
        check_is_fitted(self)
        return model_covariance(*self._model())

    def get_precision(self):
        """Return the inverse of the model's covariance.

        Returns
        -------
        precision : ndarray of shape (n_features, n_features)
            Precision, from released values.
        """
        check_is_fitted(self)
        return model_precision(*self._model())

    def _model(self):
        components = self.components_
        if self.whiten:  # scikit-learn scales the axes of a whitened model, and so do we
            components = components * np.sqrt(self.explained_variance_)[:, None]
        return components, self.explained_variance_, self.noise_variance_

    def score_samples(self, X):
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

    def score(self, X, y=None):
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
