"""Numbers that several rooms share: what rounding and noise may do, how large blocks may be.

Results do not follow from the sizes of blocks, which bound memory alone.
"""

from __future__ import annotations

import math
from typing import Final

WIDER: Final = 1 + 1e-9  # above the rounding of norms, sums and formulas in floats
ROUNDING: Final = math.ulp(0.5)  # of one operation with floats, in units of its result: 2**-53
CLEAR: Final = 2.0  # deviations of its noise from which on a number says something
DEVIATION: Final = 1.4826  # of normal numbers, over their median distance from the centre
NEGLIGIBLE: Final = 1e-12  # of its like: less is rounding, or may as well be; a share without noise
EXACT: Final = 2.0**52  # floats hold integers below it and sums of two, in any order
LARGEST: Final = 2**62  # integers are cut there: sums of two fit int64
BLOCK: Final = 2**20  # numbers held at a time: enough for BLAS, few next to the data
MEMORY: Final = 190_000_000  # bytes that one part of a fit keeps to save time
CACHED: Final = 2**17  # numbers of a block that is passed over often: they fit a processor's cache
MOST_DENSE: Final = 4000  # columns of a moment that is held as an array
GRAM_FEATURES: Final = 1500  # beyond it a d x d release costs more time and noise than it is worth
