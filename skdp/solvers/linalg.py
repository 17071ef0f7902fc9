"""Linear algebra on public arrays: bases, eigenpairs and their shrinkage.

Notation: V is d x k with orthonormal columns, M a symmetric d x d matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh, svds
from scipy.special import pdtrik

from skdp._limits import FloatArray

_LARGEST = 2.02  # quantile .99 of the Tracy-Widom law (order one)


def orthonormal(Y: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the columns of Y (Q of its QR factorisation)."""
    return np.asarray(np.linalg.qr(Y)[0])


def fix_signs(components: FloatArray) -> FloatArray:
    """Make the largest entry of each row positive: signs come from released rows alone."""
    largest = np.argmax(np.abs(components), axis=1)
    signs = np.sign(components[np.arange(len(components)), largest])
    return np.asarray(components * np.where(signs == 0, 1.0, signs)[:, None])


def components_of(V: FloatArray) -> FloatArray:
    """Return the columns of V as rows with fixed signs."""
    return fix_signs(np.ascontiguousarray(V.T))


def with_signs(U: FloatArray, V: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the components of V, and the columns of U with the signs of these."""
    components = components_of(V)
    return U * np.where(np.sum(components.T * V, axis=0) < 0, -1.0, 1.0), components


def top_eigenpairs(M: FloatArray, k: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Return the k largest eigenvalues (descending) and their eigenvectors as columns."""
    d = len(M)
    few = k is not None and k < d // 4
    subset, values = (d - int(k or 0), d - 1) if few else None, np.zeros(0)
    with suppress(np.linalg.LinAlgError):
        values, vectors = scipy.linalg.eigh(M, subset_by_index=subset, check_finite=False)
    if len(values) < (k if few and k else d):  # LAPACK finds no part of many values that are alike
        values, vectors = np.linalg.eigh(M)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


def leading_eigenvectors(
    multiply: Callable[[FloatArray], FloatArray], start: FloatArray, k: int
) -> FloatArray:
    """Return the k eigenvectors of largest magnitude of a symmetric map that has no noise.

    Rayleigh-Ritz in block Krylov spaces of at most about 400 dimensions, restarted twice.
    """
    V = orthonormal(start)
    for _ in range(3):
        basis = images = np.zeros((len(V), 0))
        block = V
        while block.shape[1] and basis.shape[1] < 400:
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
    left, values, _ = np.linalg.svd(Y - basis @ (basis.T @ Y), full_matrices=False)
    left = left[:, values > 1e-12 * size]
    return orthonormal(left - basis @ (basis.T @ left))  # small ones were not quite apart from it


def signal_share(square: float, noise: float) -> float:
    """Return the share of a square that is not its expected noise (James, Stein; Ledoit, Wolf)."""
    return max(0.0, 1 - noise / square) if square > 0 else 0.0


def symmetric_noise_edge(noise_scale: float, d: int) -> float:
    """Spectral edge of (G + G')/2 with standard deviation `noise_scale` on the diagonal."""
    return float(noise_scale * np.sqrt(2.0 * d))


def detection_limit(edge: float, d: int, kurtosis: float = 0.0) -> float:
    """Return the norm that symmetric noise exceeds once in a hundred, higher for small d."""
    return float(edge * _edge_factor((d, d), kurtosis) * (1 + _LARGEST / 2 * d ** (-2 / 3)))


def _edge_factor(shape: tuple[float, int], kurtosis: float) -> float:
    """Return the factor by which the edge of noise grows if its entries have excess kurtosis c.

    It is 1 + c / (2 sqrt(d1 d2)) (Hwang, Lee, Schnelli 2019). Sparse noise of equal entries ends at
    the root of their largest number in a row (Benaych-Georges, Bordenave, Knowles 2019): Poisson
    numbers.
    """
    edge, rare = math.sqrt(shape[0]) + math.sqrt(shape[1]), kurtosis + 6
    factor = 1 + kurtosis / (2 * math.sqrt(shape[0] * shape[1]))
    d, mean = np.asarray(shape), np.asarray(shape[::-1]) / rare
    most = math.ceil(np.nan_to_num(pdtrik(1 - 0.01 / d, mean)).max(initial=1.0))
    return min(factor, max(2.0, math.sqrt(most * rare) / edge))


def largest_of_noise(shape: tuple[float, int], kurtosis: float = 0.0) -> float:
    """Return the norm of noise over its edge, exceeded once in a hundred matrices (Johnstone 2001).

    The edge sqrt(d1) + sqrt(d2) is where the largest singular value lies in large matrices; in
    small ones it varies. Halves are those of Ma (2012).
    """
    a, b = (math.sqrt(d - 0.5) for d in shape)
    largest = (a + b) ** 2 + _LARGEST * (a + b) * (1 / a + 1 / b) ** (1 / 3)
    edge = math.sqrt(shape[0]) + math.sqrt(shape[1])
    return _edge_factor(shape, kurtosis) * math.sqrt(largest) / edge


def shrink(values: FloatArray, scale: float, shape: tuple[int, ...]) -> FloatArray:
    """Shrink singular values of signal plus noise: least expected Frobenius error.

    Gavish and Donoho, "Optimal shrinkage of singular values", IEEE IT 2017.
    """
    if scale == 0.0:
        return values
    m, n = shape
    y = values / scale
    inside = np.maximum((y**2 - m - n) ** 2 - 4.0 * m * n, 0.0)
    above = y > math.sqrt(m) + math.sqrt(n)
    return np.where(above, scale * np.sqrt(inside) / np.maximum(y, 1e-300), 0.0)


# Eigenpairs of a released moment without the known bias of their noise.
#
# Notation: G is n x n, a signal sum of theta_i u_i u_i' plus noise of known law; w and v are an
# eigenvalue and eigenvector of G, theta what w is without the noise, and cos2 = <v, u>^2.


class Directions(NamedTuple):
    """Estimated eigenpairs of a signal, from a noisy matrix.

    Attributes
    ----------
    vectors : ndarray of shape (n, r)
        Orthonormal columns.
    values : ndarray of shape (r,)
        Eigenvalues without the noise, descending.
    cosines : ndarray of shape (r,)
        Expected squared cosine of each column with the true direction.
    """

    vectors: FloatArray
    values: FloatArray
    cosines: FloatArray


class PairMoment(NamedTuple):
    """A released moment without its diagonal.

    Attributes
    ----------
    off : ndarray of shape (n, n)
        Symmetric; zero on the diagonal.
    shrink : callable
        Returns `Directions` from eigenpairs (values, vectors), perhaps with another diagonal.
    edge : float
        Where the spectrum of its noise ends.
    """

    off: FloatArray
    shrink: Callable[[FloatArray, FloatArray], Directions]
    edge: float


def wigner(values: FloatArray, vectors: FloatArray, noise_scale: float) -> Directions:
    """Shrink eigenpairs of a moment with symmetric noise, `noise_scale` off the diagonal.

    Spectral edge E = 2 s sqrt(n); w = theta + (E/2)^2/theta and cos2 = 1 - (E/2)^2/theta^2.
    """
    edge = 2 * noise_scale * math.sqrt(len(vectors))
    kept = values > detection_limit(edge, len(vectors))
    w = values[kept]
    theta = (w + np.sqrt(np.maximum(w**2 - edge**2, 0.0))) / 2
    return Directions(vectors[:, kept], theta, 1 - (edge / 2 / theta) ** 2)


def shrunk(values: FloatArray, vectors: FloatArray, noise_scale: float) -> FloatArray:
    """Return signed eigenvalues without the noise, those of largest magnitude first; 0 inside."""
    kept = wigner(np.abs(values), vectors, noise_scale).values
    rest = np.zeros(len(values) - len(kept))
    return np.concatenate([np.sign(values[: len(kept)]) * kept, rest])


def marchenko_pastur(
    values: FloatArray, vectors: FloatArray, n_rows: float, variance: float, kurtosis: float = 0.0
) -> Directions:
    """Shrink eigenpairs of Y'Y - n_rows variance I, Y = signal + iid noise of that variance.

    In units of n_rows * variance, with b = n / n_rows: y = (1 + t)(b + t)/t for a signal t, edge
    (1 + sqrt b)^2, and cos2 = (t^2 - b)/(t^2 + b t) on the side of the columns.
    """
    unit = n_rows * variance
    if unit == 0.0:
        kept = values > 0
        return Directions(vectors[:, kept], values[kept], np.ones(int(kept.sum())))
    b = len(vectors) / n_rows
    y = values / unit + 1
    kept = y > ((1 + math.sqrt(b)) * largest_of_noise((n_rows, len(vectors)), kurtosis)) ** 2
    h = np.maximum(y[kept] - 1 - b, 2 * math.sqrt(b))  # of small matrices it may be less
    t = (h + np.sqrt(np.maximum(h * h - 4 * b, 0.0))) / 2
    return Directions(vectors[:, kept], t * unit, (t**2 - b) / (t**2 + b * t))


# A decomposition is faster than products up to so many columns, and for more eigenpairs than one in
# so many. Dense products are, from so many filled cells on.
_SMALL, _FEW, MOSTLY_ZERO = 500, 10, 0.03


def is_small(n: int, k: int) -> bool:
    """Whether a matrix of n columns is decomposed whole for k of its eigenpairs."""
    return n <= _SMALL or k * _FEW >= n


def without_direction(M: FloatArray, v: FloatArray) -> FloatArray:
    """Return P M P for P = I - vv' and a symmetric M."""
    image = M @ v
    image -= float(v @ image) / 2 * v
    return np.asarray(M - np.stack([v, image], axis=1) @ np.stack([image, v]))


def leading_triplets(
    M: Any, k: int, start: FloatArray, tol: float = 0.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return k leading (U, values, V') of a large sparse array or operator, from a fixed start.

    ARPACK raises an error for a map of zeros: here its values are 0.
    """
    m, n = M.shape
    if not np.any(M @ start if m >= n else M.T @ start):
        return np.eye(m, k), np.zeros(k), np.eye(k, n)
    U, values, Vt = svds(M, k, tol=tol, v0=start)
    return U, values, Vt


def leading_pairs(M: Any, k: int, *, rough: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return the k largest eigenpairs of a symmetric array or operator, from a fixed start.

    `rough`: a large one is decomposed in single precision, which takes half of the time.
    """
    n = M.shape[0]
    k = min(k, n)
    wide = 2 * k if M.dtype == np.float32 else k  # decomposed in half of the time
    if isinstance(M, np.ndarray) and (is_small(n, wide) or not M.any()):
        return top_eigenpairs(M, k)
    M = M.astype(np.float32) if rough and isinstance(M, np.ndarray) else M
    if isinstance(M, np.ndarray) and np.count_nonzero(M) < MOSTLY_ZERO * M.size:
        M = sp.csr_array(M)  # most of it is zero: a product reads less
    values, vectors = eigsh(M, min(k, n - 1), which="LA", tol=1e-4, v0=np.ones(n, M.dtype))
    order = np.argsort(-values, kind="stable")
    return values[order].astype(np.float64), orthonormal(vectors[:, order].astype(np.float64))
