"""The linear map that decompositions share: transform, inverse_transform, feature names."""

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from skdp._validation import FLOATS
from skdp.base import atomic
from skdp.solvers.products import row_products, saturated


class FitsElsewhereMixin:
    """Fit the same releases to rows that are not here: all that is needed is their public shape.

    Classes make all their releases in ``_fit_session(session, X)``, which uses X for its shape and
    hands it to a query that only the session reads.
    """

    @atomic
    def _fit_elsewhere(self, schema, connect):
        """Fit from rows of zeros of a public shape; ``connect(session)`` asks where the data are.

        A private number of rows is 0 in the schema.
        """
        self._check_parameters()
        session = self._open_session()
        attributes = self._fit_session(connect(session), schema)
        vars(self).pop("feature_names_in_", None)
        self.n_features_in_ = schema.shape[1]
        return self._close_session(session, attributes)


class LinearTransformMixin(FitsElsewhereMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Project rows on the released components.

    The components are private; rows projected by them are as private as the rows were.
    """

    _accept_sparse = ("csr", "csc")

    def transform(self, X):
        """Project X on the components.

        The map is public, but its output for private rows is not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to project.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Projected rows.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=self._accept_sparse, dtype=FLOATS, reset=False)
        return self._project(X)

    def _transform_each(self, X):
        """Project the rows that were fitted: each from itself alone, bit by bit.

        A private step behind this one is fitted on the result (see `row_products`).
        """
        X = validate_data(self, X, accept_sparse=self._accept_sparse, dtype=FLOATS, reset=False)
        with np.errstate(over="ignore"):
            if is_sparse(X):
                return saturated(self._project(X))  # scipy adds up each row by itself
            products = row_products(X, self.components_.T).astype(X.dtype, copy=False)
            return saturated(self._project(X, products))

    def _project(self, X, projected=None):
        if projected is None:
            projected = X @ self.components_.T
        mean = getattr(self, "mean_", None)
        if mean is not None:
            projected = projected - (mean[None, :] @ self.components_.T)
        if getattr(self, "whiten", False):
            projected = projected / self._whitening_scale()
        return np.asarray(projected)

    def _whitening_scale(self):
        scale = np.sqrt(self.explained_variance_)
        floor = np.finfo(scale.dtype).eps
        return np.where(scale < floor, floor, scale)

    def inverse_transform(self, X):
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
        X = check_array(X, dtype=FLOATS, input_name="X")
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


def as_input_dtype(attributes, dtype):
    """Cast released float arrays to the dtype of the input, as scikit-learn does."""
    if dtype != np.float32:
        return attributes
    return {
        name: value.astype(np.float32) if isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    }


def is_sparse(X):
    """Whether X is a scipy sparse matrix or array."""
    return sp.issparse(X)
