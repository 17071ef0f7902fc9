"""Public steps before a private step: rows scaled down to a norm, columns scaled by bounds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array

from skdp import _inputs, _validation, base
from skdp._limits import CACHED
from skdp.data import blocks
from skdp.data.products import in_dtype, saturated

# Scaling down of long rows.


class _PublicStep(base.DocLinkMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A map of single rows by public parameters: nothing is learnt."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class RowClipper(_PublicStep):
    """Scale rows with a norm above `clip_norm` down to it, and leave the others unchanged.

    The step treats each row by itself and learns nothing. It costs no budget, and the guarantee of
    the next private step covers the original rows. With it, all later steps can have the same
    number as their `clip_norm`.

    Parameters
    ----------
    clip_norm : float, default=1.0
        Largest Euclidean norm of a row. A public number, not one from the data.

    Attributes
    ----------
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.

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
        _validation.check_real(self, "clip_norm", 0, math.inf, closed="right")
        _inputs.checked(self, X, accept_sparse="csr")
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
        clip_norm = _validation.check_real(self, "clip_norm", 0, math.inf, closed="right")
        X = _inputs.checked(self, X, accept_sparse="csr", reset=False, copy=True)
        if sp.issparse(X):
            X = type(X)(blocks.canonical(X))
        return clipped(X, clip_norm)


def clipped(rows, clip_norm):
    """Clip rows, whose memory is ours, to a norm: each from itself alone (never through BLAS)."""
    wide = rows.astype(np.float64) if sp.issparse(rows) else np.array(rows, np.float64, order="C")
    largest = blocks.largest_entries(wide)
    largest = np.where(largest > 0, largest, 1.0)
    # A length beyond all floats is longer than the bound; an infinite bound times 0 is not used.
    with np.errstate(over="ignore", invalid="ignore"):
        # So that squares do not overflow.
        relative = blocks.entrywise(lambda entries: entries / blocks.per_row(largest, wide), wide)
        lengths = np.sqrt(blocks.square_norms(relative))
        # A margin for rounding in the dtype of X, so that no result exceeds the bound.
        short = clip_norm * (1 - 4 * np.finfo(rows.dtype).eps)
        long = largest * lengths > clip_norm
        scaled = blocks.scale_rows(relative, short / np.maximum(lengths, 1.0)).astype(rows.dtype)
    if not sp.issparse(rows):
        return np.where(blocks.per_row(long, rows), scaled, rows)
    rows.data = np.where(blocks.per_row(long, rows), scaled.data, rows.data)
    return rows


# Scaling of columns by bounds that are public.


class Standardisation(NamedTuple):
    """The public map of `transform`, for blocks of rows wherever they are."""

    bounds: tuple[np.ndarray, np.ndarray]
    mean: np.ndarray | None
    scale: np.ndarray | None

    def __call__(self, X):
        """Return standardised copies of rows; those of another dtype than float32 in float64."""
        dtype = X.dtype if X.dtype in _validation.FLOATS else np.float64
        if sp.issparse(X):
            return self._of_stored(X, dtype)
        out = np.empty(X.shape, dtype)
        size = max(1, min(len(X), CACHED // max(1, X.shape[1])))
        # Arithmetic with a vector for each row is faster than with one for all.
        low, high = (np.tile(bound, (size, 1)) for bound in self.bounds)
        center, scale = (
            None if numbers is None else np.tile(in_dtype(numbers, dtype), (size, 1))
            for numbers in (self.mean, self.scale)
        )
        with np.errstate(over="ignore"):
            for i in range(0, len(X), size):
                rows = out[i : i + size]
                n = len(rows)
                np.clip(X[i : i + size], low[:n], high[:n], out=rows, casting="same_kind")
                if center is not None:
                    rows -= center[:n]
                if scale is not None:
                    rows /= scale[:n]
                saturated(rows)
        return out

    def _of_stored(self, X, dtype):
        """Return the same of a CSR matrix that is scaled alone: its zeros stay zeros."""
        kind, X = type(X), blocks.canonical(X)
        low, high = (bound[X.indices] for bound in self.bounds)
        data = np.clip(X.data, np.minimum(low, 0.0), np.maximum(high, 0.0)).astype(dtype)
        with np.errstate(over="ignore"):
            if self.scale is not None:
                data /= in_dtype(self.scale, dtype)[X.indices]
        return kind((saturated(data), X.indices.copy(), X.indptr.copy()), shape=X.shape)

    def undone(self, X):
        """Scale rows back in their own memory; what was truncated is not restored."""
        if self.scale is not None and sp.issparse(X):
            X.data *= self.scale[X.indices].astype(X.dtype)
        elif self.scale is not None:
            X *= self.scale.astype(X.dtype)
        if self.mean is not None and not sp.issparse(X):
            X += self.mean.astype(X.dtype)
        return X


class PublicScaler(_PublicStep):
    """Scale each column from public bounds to [-1, 1] or [0, 1], and truncate what lies outside.

    The step treats each entry by itself and learns nothing. It costs no budget, and the guarantee
    of the next private step covers the original rows. Bounds must be public, such as ages from 0 to
    120 or answers from 1 to 5. Never take the smallest and the largest value of the data.

    If a bound is 0, zero remains zero, the column lies in [0, 1] or [-1, 0], and sparse rows remain
    sparse. Otherwise the midpoint of the bounds becomes 0, and the column lies in [-1, 1].

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
        Names of the features, if all names of X are strings.

    See Also
    --------
    DPStandardScaler : Learns private scales if no bounds are known.
    RowClipper : Bounds the norms of rows.

    Examples
    --------
    >>> from skdp.preprocessing import PublicScaler
    >>> ages_and_visits = [[20.0, 0.0], [70.0, 5.0], [130.0, 50.0]]
    >>> PublicScaler(bounds=[(20, 120), (0, 10)]).transform(ages_and_visits)
    array([[-1. ,  0. ],
           [ 0. ,  0.5],
           [ 1. ,  1. ]])
    """

    def __init__(self, bounds: _validation.ColumnBounds = (-1.0, 1.0)) -> None:
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
        _validation.check_column_bounds(self)
        names = _validation.column_names(X)
        self._map(_inputs.checked(self, X, accept_sparse="csr"), names)
        return self

    def transform(self, X: Any) -> Any:
        """Return X truncated to the bounds and scaled.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        X_new : {ndarray, CSR matrix} of shape (n_samples, n_features)
            Scaled rows, a copy.
        """
        _validation.check_column_bounds(self)
        names = _validation.column_names(X) or getattr(self, "feature_names_in_", None)
        X = _inputs.checked(self, X, accept_sparse="csr", reset=False, copy=True)
        return self._map(X, names)(X)

    def inverse_transform(self, X: Any) -> Any:
        """Scale rows back to the bounds. What was truncated stays at its bound.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Scaled rows.

        Returns
        -------
        X_original : {ndarray, CSR matrix} of shape (n_samples, n_features)
            Rows in the units of the bounds, a copy.
        """
        _validation.check_column_bounds(self)
        X = _inputs.advised(self, check_array, X, accept_sparse="csr", copy=True, input_name="X")
        return self._map(X, getattr(self, "feature_names_in_", None)).undone(X)

    def _map(self, X, names):
        """Return the map of columns by public bounds."""
        low, high = _validation.column_bounds(self, X.shape[1], names)
        center = np.where((low == 0) | (high == 0), 0.0, low + (high - low) / 2)
        if sp.issparse(X) and center.any():
            column = int(np.flatnonzero(center)[0])
            raise ValueError(
                "PublicScaler keeps sparse rows sparse only where zero is a bound of each column, "
                f"or in the middle. In column {column} it is not: use such bounds, or X.toarray()."
            )
        return Standardisation((low, high), center, np.maximum(high - center, center - low))
