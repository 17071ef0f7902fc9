"""Linear algebra on public arrays.

Notation: V is d x k with orthonormal columns, M a symmetric d x d matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

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


def leading_eigenvectors(
    multiply: Callable[[FloatArray], FloatArray], start: FloatArray, k: int, most: int = 400
) -> FloatArray:
    """Return the k eigenvectors of largest magnitude of a symmetric map that has no noise.

    Rayleigh-Ritz in block Krylov spaces of at most about `most` dimensions, restarted twice.
    """
    V = orthonormal(start)
    for _ in range(3):
        basis = images = np.zeros((len(V), 0))
        block = V
        while block.shape[1] and basis.shape[1] < most:
            image = multiply(block)
            basis, images = np.hstack([basis, block]), np.hstack([images, image])
            block = _new_directions(image, basis)
        M = basis.T @ images
        values, vectors = np.linalg.eigh((M + M.T) / 2)
        order = np.argsort(-np.abs(values), kind="stable")[: V.shape[1]]
        V = basis @ vectors[:, order]
    return V[:, :k]


def _new_directions(Y: FloatArray, basis: FloatArray) -> FloatArray:
    """Return an orthonormal basis of what is in Y beyond a basis and rounding."""
    size = np.linalg.norm(Y)
    for _ in range(2):
        Y = Y - basis @ (basis.T @ Y)
    left, values, _ = np.linalg.svd(Y, full_matrices=False)
    return np.asarray(left[:, values > 1e-12 * size])


def symmetric_noise_edge(noise_scale: float, d: int) -> float:
    """Spectral edge of (G + G')/2 with standard deviation `noise_scale` on the diagonal."""
    return float(noise_scale * np.sqrt(2.0 * d))
