"""Eigenpairs of a released moment without the known push of their noise.

Notation: G is n x n, a signal sum of theta_i u_i u_i' plus noise of known law; w and v are an
eigenvalue and eigenvector of G, theta what w is without the noise, and cos2 = <v, u>^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_CLEARLY_ABOVE = 1.02  # of the edge: an eigenvalue at it is noise


class Directions(NamedTuple):
    """What can be read of a signal through its noise.

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
    off : ndarray of shape (n, n) or LinearOperator
        Symmetric; zero on the diagonal.
    shrink : callable
        What can be read of its eigenpairs (values, vectors), which may be of another diagonal.
    edge : float
        Where the spectrum of its noise ends.
    diagonal : ndarray of shape (n,) or None
        The released diagonal; None where there is none.
    """

    off: Any
    shrink: Callable[[FloatArray, FloatArray], Directions]
    edge: float
    diagonal: FloatArray | None = None


def wigner(values: FloatArray, vectors: FloatArray, noise_scale: float) -> Directions:
    """Shrink eigenpairs of a moment with symmetric noise, `noise_scale` off the diagonal.

    Spectral edge E = 2 s sqrt(n); w = theta + (E/2)^2/theta and cos2 = 1 - (E/2)^2/theta^2.
    """
    edge = 2 * noise_scale * math.sqrt(len(vectors))
    kept = values > max(_CLEARLY_ABOVE * edge, 0.0)
    w = values[kept]
    theta = (w + np.sqrt(np.maximum(w**2 - edge**2, 0.0))) / 2
    return Directions(vectors[:, kept], theta, 1 - (edge / 2) ** 2 / theta**2)


def shrunk(values: FloatArray, vectors: FloatArray, noise_scale: float) -> FloatArray:
    """Return signed eigenvalues, ordered by magnitude, without the noise; 0 inside its edge."""
    kept = wigner(np.abs(values), vectors, noise_scale).values
    rest = np.zeros(len(values) - len(kept))
    return np.concatenate([np.sign(values[: len(kept)]) * kept, rest])


def marchenko_pastur(
    values: FloatArray, vectors: FloatArray, n_rows: float, variance: float
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
    kept = y > _CLEARLY_ABOVE * (1 + math.sqrt(b)) ** 2
    h = y[kept] - 1 - b
    t = (h + np.sqrt(np.maximum(h * h - 4 * b, 0.0))) / 2
    return Directions(vectors[:, kept], t * unit, (t**2 - b) / (t**2 + b * t))
