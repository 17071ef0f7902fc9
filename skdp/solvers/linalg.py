"""Linear algebra on public arrays.

Notation: V is d x k with orthonormal columns, M a symmetric d x d matrix.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

__all__ = ["fix_signs", "orthonormal", "symmetric_noise_edge", "top_eigenpairs"]

FloatArray = NDArray[np.float64]


def orthonormal(Y: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the columns of Y (Q of its QR factorisation)."""
    Q: FloatArray = np.linalg.qr(Y)[0]
    return Q


def fix_signs(components: FloatArray) -> FloatArray:
    """Make the largest entry of each row positive: signs come from released rows alone."""
    largest = np.argmax(np.abs(components), axis=1)
    signs = np.sign(components[np.arange(len(components)), largest])
    return np.asarray(components * np.where(signs == 0, 1.0, signs)[:, None])


def top_eigenpairs(M: FloatArray, k: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Return the k largest eigenvalues (descending) and their eigenvectors as columns."""
    d = len(M)
    few = k is not None and k < d // 4
    subset = (d - int(k or 0), d - 1) if few else None
    values, vectors = scipy.linalg.eigh(M, subset_by_index=subset, check_finite=False)
    kept = (
        slice(None, None, -1) if k is None else slice(-1, -k - 1 if k < len(values) else None, -1)
    )
    return values[kept], vectors[:, kept]


def symmetric_noise_edge(noise_scale: float, d: int) -> float:
    """Spectral edge of (G + G')/2 with standard deviation `noise_scale` on the diagonal."""
    return float(noise_scale * np.sqrt(2.0 * d))
