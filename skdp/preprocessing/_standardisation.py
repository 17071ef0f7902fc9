"""The public maps of DPStandardScaler: what it does to rows, and to released intervals."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from skdp._validation import FLOATS
from skdp.data.products import saturated


class Standardisation(NamedTuple):
    """The public map of `transform`, for blocks of rows wherever they are."""

    bounds: tuple[np.ndarray, np.ndarray]
    mean: np.ndarray | None
    scale: np.ndarray | None

    def __call__(self, X):
        """Return standardised copies of rows; those of another dtype than float32 in float64."""
        dtype = X.dtype if X.dtype in FLOATS else np.float64
        if sp.issparse(X):
            return self._of_stored(X, dtype)
        X = np.array(np.clip(X, *self.bounds), dtype=dtype)
        with np.errstate(over="ignore"):
            if self.mean is not None:
                X -= self.mean.astype(X.dtype)
            if self.scale is not None:
                X /= self.scale.astype(X.dtype)
        return saturated(X)

    def _of_stored(self, X, dtype):
        """Return the same of a CSR matrix that is scaled alone: its zeros stay zeros."""
        low, high = (bound[X.indices] for bound in self.bounds)
        data = np.clip(X.data, np.minimum(low, 0.0), np.maximum(high, 0.0)).astype(dtype)
        with np.errstate(over="ignore"):
            if self.scale is not None:
                data /= self.scale[X.indices].astype(dtype)
        return type(X)((saturated(data), X.indices.copy(), X.indptr.copy()), shape=X.shape)


def around_zero(center, size):
    """Widen intervals until 0 lies in them."""
    beyond = np.maximum(np.abs(center) - size, 0.0)  # how far 0 is from the nearer end
    half = np.where(beyond > 0, beyond / 2, 0.0)
    return center - np.sign(center) * half, size + half * (1 + 2.0**-40)


def handed_on(attributes, place):
    """Return attributes that leave one more column, the one of persons, as it is."""
    low, high = attributes["entry_bounds_"]
    bounds = np.insert(low, place, -np.inf), np.insert(high, place, np.inf)
    unchanged = {"mean_": 0.0, "var_": 1.0, "scale_": 1.0}
    found = {name: attributes[name] for name in unchanged if attributes[name] is not None}
    found = {name: np.insert(value, place, unchanged[name]) for name, value in found.items()}
    return attributes | found | {"entry_bounds_": bounds}


def is_constant(found):
    """Whether a variance is nothing but rounding, as scikit-learn decides it."""
    eps = np.finfo(np.float64).eps
    return found.variance <= found.n * eps * found.variance + (found.n * found.mean * eps) ** 2
