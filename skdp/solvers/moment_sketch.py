"""Principal components from one sketch of the second moment, where d x d numbers are too many.

Notation: Y = A Q + N is the released sketch of A = sum over rows of (x - mean)(x - mean)', Q is
d x t with orthonormal columns, N has standard deviation s.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.postprocess import subspace_attributes

FloatArray = NDArray[np.float64]


def sketch_size(k: int, d: int) -> int:
    """Columns of a sketch for k components of d features (spec: 20 each)."""
    return min(d, max(20 * k, 50))


def centered_sketch(Y: FloatArray, Q: FloatArray, mean: FloatArray, n: float) -> FloatArray:
    """Take n mean mean' off a sketched second moment about zero."""
    return np.asarray(Y - n * np.outer(mean, mean @ Q))


def sketch_attributes(
    Y: FloatArray, Q: FloatArray, noise_scale: float, total: float, n: float, k: int
) -> dict[str, FloatArray | float | int]:
    """Return the fitted attributes of PCA from a sketch and the released total of squares.

    U are the left singular vectors of Y above the edge s (sqrt d + sqrt t) of the noise, at least k
    and at most 2k; A is fitted as U M U' by M = (U'Y) (U'Q)^+, made symmetric and positive.
    """
    d, t = Q.shape
    left, sizes, _ = np.linalg.svd(Y, full_matrices=False)
    above = int(np.count_nonzero(sizes > noise_scale * (math.sqrt(d) + math.sqrt(t))))
    U = left[:, : min(t, max(k, min(above, 2 * k)))]
    M = (U.T @ Y) @ np.linalg.pinv(U.T @ Q)
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    order = np.argsort(-values, kind="stable")[:k]
    V = U @ vectors[:, order]
    kept = np.maximum(values[order], 0.0)
    return subspace_attributes(kept, V, max(total, float(kept.sum())), n, min(n, d))
