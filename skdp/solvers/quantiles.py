"""A private quantile by noisy binary search on a public grid."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer

__all__ = ["NORM_GRID", "AsksCount", "AsksQuantile", "private_clip_level", "private_quantile"]

FloatArray = NDArray[np.float64]

# Powers of sqrt(2) from 2**-40 to 2**40: wide enough for any unit that people measure in.
NORM_GRID: FloatArray = 2.0 ** (np.arange(-80, 81) / 2)
_LEVELS = 80
_LEVELS_PER_OCTAVE = 4


class AsksCount(Protocol):
    """A noisy count of the rows whose size is above a threshold."""

    def __call__(self, threshold: float, *, share: float) -> Answer:
        """Return the noisy count."""
        ...


def private_clip_level(count_above: AsksCount, largest: float, goal: float, share: float) -> float:
    """Return the smallest level of a public grid above which about `goal` rows lie.

    The rows above a level are those that clipping shortens. A goal in proportion to the noise makes
    the harm of clipping stay in proportion to the noise that it saves, and vanish with it.
    """
    grid = largest * 2.0 ** (-np.arange(_LEVELS, -1, -1.0) / _LEVELS_PER_OCTAVE)
    low, high = 0, len(grid) - 1
    steps = math.ceil(math.log2(len(grid)))
    for _ in range(steps):
        middle = (low + high) // 2
        above = count_above(float(grid[middle]), share=share / steps)
        if above.value <= goal:
            high = middle
        else:
            low = min(middle + 1, high)
    return float(grid[high])


class AsksQuantile(Protocol):
    """What the search asks for: a noisy sum of (1[norm <= threshold] - quantile)."""

    def norms_below(self, threshold: float, quantile: float, *, share: float) -> Answer:
        """Return a negative number when the threshold is below the quantile."""
        ...


def private_quantile(
    ask: AsksQuantile, quantile: float, share: float, grid: FloatArray = NORM_GRID
) -> float:
    """Return a grid point near the quantile of the norms; the number of steps is fixed."""
    low, high = 0, len(grid) - 1
    steps = math.ceil(math.log2(len(grid)))
    for _ in range(steps):
        middle = (low + high) // 2
        below = ask.norms_below(float(grid[middle]), quantile, share=share / steps)
        if below.value >= 0:
            high = middle
        else:
            low = min(middle + 1, high)
    return float(grid[high])
