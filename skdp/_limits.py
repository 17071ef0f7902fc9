"""What several packages share: types of arrays, tolerances for rounding and noise, block sizes.

Block sizes limit memory only; results do not depend on them.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
IndexArray: TypeAlias = NDArray[np.intp]

WIDER: Final = 1 + 1e-9  # factor that covers the float errors of norms, sums and formulas
ROUNDING: Final = math.ulp(0.5)  # relative error of one float operation: 2**-53
CLEAR: Final = 2.0  # a released number counts as significant from so many noise deviations on
DEVIATION: Final = 1.4826  # standard deviation of a normal variable over its median distance
NEGLIGIBLE: Final = 1e-12  # relative size below which a number is rounding error, or treated as 0
EXACT: Final = 2.0**52  # integers below it, and sums of two of them, are exact in floats
LARGEST: Final = 2**62  # integers are clipped to it: a sum of two fits int64
BLOCK: Final = 2**20  # numbers of a block: enough for BLAS, little memory next to the data
MEMORY: Final = 190_000_000  # bytes that one part of a fit may cache to save time
CACHED: Final = 2**17  # numbers of a block that is read several times: they fit a processor's cache
MOST_DENSE: Final = 4000  # largest number of columns of a Gram matrix that is stored as an array
# A bound on what a unit adds lies between: beyond these, its square loses all digits.
SMALLEST_SIZE, LARGEST_SIZE = 1e-60, 1e60
# Weights in a joint release of sums: of a square next to a value, the largest for which a replaced
# value moves both together by no more than it moves the value alone; of the count, relative to the
# longest row.
SQUARE_WEIGHT: Final = 1.66
COUNT_WEIGHT: Final = 0.5
CORE_SCALE: Final = 3.0  # divides the part of a product inside the subspace that it is taken at
GRAM_FEATURES: Final = 1500  # with more columns a d x d release is too slow and too noisy


def tangent_bound(clip_norm: float) -> float:
    """Return the largest ||a|| ||b|| over rows of norm C, split as in `skdp.queries.sums`.

    With t = ||a||^2 / C^2 it is C^2 sqrt(t (1 - t + t/s^2)), largest at t = 1/(2(1 - 1/s^2)), which
    lies in [0, 1] for s = CORE_SCALE >= sqrt(2): C^2 / (2 sqrt(1 - 1/s^2)).
    """
    return clip_norm**2 / (2 * math.sqrt(1 - CORE_SCALE**-2))
