"""Tags, scores and classes of models that predict; scores are exact, of rows `fit` would take.

Metrics of scikit-learn quote targets that are no numbers, and labels of two kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from skdp._inputs import check_targets
from skdp._validation import check_classes, check_kind, class_numbers
from skdp.base import no_warnings
from skdp.data.blocks import is_dask_array
from skdp.exceptions import PrivacyWarning, warn_caller


class _Scored:
    """A model whose score is poor on few rows, or on rows without users."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        (tags.regressor_tags or tags.classifier_tags).poor_score = True
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R squared, or the accuracy of labels; on private rows it is not covered.

        Parameters
        ----------
        X : {array-like, sparse matrix}, or what else `predict` takes
            Rows.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, or labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            The larger the better; 1 at best.
        """
        return self._compared(y, _whole(self.predict(X)), sample_weight)


class ScoredRegressorMixin(_Scored, RegressorMixin):
    """A regressor that is scored by R squared."""

    def _compared(self, y, predicted, weight):
        y = check_targets(self, y)
        return r2_score(y, predicted, sample_weight=_checked_weight(self, weight))


class ScoredClassifierMixin(_Scored, ClassifierMixin):
    """A classifier that is scored by its accuracy; a label that is no class is missed."""

    def _compared(self, y, predicted, weight):
        check_kind(self, y)
        y = check_targets(self, y, numbers=False)
        labels = (column_or_1d(np.asarray(each)) for each in (y, predicted))
        numbers = (class_numbers(each, self.classes_) for each in labels)
        return accuracy_score(*numbers, sample_weight=_checked_weight(self, weight))


def public_classes(estimator, y, *, least=2):
    """Return the classes: given, or those of y, which are public then."""
    name = type(estimator).__name__
    if estimator.classes is not None:
        return check_classes(estimator, least=least)
    if is_dask_array(y):
        raise ValueError(f"{name} needs 'classes' for a Dask array y: labels stay at the workers.")
    try:
        with no_warnings():  # of many classes, which depends on the private number of rows
            check_classification_targets(y)
        classes = np.unique(y)
    except TypeError:
        raise ValueError(f"{name} needs 'classes' if labels in y are bytes, or mixed.") from None
    if len(classes) < least:
        raise ValueError(
            f"{name} needs at least {least} classes in y, which are public unless 'classes' is "
            "given. Got one class only: pass 'classes'."
        )
    warn_caller(
        f"{name} took the classes from y, which makes the set of labels public. Pass 'classes' if "
        "that set may reveal one record.",
        PrivacyWarning,
    )
    return classes


def _whole(predicted):
    """Return predictions as one array; those of a list of files come block by block."""
    return np.concatenate(list(predicted)) if isinstance(predicted, Iterator) else predicted


def encode(y, classes, codes):
    """Return the code of each label, NaN for one that is not among the classes."""
    found = class_numbers(y, classes)
    Y = codes[np.maximum(found, 0)]
    Y[found < 0] = np.nan
    return Y


def _checked_weight(estimator, weight):
    return None if weight is None else check_targets(estimator, weight, name="sample_weight")
