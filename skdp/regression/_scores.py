"""Scores of models that predict: exact, of rows that are checked as those of `fit` are.

Metrics of scikit-learn quote targets that are no numbers, and labels of two kinds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import column_or_1d

from skdp._inputs import check_targets
from skdp._validation import check_kind, class_numbers


class ScoredRegressorMixin(RegressorMixin):
    """A regressor that is scored by R squared."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination; on private rows it is not covered.

        Parameters
        ----------
        X : {array-like, sparse matrix}, or what else `predict` takes
            Rows.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            R squared.
        """
        return self._compared(y, self.predict(X), sample_weight)

    def _compared(self, y, predicted, weight):
        y = check_targets(self, y)
        return r2_score(y, predicted, sample_weight=_checked_weight(self, weight))


class ScoredClassifierMixin(ClassifierMixin):
    """A classifier that is scored by its accuracy; a label that is no class is missed."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; on private rows it is not covered.

        Parameters
        ----------
        X : {array-like, sparse matrix}, or what else `predict` takes
            Rows.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            Accuracy.
        """
        return self._compared(y, self.predict(X), sample_weight)

    def _compared(self, y, predicted, weight):
        check_kind(self, y)
        y = check_targets(self, y, numbers=False)
        labels = (column_or_1d(np.asarray(each)) for each in (y, predicted))
        numbers = (class_numbers(each, self.classes_) for each in labels)
        return accuracy_score(*numbers, sample_weight=_checked_weight(self, weight))


def _checked_weight(estimator, weight):
    return None if weight is None else check_targets(estimator, weight, name="sample_weight")
