"""Scaling of columns by bounds that are public."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin

from skdp._bounds import check_column_bounds, column_bounds
from skdp._inputs import checked
from skdp._links import DocLinkMixin
from skdp._types import ColumnBounds


class PublicScaler(DocLinkMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map each column to [-1, 1] or [0, 1] by bounds you know, and cut what lies outside.

    Each entry is treated by itself and nothing is learnt, so this step spends no privacy, and rows
    are still protected by the private step behind it. Bounds must be public: ages from 0 to 120, a
    questionnaire from 1 to 5, a price list; never the smallest and the largest value of the data.

    Zero stays zero where it is one of the bounds, and the column lies in [0, 1] or [-1, 0] then;
    sparse rows stay sparse. Elsewhere the middle of the bounds becomes zero, and the column lies in
    [-1, 1].

    Parameters
    ----------
    bounds : pair, two arrays, list of tuples or dict, default=(-1.0, 1.0)
        ``(low, high)`` for all columns, two arrays of one number for each column, a list of one
        tuple ``(low, high)`` for each column, or a dict of such tuples by column name (for data
        frames).

    Attributes
    ----------
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, when X has names that are all strings.

    See Also
    --------
    DPStandardScaler : Learns private scales where no bounds are known.
    RowClipper : Cuts rows, not entries.

    Examples
    --------
    >>> from skdp.preprocessing import PublicScaler
    >>> ages_and_visits = [[20.0, 0.0], [70.0, 5.0], [130.0, 50.0]]
    >>> PublicScaler(bounds=[(20, 120), (0, 10)]).transform(ages_and_visits)
    array([[-1. ,  0. ],
           [ 0. ,  0.5],
           [ 1. ,  1. ]])
    """

    def __init__(self, bounds: ColumnBounds = (-1.0, 1.0)) -> None:
        self.bounds = bounds

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameter against the shape of X; nothing is learnt.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : Ignored
            Not used.

        Returns
        -------
        self : PublicScaler
            The same object.
        """
        check_column_bounds(self, "bounds")
        names = getattr(X, "columns", None)
        self._map(checked(self, X, accept_sparse="csr"), names)
        return self

    def transform(self, X: Any) -> Any:
        """Return X cut to the bounds and scaled.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        X_new : {ndarray, CSR matrix} of shape (n_samples, n_features)
            Scaled rows, a copy.
        """
        check_column_bounds(self, "bounds")
        names = getattr(X, "columns", getattr(self, "feature_names_in_", None))
        X = checked(self, X, accept_sparse="csr", reset=False, copy=True)
        low, high, center, size = self._map(X, names)
        if not sp.issparse(X):
            return ((np.clip(X, low, high) - center) / size).astype(X.dtype, copy=False)
        X.sum_duplicates()
        here = X.indices
        X.data = (np.clip(X.data, low[here], high[here]) / size[here]).astype(X.dtype, copy=False)
        return X

    def _map(self, X, names):
        """Return lows, highs, what becomes zero, and what becomes one, for each column."""
        low, high = column_bounds(self, "bounds", X.shape[1], names)
        center = np.where((low == 0) | (high == 0), 0.0, low + (high - low) / 2)
        if sp.issparse(X) and center.any():
            column = int(np.flatnonzero(center)[0])
            raise ValueError(
                "PublicScaler keeps sparse rows sparse only where zero is one of the bounds of "
                f"each column, or in their middle. In column {column} it is "
                "neither: use such bounds, or X.toarray()."
            )
        return low, high, center, np.maximum(high - center, center - low)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
