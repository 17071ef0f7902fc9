"""The public maps of DPStandardScaler: what it does to rows, and to released intervals."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from skdp._validation import FLOATS
from skdp.data.products import saturated

_BLOCK = 2**16  # numbers of a block: it fits the second-level cache


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
        out = np.empty(X.shape, dtype)
        size = max(1, min(len(X), _BLOCK // max(1, X.shape[1])))
        # Arithmetic with a vector for each row is faster than with one for all.
        low, high = (np.tile(bound, (size, 1)) for bound in self.bounds)
        center, scale = (
            None if numbers is None else np.tile(numbers.astype(dtype), (size, 1))
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
