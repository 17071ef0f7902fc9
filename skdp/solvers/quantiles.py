"""A private quantile by noisy binary search on a public grid."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["NORM_GRID", "AsksQuantile", "private_quantile"]

FloatArray = NDArray[np.float64]

# Powers of sqrt(2) from 2**-40 to 2**40: wide enough for any unit that people measure in.
NORM_GRID: FloatArray = 2.0 ** (np.arange(-80, 81) / 2)


class PublicAnswer(Protocol):
    """A public array."""

    @property
    def value(self) -> FloatArray:
        """The noisy value."""
        ...


class AsksQuantile(Protocol):
    """What the search asks for: a noisy sum of (1[norm <= threshold] - quantile)."""

    def norms_below(self, threshold: float, quantile: float, *, share: float) -> PublicAnswer:
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
