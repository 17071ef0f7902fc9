"""What a fit learnt, from released values and known noise: fractions with standard errors.

The moment that is released inside a *public* subspace is unbiased there: its trace, over the
released total, estimates what share of the squares the subspace holds. Ratios sum to it, and
warnings follow from it. Pure functions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp._limits import CLEAR, NEGLIGIBLE, FloatArray
from skdp.answer import Answer

_GRID = 2.0 ** (np.arange(-120, 81) / 2)  # prior variances of a coefficient, in its natural unit


class ShareKept(NamedTuple):
    """A share that was kept.

    Attributes
    ----------
    share : float, or array
        Unbiased, so that it may lie below 0 or above 1.
    standard_error : float, or array
    """

    share: Any
    standard_error: Any

    def exceeds(self, chance: Any) -> Any:
        """Whether the share is clearly larger than what chance holds."""
        return self.share - chance > CLEAR * self.standard_error


def share_kept(held: Answer, total: Answer) -> ShareKept:
    """Return what share of a released total is held, to first order in the noise of both."""
    whole = max(float(total.value), total.noise_scale, 1e-300)
    share = float(held.value) / whole
    return ShareKept(share, math.hypot(held.noise_scale, share * total.noise_scale) / whole)


def calibration(
    moments: Answer, n_free: float, shifts: bool = True
) -> tuple[float, float, ShareKept, Answer, float]:
    """Return slope and shift of the best line for targets, what it explains, their mean and sd.

    `moments` are those of (prediction, target - prediction, 1), in one unit. A fit of p free
    numbers to the same n records has p/n of the rest by chance. Without an intercept the line goes
    through 0.
    """
    to_targets = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    G, noise = to_targets @ moments.value @ to_targets.T, max(moments.noise_scale, 1e-300)
    rows = max(float(G[2, 2]), noise)
    mean = G[:2, 2] / rows * shifts
    centred = G[:2, :2] - rows * np.outer(mean, mean)
    predicted, total = np.maximum(np.diagonal(centred), noise)
    covariance, residual = float(centred[0, 1]), total
    for _ in range(2):
        covariance = float(centred[0, 1]) - n_free * residual / rows
        residual = max(total - max(covariance, 0.0) ** 2 / predicted, 0.0)
    slope = max(covariance, 0.0) / predicted
    share = slope * (2 * covariance - slope * predicted) / total
    rest, less = 1 - share, 1 - slope  # rest = (less^2 p + 2 less c + r) / (p + 2 c + r)
    error = noise * math.hypot(share, math.sqrt(2.0) * (less - rest), less**2 - rest)
    kept = ShareKept(share, error / total)
    target_mean = Answer(mean[1:], noise / rows * shifts)
    shift = float(mean[1] - slope * mean[0])
    return slope, shift, kept, target_mean, math.sqrt(total / rows)


def nonnegative(values: FloatArray) -> FloatArray:
    """Return the nearest numbers that are not negative and have the same sum, or all 0.

    Noisy eigenvalues of what has none below 0: to cut them one by one would add to their sum.
    """
    total = float(values.sum())
    if total <= 0.0:
        return np.zeros_like(values)
    if not np.any(values < 0):
        return values
    falling = np.sort(values)[::-1]
    levels = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    return np.asarray(np.maximum(values - levels[np.flatnonzero(falling > levels)[-1]], 0.0))


def on_their_own(values: FloatArray, unit: Answer, mean_error: Answer) -> int:
    """Return how many decreasing values exceed 0, without one that the error of a mean explains.

    The error of a mean adds to one direction, which takes the place of another.
    """
    found = int(np.count_nonzero(values))
    if not found or mean_error.value == 0.0:
        return found
    smallest = float(values[found - 1])
    noise = math.hypot(smallest * unit.noise_scale, mean_error.noise_scale)
    return found - int(smallest * unit.value - mean_error.value <= CLEAR * noise)


def evidence(
    released: Any, g: FloatArray, m: FloatArray, few: FloatArray, error: float, *, pooled: bool
) -> tuple[FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the rho^2 of each target under which g_i ~ N(0, rho^2 m_i^2 + var(e)) is likeliest.

    See `solve_normal_equations`. Also return the results of two tests: whether a rho above 0
    explains g clearly better than noise and chance do, and whether it does so at all. Chance gives
    products of the same records with an unrelated target: their variance is m_i times what rho
    leaves of the target's square, and twice that in columns that were chosen by such products.

    A target also passes a test if its products with directions (`few`) clearly exceed chance. The
    same records made the directions, so what chance adds there follows from sums of columns. The
    first test takes half of it as its standard error; for the second it counts as exact. Codes of
    classes are tested together (`pooled`). With directions, their columns decide the second test
    only, because scores start from the directions.
    """
    # The means of the rows have noise too, which comes with those of the targets.
    noise, mean_noise = released.noise, released.sums_noise * released.target_mean
    units = np.hypot(released.cross_noise, mean_noise / (released.bias or math.inf))
    if noise == 0.0:
        return np.zeros(len(units)), *np.ones((2, len(units)), dtype=bool)
    ratio = np.minimum(m, 1e100 * noise) / noise  # alpha may be as large as numbers get
    losses = np.empty((2, len(units), len(_GRID)))
    P, parts, chosen = released.directions, np.zeros((3, len(units))), 1 + bool(len(few))
    used = _GRID * (ratio.sum() / max(released.weight, 1.0))
    for j, (unit, square) in enumerate(np.broadcast(units, released.square)):
        chance = np.maximum([-used, chosen * square / unit * (noise / unit) - used], 0.0)
        variances = 1 + chance[:, :, None] * ratio + _GRID[:, None] * (ratio**2 + error / noise**2)
        losses[:, j] = np.sum((g[:, j] / unit) ** 2 / variances + np.log(variances), axis=2)
    rho2 = _GRID[np.argmin(losses[0], axis=1)] * (units / noise) ** 2
    parts[:2] = np.sum(P * few, axis=0), np.sum((P * units) ** 2, axis=0)
    parts[2] = released.chance * released.square
    if pooled:
        losses[1], parts[:] = losses[1].sum(axis=0), parts.sum(axis=1, keepdims=True)
    shown, likely = (
        ShareKept(parts[0], np.sqrt(parts[1] + (known * parts[2]) ** 2)).exceeds(parts[2])
        for known in (0.5, 0.0)
    )
    # Without a signal the smallest prior variances are as good as each other, but for rounding.
    gain = losses[1, :, 0] * (1 - NEGLIGIBLE) - losses[1].min(axis=1)
    apart = pooled and len(few) > 0
    clearly = gain > 2  # by a factor of e; the smallest stands for 0
    return rho2, shown | (clearly & (not apart)), likely | (clearly if apart else gain > 0)
