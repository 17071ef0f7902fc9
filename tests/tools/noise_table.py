"""Builds the table of the discrete Gaussian: ``PYTHONPATH=. python tests/tools/noise_table.py``."""

from decimal import Decimal, localcontext
from itertools import accumulate, pairwise

import numpy as np

from skdp.privacy.noise.integers import TABLE_BITS, TABLE_PATH, TABLE_SIGMA, precise


def gaussian_table():
    """Return rows (high, low 63 bits) of floor(2^126 F(k)), k = 0, 1, ... while they increase.

    F is the law of |N_Z(300)| with half the weight at zero. The first repeated threshold ends
    the table (at 12.7 standard deviations): every value below the cut keeps a positive
    probability, and the value at the cut takes the tail, about 2^-121.
    """
    with localcontext(precise(100)) as context:
        squares = (Decimal(k * k) / (2 * TABLE_SIGMA**2) for k in range(24 * TABLE_SIGMA))
        weights = [context.exp(-square) for square in squares]
        weights[0] /= 2
        factor = Decimal(2**TABLE_BITS) / sum(weights)
        sums = [int(total * factor) for total in accumulate(weights)]
    increasing = sums[: 1 + next(k for k, (a, b) in enumerate(pairwise(sums)) if a == b)]
    return np.array([divmod(t, 2 ** (TABLE_BITS // 2)) for t in increasing], dtype=np.uint64).T


if __name__ == "__main__":
    np.save(TABLE_PATH, gaussian_table(), allow_pickle=False)
