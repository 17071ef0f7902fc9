"""Errors of one-release fits: low-rank factors, linear read-outs, standard deviations.

The constants `_FACTOR` and `_FOUND` are measured; tests compare all three with fits.
"""

from __future__ import annotations

import math

__all__ = ["deviation_error", "factorization_error", "factorization_threshold", "readout_loss"]

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
    n: float, d: int, *, length: float, target: float, noise: float, signal: float
) -> float:
    """Return the share of the explainable variance that a noisy ridge loses.

    Rows are spread evenly over d directions: A = m I, m = n length^2 / d. An entry of X'Y has noise
    s, and so has one of X'X: for coefficients of variance rho^2 an entry of X'y is off by
    s^2 (1 + d rho^2), beside the n-dependent scatter of the targets about their mean. A filter of
    that level loses level / (m^2 + level).

    Parameters
    ----------
    n : float
        Number of records.
    d : int
        Number of features.
    length, target : float
        Root mean square length of a row, and of one target, in the units of the release.
    noise : float
        Standard deviation of the noise on an off-diagonal entry.
    signal : float
        Share of the variance of the target that is linear in the rows.
    """
    m = n * length**2 / d
    prior = signal * target**2 / length**2  # rho^2: the variance of one coefficient
    scatter = (1 - signal) * target**2 * m
    level = (noise**2 * (1 + d * prior) + scatter) / prior
    return level / (m * m + level)


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
