"""Scaling down of long rows."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin

from skdp._inputs import checked
from skdp._links import DocLinkMixin
from skdp._validation import check_real
from skdp.data.block_rows import square_norms


class RowClipper(DocLinkMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Scale rows that are longer than `clip_norm` down to it; leave the others as they are.

    Each row is treated by itself and nothing is learnt, so this step spends no privacy, and rows
    are still protected by the private step behind it. That step clips by itself too: this one makes
    several steps see the same rows, and lets them take a number for `clip_norm`.

    Parameters
    ----------
    clip_norm : float, default=1.0
        Largest Euclidean norm of a row. A public number, not one from the data.

    Attributes
    ----------
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, when X has names that are all strings.

    See Also
    --------
    sklearn.preprocessing.Normalizer : Scales short rows up too.

    Examples
    --------
    >>> from skdp.preprocessing import RowClipper
    >>> RowClipper(clip_norm=1.0).transform([[3.0, 4.0], [0.3, 0.4]])
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """

    def __init__(self, clip_norm: float = 1.0) -> None:
        self.clip_norm = clip_norm

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameter and the shape of X; nothing is learnt.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : Ignored
            Not used.

        Returns
        -------
        self : RowClipper
            The same object.
        """
        check_real(self, "clip_norm", 0, math.inf, closed="right")
        checked(self, X, accept_sparse="csr")
        return self

    def transform(self, X: Any) -> Any:
        """Return X with long rows scaled down.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        X_new : {ndarray, CSR matrix} of shape (n_samples, n_features)
            Clipped rows, a copy.
        """
        clip_norm = check_real(self, "clip_norm", 0, math.inf, closed="right")
        X = checked(self, X, accept_sparse="csr", reset=False, copy=True)
        if sp.issparse(X):
            X.sum_duplicates()
        return clipped(X, clip_norm)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def clipped(rows, clip_norm):
    """Return rows of norm at most `clip_norm`, each from that row alone (never through BLAS)."""
    wide = rows.astype(np.float64) if sp.issparse(rows) else np.array(rows, np.float64, order="C")
    largest = abs(wide).max(axis=1)
    largest = np.asarray(largest.toarray() if sp.issparse(largest) else largest).ravel()
    largest = np.where(largest > 0, largest, 1.0)
    relative = _by_row(np.divide, wide, largest)  # so that squares do not overflow
    lengths = np.sqrt(square_norms(relative))
    # A margin for rounding in the dtype of X: the result is never longer than the bound.
    short = clip_norm * (1 - 4 * np.finfo(rows.dtype).eps)
    with np.errstate(over="ignore"):  # a length beyond all floats is longer than the bound
        long = largest * lengths > clip_norm
    scaled = _by_row(np.multiply, relative, short / np.maximum(lengths, 1.0)).astype(rows.dtype)
    if not sp.issparse(rows):
        return np.where(long[:, None], scaled, rows)
    scaled.data = np.where(np.repeat(long, np.diff(rows.indptr)), scaled.data, rows.data)
    return scaled


def _by_row(operation, rows, numbers):
    if not sp.issparse(rows):
        return operation(rows, numbers[:, None])
    out = rows.copy()
    out.data = operation(rows.data, np.repeat(numbers, np.diff(rows.indptr)))
    return out
