"""The linear map that decompositions share: transform, inverse_transform, feature names."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn import config_context
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from skdp._bounds import column_bounds
from skdp._groups import feature_names, refuse_column, rows_to_map
from skdp._inputs import advised, as_blocks, map_blocks
from skdp._validation import FLOATS
from skdp.base import FitsElsewhereMixin
from skdp.data.products import row_products, saturated
from skdp.exceptions import PrivacyWarning, warn_caller

_DOUBT = 0.5  # of the largest variance: more is said
_LONG = 0.5  # of the rows: if so many may be several times as long as the clip norm it is said


class LinearTransformMixin(FitsElsewhereMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Project rows on the released components.

    The components are private; rows projected by them are as private as the rows were.
    """

    _accept_sparse = ("csr", "csc")

    def transform(self, X: Any) -> Any:
        """Project X on the components.

        The map is public, but its output for private rows is not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            Rows to project.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Projected rows. For a Dask array a lazy Dask array; for a list of files and for a row
            source a generator of arrays, one for each block, so that nothing piles up.
        """
        check_is_fitted(self)
        return self._projected(X, self._projection())

    def _transform_each(self, X):
        """Project the rows that were fitted: each from itself alone, bit by bit.

        A private step behind this one is fitted on the result (see `row_products`).
        """
        with config_context(assume_finite=True):  # `fit` has looked
            return self._projected(X, self._projection(exact=True))

    def _projected(self, X, project):
        source = as_blocks(X)
        if source is None:
            return project(rows_to_map(self, X, accept_sparse=self._accept_sparse))
        refuse_column(self)
        return map_blocks(self, X, source, project, len(self.components_))

    def _projection(self, *, exact=False):
        """Return the public map; it holds no reference to the estimator."""
        scale = self._whitening_scale() if getattr(self, "whiten", False) else None
        return Projection(self.components_, getattr(self, "mean_", None), scale, exact)

    def _whitening_scale(self):
        scale = np.sqrt(self.explained_variance_)
        floor = np.finfo(scale.dtype).eps
        return np.where(scale < floor, floor, scale)

    def inverse_transform(self, X: Any) -> Any:
        """Map projected rows back to the original space.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Projected rows.

        Returns
        -------
        X_original : ndarray of shape (n_samples, n_features)
            Reconstructed rows.
        """
        check_is_fitted(self)
        X = advised(self, check_array, X, input_name="X")
        if getattr(self, "whiten", False):
            X = X * self._whitening_scale()
        original = X @ self.components_
        mean = getattr(self, "mean_", None)
        return original if mean is None else original + mean

    @property
    def _n_features_out(self):
        return self.components_.shape[0]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class Projection(NamedTuple):
    """The linear map of `transform`, for blocks of rows wherever they are."""

    components: np.ndarray
    mean: np.ndarray | None
    scale: np.ndarray | None
    exact: bool = False  # each row from itself alone, bit by bit (scipy does so anyway)

    def __call__(self, X):
        """Project rows; those of another dtype than float32 in float64."""
        X = X if X.dtype in FLOATS else X.astype(np.float64)
        if not self.exact:
            return self._finished(X @ self.components.T)
        with np.errstate(over="ignore"):  # one row near the largest float stays a finite row
            if is_sparse(X):
                return saturated(self._finished(X @ self.components.T))
            products = row_products(X, self.components.T).astype(X.dtype, copy=False)
            return saturated(self._finished(products))

    def _finished(self, projected):
        if self.mean is not None:
            projected = _in_place(np.subtract, projected, self.mean[None, :] @ self.components.T)
        if self.scale is not None:
            projected = _in_place(np.divide, projected, self.scale)
        return np.asarray(projected)


def _in_place(ufunc, projected, numbers):
    """Return what a function makes of rows that are ours, in their memory if it is of that type."""
    same = np.result_type(projected, numbers) == projected.dtype
    return ufunc(projected, numbers, out=projected if same else None)


def as_input_dtype(attributes, dtype):
    """Cast released float arrays to the dtype of the input, as scikit-learn does."""
    if dtype is None or np.dtype(dtype) != np.float32:
        return attributes
    return {
        name: value.astype(np.float32) if isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    }


def is_sparse(X):
    """Whether X is a scipy sparse matrix or array, or a source of such rows."""
    return sp.issparse(X) or getattr(X, "sparse", False)


def check_center(center, n_features):
    """Return a public centre as a float array of the right length, or None for a string."""
    if isinstance(center, str):
        return None
    center = check_array(center, ensure_2d=False, dtype=np.float64, input_name="center")
    if center.shape != (n_features,):
        raise ValueError(
            f"The 'center' parameter must be 'dp', 'none' or an array of shape ({n_features},). "
            f"Got an array of shape {center.shape} instead."
        )
    return center


def public_range(estimator, d, *, centers):
    """Return what is subtracted for free, and the clip norm, as far as `bounds` give them.

    Where the mean is released (`centers`) the middle of the bounds is free; else nothing is moved.
    """
    if estimator.bounds is None:
        return check_center(estimator.center, d), None
    low, high = column_bounds(estimator, "bounds", d, feature_names(estimator))
    middle = low + (high - low) / 2 if centers else np.zeros(d)
    reach = float(np.linalg.norm(np.maximum(high - middle, middle - low)))
    return middle, reach if estimator.clip_norm == "auto" else None


def warn_of_outcome(estimator, attributes, doubt, long, below=None):
    """Say what lies below the noise, or may be lost: from released and public numbers alone.

    Of a whole spectrum some variances always lie below: half of it is said. `below` says how many
    do, None counts those that were cut to zero; where none do, `doubt` says how far known noise
    moves the largest variance, relative to it. `long` is what share of the rows may be several
    times as long as the learnt clip norm: so many a search did not tell from none.
    """
    if estimator.epsilon == math.inf:
        return
    name, variances = type(estimator).__name__, attributes["explained_variance_"]
    sizes = attributes["singular_values_"]
    cut = " below the noise, cut to 0" if below is None else " no larger than those of noise alone"
    below = int(np.count_nonzero(sizes == 0)) if below is None else below
    if estimator.n_components is None and below < len(variances) / 2:
        below = 0
    said, known, auto = "", "'clip_norm'", ""
    if hasattr(estimator, "bounds"):
        known, auto = "'bounds'", " n_components='auto' leaves them out."
    if len(variances) == 0 and estimator.n_components == "auto":
        said = f"{name} found no component: no released eigenvalue is clearly larger than noise "
        said += "alone would show."
    elif below:
        said = f"{name} released {below} of {len(variances)} variances{cut}: "
        said += "these components may be noise alone."
        said += auto
    elif doubt > _DOUBT:
        said = f"{name} released noisy variances: mean, number of rows and moment together move "
        said += f"the largest by about {min(doubt, 9.99):.0%}. Only directions may be of use."
    elif long > _LONG:
        said = f"{name} released components of rows of which up to {min(long, 1.0):.0%} may be "
        said += "several times as long as 'clip_norm_', and were shortened to it: what only they "
        said += "hold may be lost."
        known = "'clip_norm'"
    if said:
        remedy = f"Use more rows, a larger 'epsilon' or public {known}; plan() says how many rows"
        message = f"{said} {remedy} a signal needs."
        warn_caller(message, PrivacyWarning)


def warn_below_noise(estimator, values, edge=0.0):
    """Say which singular values lie below the noise, from released and public numbers alone.

    Those that were cut to 0; or all of them, where the largest is no larger than the `edge` that
    noise alone reaches.
    """
    if estimator.epsilon == math.inf:
        return
    below = int(np.count_nonzero(values == 0)) if np.max(values) > edge else len(values)
    if not below:
        return
    warn_caller(
        f"{type(estimator).__name__} released {below} of {len(values)} singular values that do not "
        "stand above the noise: these components may be noise alone. Use a larger 'epsilon', "
        "fewer components, or more data; plan() says what a signal needs.",
        PrivacyWarning,
    )


def check_in_range(estimator, n_components, n_samples, n_features):
    """Refuse more components than features (or rows, where the number of rows is public)."""
    public_rows = estimator.adjacency == "replace" or estimator.epsilon == math.inf
    limit = min(n_samples, n_features)
    solver = estimator.svd_solver
    least = 0 if solver in ("full", "covariance_eigh") else 1
    if not least <= n_components <= limit:
        what = "min(n_samples, n_features)" if public_rows else "n_features"
        raise ValueError(
            f"n_components={n_components!r} must be between {least} and {what}={limit!r} with "
            f"svd_solver={solver!r}. Got {n_components!r}."
        )
