"""Errors of one-release fits: low-rank factors, linear read-outs, standard deviations.

The constants `_FACTOR` and `_FOUND` are measured; tests compare all three with fits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Error over sqrt(k) (sqrt m + sqrt n) noise: of an exact rank.
_FACTOR = {"two_sketch": 1.15, "three_sketch": 1.3}
_FOUND = {"dense": 0.7, "two_sketch": 1.0, "three_sketch": 1.1}


def factorization_error(method: str, m: int, n: int, noise_scale: float, value: float) -> float:
    """Return the relative Frobenius error of a rank-k matrix with equal singular values.

    Parameters
    ----------
    method : {"dense", "two_sketch", "three_sketch"}
        What is released.
    m, n : int
        Shape of the matrix.
    noise_scale : float
        Noise of a release that has the whole budget.
    value : float
        The singular values.
    """
    if value < factorization_threshold(method, m, n, noise_scale):
        return 1.0
    if method == "dense":  # noise inside the two tangent spaces
        return min(1.0, noise_scale * math.sqrt(m + n) / value)
    return min(1.0, _FACTOR[method] * noise_scale * (math.sqrt(m) + math.sqrt(n)) / value)


def factorization_threshold(method: str, m: int, n: int, noise_scale: float) -> float:
    """Return the singular value from which a component is found."""
    return _FOUND[method] * noise_scale * (math.sqrt(m) + math.sqrt(n))


def readout_loss(
    n: float,
    spectrum: NDArray[np.float64],
    *,
    length: float,
    target: float,
    noise: float,
    signal: float,
) -> float:
    """Return the share of the explainable variance that a noisy ridge loses.

    A has the eigenvalues m_i = n length^2 p_i, p the spectrum. An entry of X'Y has noise s, and so
    has one of X'X: for coefficients of variance rho^2, the same in all directions, an entry of X'y
    is off by s^2 (1 + d rho^2), beside the scatter of the targets about their mean. A filter of
    that level loses level / (m_i^2 + level) of a direction, which holds m_i of what is explained.

    Parameters
    ----------
    n : float
        Number of records.
    spectrum : array of shape (d,)
        Shares of the squared length of the rows in orthogonal directions; they sum to 1.
    length, target : float
        Root mean square length of a row, and of one target, in the units of the release.
    noise : float
        Standard deviation of the noise on an off-diagonal entry.
    signal : float
        Share of the variance of the target that is linear in the rows.
    """
    m = n * length**2 * spectrum
    prior = signal * target**2 / length**2  # rho^2: the variance of one coefficient
    scatter = (1 - signal) * target**2 * m
    level = (noise**2 * (1 + len(spectrum) * prior) + scatter) / prior
    return float(spectrum @ (level / (m * m + level)))


def falling_spectrum(d: int) -> NDArray[np.float64]:
    """Return shares of d directions that fall like 1/i: columns that are correlated, as most are.

    Examples
    --------
    >>> falling_spectrum(3).round(2).tolist()
    [0.55, 0.27, 0.18]
    """
    shares = 1.0 / np.arange(1, d + 1)
    return np.asarray(shares / shares.sum())


def deviation_error(n: float, *, noise: float, count_noise: float, deviation: float) -> float:
    """Return the relative error of a standard deviation, in units of the half-width of its bounds.

    Parameters
    ----------
    n : float
        Number of rows.
    noise : float
        Of a sum of squares.
    count_noise : float
        Of the number of rows; squares are released about one half.
    deviation : float
        The standard deviation of a column.
    """
    spread = math.hypot(noise, count_noise * abs(0.5 - deviation**2)) / n
    return min(1.0, math.sqrt(2 / math.pi) * spread / (2 * deviation**2))
