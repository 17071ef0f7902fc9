"""What a fit learnt, from released values and known noise: a share kept, with its standard error.

The moment that is released inside a *public* subspace is unbiased there: its trace, over the
released total, estimates what share of the squares the subspace holds. Ratios sum to it, and
warnings follow from it. Pure functions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp._limits import CLEAR
from skdp.answer import Answer

FloatArray = NDArray[np.float64]


class Kept(NamedTuple):
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


def share_kept(held: Answer, total: Answer) -> Kept:
    """Return what share of a released total is held, to first order in the noise of both."""
    whole = max(float(total.value), total.noise_scale, 1e-300)
    share = float(held.value) / whole
    return Kept(share, math.hypot(held.noise_scale, share * total.noise_scale) / whole)


def trace_held(ritz: FloatArray, noise_scale: float) -> Answer:
    """Return the trace of a released symmetric matrix; `noise_scale` is that of its diagonal."""
    return Answer(np.trace(ritz), noise_scale * math.sqrt(len(ritz)))


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
    """Return how many of falling values, in a unit, are not 0, less one that a mean may have made.

    The error of a mean adds to one direction, which takes the place of another.
    """
    found = int(np.count_nonzero(values))
    if not found or mean_error.value == 0.0:
        return found
    smallest = float(values[found - 1])
    noise = math.hypot(smallest * unit.noise_scale, mean_error.noise_scale)
    return found - int(smallest * unit.value - mean_error.value <= CLEAR * noise)


def unused(
    found: int, asked: int, kept: Kept | None = None, chance: float = 0.0, positive: int = 0
) -> int:
    """Return how many of the components that were asked for tell nothing: all, a part, or none.

    `found` of them stand above the noise one by one. Where all together hold clearly more than as
    many directions by chance (`chance`), those are used that have a value left (`positive`).
    """
    if kept is not None and (chance >= 1.0 or kept.exceeds(chance)):
        found = max(found, positive)
    return asked - found
