"""Errors of one-release fits: low-rank factors, linear read-outs, standard deviations.

The constants `_FACTOR` and `_FOUND` are measured; tests compare all three with fits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

# Error over sqrt(k) (sqrt m + sqrt n) noise: of an exact rank.
_FACTOR = {"two_sketch": 1.15, "three_sketch": 1.3}
_FOUND = {"dense": 0.7, "two_sketch": 1.0, "three_sketch": 1.1}
BOUNDED_LENGTH = 0.3  # of the longest row that bounds allow: columns seldom fill theirs
_DRAWS, _NUMBERS = 64, 2**14  # of random coefficients; fewer where there are many directions


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
    cut: float = math.inf,
    seen: NDArray[np.float64] | None = None,
) -> float:
    """Return the share of the explainable variance that a noisy ridge loses.

    A has the eigenvalues m_i = n length^2 p_i, p the spectrum, or n times those `seen`. An entry of
    X'Y has noise s, and so has one of X'X: for coefficients w an entry of X'y is off by
    s^2 (1 + w'w), beside the scatter of the targets about their mean. In units of the mean square
    rho^2 of a coefficient, w = rho z, that is level = (s^2 (1 + w'w) + scatter) / rho^2, and a
    filter 1 - f = m^2 / (m^2 + level) loses f^2 z^2 + f (1 - f) of a direction. The mean over
    random z of the same explained variance is not its value at z = 1: where the strong directions
    hold little, the weak ones hold much.
    Normal targets that are cut shorten all coefficients, by the share of targets that is cut.

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
    cut : float
        Where targets are cut, in their standard deviations.
    seen : array of shape (d,) or None
        Mean squares of the rows along the directions, as they are weighted, in the units of the
        release; None if none is too long.
    """
    p = spectrum[spectrum > 0]
    m = n * (length**2 * spectrum if seen is None else seen)[spectrum > 0]
    z2 = sampled_squares(len(p))
    explained = z2 @ p
    rho2 = signal * target**2 / length**2 / explained
    scatter = (1 - signal) * target**2 * m
    noises = noise**2 * (1 + rho2 * z2.sum(axis=1))
    level = (noises[:, None] + scatter) / rho2[:, None]
    f = level / (m * m + level)
    lost = float(np.mean((f * (f * z2 + 1 - f)) @ p / explained))
    short = math.erfc(cut / math.sqrt(2)) ** 2
    return short + (1 - short) * min(1.0, lost)


def weighted_rows(spectrum: NDArray[np.float64], level: float) -> tuple[float, NDArray[np.float64]]:
    """Return the length of normal rows in clip norms, and mean squares as `readout_loss` sees them.

    Rows longer than the clip norm C are weighted by C^2 / x'x, which takes most from the strongest
    directions.

    Parameters
    ----------
    spectrum : array of shape (d,)
        Shares of the squared length in orthogonal directions; they sum to 1.
    level : float
        The clip norm in median lengths.
    """
    squares = sampled_squares(len(spectrum)) * spectrum
    total = squares.sum(axis=1)
    clip = level**2 * float(np.median(total))
    weights = np.minimum(1.0, clip / total)
    return 1 / math.sqrt(clip), np.asarray(weights @ squares / len(squares) / clip)


@lru_cache(maxsize=8)
def sampled_squares(d: int) -> NDArray[np.float64]:
    """Return squares of d normal numbers, a few times: the same ones always, in each column all."""
    times = min(_DRAWS, max(_DRAWS // 4, _NUMBERS // d))
    even = ndtri((np.arange(times) + 0.5) / times)
    order = np.argsort(_scattered(times * d).reshape(times, d), axis=0, kind="stable")
    return np.asarray(even[order] ** 2 / np.mean(even**2))


def sampled_normals(shape: tuple[int, int], turn: int = 0) -> NDArray[np.float64]:
    """Return numbers that look like normal ones, others in each turn: the same ones always."""
    size = math.prod(shape)
    places = _scattered(size, turn * size).astype(np.float64)
    return np.asarray(ndtri((places + 0.5) / 2.0**64).reshape(shape))


def _scattered(n: int, first: int = 0) -> NDArray[np.uint64]:
    """Return n numbers in an order that looks random (the finalizer of splitmix64)."""
    x = np.arange(first + 1, first + n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def falling_spectrum(d: int) -> NDArray[np.float64]:
    """Return shares of d directions that fall like 1/i: columns that are correlated, as most are.

    Examples
    --------
    >>> falling_spectrum(3).round(2).tolist()
    [0.55, 0.27, 0.18]
    """
    shares = 1.0 / np.arange(1, d + 1)
    return np.asarray(shares / shares.sum())


def check_spectrum(spectrum: Any, d: int) -> NDArray[np.float64]:
    """Return shares of the squared length in d orthogonal directions; None: they fall like 1/i."""
    if spectrum is None:
        return falling_spectrum(d)
    shares = np.asarray(spectrum, np.float64)
    fine = shares.shape == (d,) and np.isfinite(shares).all() and (shares >= 0).all()
    if not fine or shares.sum() == 0:
        raise ValueError(
            f"'spectrum' must be None or {d} numbers of at least 0 that are not all 0: the "
            f"variances along orthogonal directions. Got {spectrum!r} instead."
        )
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
