"""A linear read-out from released moments. Everything here is free post-processing.

Notation: A = X'X and B = X'Y (d x q) about the released means, both with noise of standard
deviation s on an entry (sqrt(2) s on the diagonal of A); lambda, W the eigenpairs of A.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from skdp.solvers.postprocess import inside_ball

FloatArray = NDArray[np.float64]
_GRID = 2.0 ** (np.arange(-120, 81) / 2)  # prior variances of a coefficient, in its natural unit
_CLEAR = 2.0  # twice the logarithm of how much likelier a signal must be than none
_PLACE = 1 / 3  # deviation of the mean of a target about the middle of its bounds, in half of them
_LEAST = 1e-3  # least estimate of an eigenvalue, in standard deviations of the noise


class Readout(NamedTuple):
    """Released moments in the units of the data.

    Attributes
    ----------
    scatter : array of shape (d, d)
        X'X about the released mean (about 0 without an intercept).
    cross : array of shape (d, q)
        X'Y about the released means.
    row_mean, target_mean : array of shape (d,), (q,)
        Released means; zeros without an intercept.
    noise : float
        Standard deviation of the noise on an off-diagonal entry of `scatter`.
    cross_noise : array of shape (q,)
        Of an entry of each column of `cross`.
    weight, corner : float
        Released weight of all records, and the corner that it was read with; zeros without an
        intercept.
    """

    scatter: FloatArray
    cross: FloatArray
    row_mean: FloatArray
    target_mean: FloatArray
    noise: float
    cross_noise: FloatArray
    weight: float = 0.0
    corner: float = 0.0


def readout_moments(
    moment: FloatArray,
    noise_scale: float,
    target_size: FloatArray,
    *,
    corner: float,
    clip_norm: float,
    target_norm: float,
) -> Readout:
    """Read the moments about the means from a released [X, Y, c]'[X, Y, c].

    `target_size` is the unit of each target in the release, `target_norm` the largest norm of the
    targets of a record there, `noise_scale` belongs to the diagonal.
    The weight of all records is kept above two deviations of its noise, the means inside the balls
    that hold all records.
    """
    q = len(target_size)
    d = len(moment) - q - (1 if corner else 0)
    A, B = moment[:d, :d], moment[:d, d : d + q] * target_size
    noise, weight = noise_scale / math.sqrt(2), 0.0
    mean, target_mean = np.zeros(d), np.zeros(q)
    if corner:
        weight = max(float(moment[-1, -1]) / corner**2, 2 * noise_scale / corner**2, 1e-300)
        mean = inside_ball(moment[:d, -1] / (corner * weight), clip_norm)
        target_mean = moment[d : d + q, -1] / (corner * weight)
        target_mean = inside_ball(target_mean, target_norm) * target_size
        A = A - weight * np.outer(mean, mean)
        B = B - weight * np.outer(mean, target_mean)
    return Readout(A, B, mean, target_mean, noise, noise * target_size, weight, corner)


def steadied(released: Readout, half: FloatArray) -> Readout:
    """Return the moments about means that are drawn to the centres, as much as noise moves them.

    `half` is half the width of the bounds of each target, about whose middle its mean is expected.
    Nothing is expected of the d means of the columns but their common size (James and Stein).
    """
    if not released.corner or released.noise == 0.0:
        return released
    n, mean, target_mean = released.weight, released.row_mean, released.target_mean
    noise = released.noise / (n * released.corner)
    target_noise = released.cross_noise / (n * released.corner)
    square = max(float(mean @ mean), 1e-300)
    near = mean * max(0.0, 1 - max(len(mean) - 2, 0) * noise**2 / square)
    near_target = target_mean / (1 + (target_noise / (_PLACE * half)) ** 2)
    scatter = released.scatter + n * (np.outer(mean, mean) - np.outer(near, near))
    cross = released.cross + n * (np.outer(mean, target_mean) - np.outer(near, near_target))
    return released._replace(scatter=scatter, cross=cross, row_mean=near, target_mean=near_target)


class Solution(NamedTuple):
    """A linear map.

    Attributes
    ----------
    coefficients : array of shape (d, q)
        One column for each target.
    intercepts : array of shape (q,)
        What is predicted at 0.
    seen : array of bool, shape (q,)
        Whether the released moments show more of a target than noise alone would.
    kept : array of shape (q,)
        About what share of the variance that is linear in the rows this map explains. 1 for `flat`
        maps, which are for the largest of several scores: what shortens all of them costs nothing.
    astray : array of shape (q,)
        About how much of that variance the noise of means takes away again, by the intercepts: the
        mean of a square of one normal number.
    axes : array of shape (d, d)
        Orthonormal columns, along which the noise of coefficients is independent.
    noise : array of shape (d, q)
        Variance of the noise of each target's coefficients along the axes.
    """

    coefficients: FloatArray
    intercepts: FloatArray
    seen: NDArray[np.bool_]
    kept: FloatArray
    astray: FloatArray
    axes: FloatArray
    noise: FloatArray


def solve_readout(released: Readout, alpha: float, *, flat: bool = False) -> Solution:
    """Return the linear map from released moments.

    Without noise this is (A + alpha)^-1 B. With noise, b = (A + alpha) w + e for each target, where
    e is the noise on b and the noise on A times w. For w drawn from N(0, rho^2 I) an entry of e has
    variance s_b^2 + d rho^2 s^2, and the posterior mean of w has the filter m/(m^2 + var(e)/rho^2),
    m an eigenvalue of A + alpha, in place of 1/m: what stands clear of the noise is left as it is,
    what does not is taken to 0. rho is the most likely one given b.

    Beside w^2 there is rho^2 (1 - filter m) that the answers leave open: its share of both,
    weighted by m, is what is lost of the explainable variance.

    `flat` puts one penalty in its place, 1/(lambda + alpha + s sqrt(2 d)), at the edge of the
    noise. It keeps directions of small variance, in which classes differ and squared errors hardly.
    """
    values, W = scipy.linalg.eigh(released.scatter, check_finite=False)
    g = W.T @ released.cross
    m = true_forms(values, released.noise) + alpha
    filters, left_open = np.zeros_like(g), np.zeros_like(g)
    seen = np.ones(g.shape[1], bool)
    for j in range(g.shape[1]):
        cross_noise = float(released.cross_noise[j])
        level, seen[j], rho2 = _noise_to_prior(g[:, j], m, released.noise, cross_noise)
        filters[:, j] = _filter(m, level)
        left_open[:, j] = rho2 * np.maximum(1 - filters[:, j] * m, 0.0)  # < 0 by rounding alone
    found = filters * g
    lost = m @ left_open
    linear = np.maximum(m @ found**2 + lost, 1e-300)
    kept, astray = 1 - lost / linear, _astray(released, found) / linear
    if flat:
        edge = released.noise * math.sqrt(2 * len(g))
        filters = np.repeat(
            _filter(np.maximum(values, 0.0) + alpha + edge, 0.0)[:, None], g.shape[1], 1
        )
        found = filters * g
        kept, astray = np.ones_like(kept), np.zeros_like(kept)
    coefficients = W @ found
    intercepts = released.target_mean - released.row_mean @ coefficients
    noise = filters**2 * (released.cross_noise**2 + released.noise**2 * np.sum(found**2, axis=0))
    return Solution(coefficients, intercepts, seen, kept, astray, W, noise)


def _astray(released: Readout, found: FloatArray) -> FloatArray:
    """Return the squares that the noise of means adds to the residuals, by the intercepts."""
    if not released.corner:
        return np.zeros(found.shape[1])
    noise = released.cross_noise**2 + released.noise**2 * np.sum(found**2, axis=0)
    return np.asarray(noise / (released.weight * released.corner**2))


def true_forms(values: FloatArray, noise: float) -> FloatArray:
    """Return estimates of w_i'A w_i, A without the noise, for the eigenvectors w_i of A with it.

    The eigenvalues of a noisy A spread out; in the limit of large d the mean of w_i'A w_i is
    lambda_i - 2 s^2 Re sum_j 1/(lambda_i - lambda_j - i eta) (Bun, Allez, Bouchaud, Potters, IEEE
    Trans. Inf. Theory 2016), with eta = s, the spacing of the eigenvalues of noise alone. A is a
    matrix of squares, so the estimate is kept above 0.
    """
    if noise == 0.0:
        return np.maximum(values, 0.0)
    x = values / noise
    gaps = x[:, None] - x[None, :]
    forms = x - 2 * np.sum(gaps / (gaps**2 + 1), axis=1)
    return np.asarray(noise * np.maximum(forms, _LEAST))


def _filter(m: FloatArray, level: float) -> FloatArray:
    """Return m/(m^2 + level), and 0 where m is nothing but rounding."""
    real = m > len(m) * 1e-16 * float(np.max(m, initial=0.0))
    safe = np.where(real, m, 1.0)
    return np.where(real, 1.0 / (safe + level / safe), 0.0)


def _noise_to_prior(
    g: FloatArray, m: FloatArray, noise: float, cross_noise: float
) -> tuple[float, bool, float]:
    """Return var(e)/rho^2 for the rho^2 under which g_i ~ N(0, rho^2 m_i^2 + var(e)) is likeliest.

    Beside it whether that is clearly likelier than rho = 0: whether more than noise was seen; and
    rho^2 itself (0 without noise, where nothing is left open).
    """
    if noise == 0.0:
        return 0.0, True, 0.0
    d, unit = len(g), cross_noise / noise  # so rho is in units of (noise of B) / (noise of A)
    z, ratio = g / cross_noise, np.minimum(m / noise, 1e100)  # squares stay finite
    variances = 1 + _GRID[:, None] * (ratio**2 + d)
    loss = np.sum(z**2 / variances + np.log(variances), axis=1)
    rho2 = float(_GRID[np.argmin(loss)]) * unit**2
    seen = bool(loss[0] - loss.min() > _CLEAR)  # the smallest rho stands for 0
    return (cross_noise**2 + d * rho2 * noise**2) / rho2, seen, rho2
