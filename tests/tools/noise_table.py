"""Builds the table of the discrete Gaussian: ``PYTHONPATH=. python tests/tools/noise_table.py``."""

from decimal import Decimal, localcontext

import numpy as np

from skdp.privacy.noise.integers import TABLE_BITS, TABLE_PATH, TABLE_SIGMA, precise, table_digest


def gaussian_thresholds():
    """Return floor(2^126 F(k)) for k = 0, 1, ... while the sequence increases strictly.

    F is the law of |N_Z(300)| with half the weight at zero. The first repeated threshold ends
    the table (at 12.7 standard deviations): every value below the cut keeps a positive
    probability, and the value at the cut takes the tail, about 2^-121.
    """
    with localcontext(precise(100)) as context:
        scale = Decimal(2 * TABLE_SIGMA**2)
        weights = [context.exp(-Decimal(k * k) / scale) for k in range(24 * TABLE_SIGMA)]
        weights[0] /= 2
        factor, total = Decimal(2**TABLE_BITS) / sum(weights), Decimal(0)
        thresholds = [-1]
        for weight in weights:
            total += weight
            threshold = int(total * factor)
            if threshold == thresholds[-1]:
                return thresholds[1:]
            thresholds.append(threshold)
    raise AssertionError("the thresholds never repeat")


def split_columns(thresholds):
    """Return rows (high 63 bits, low 63 bits) of 126-bit integers."""
    pairs = [divmod(t, 2 ** (TABLE_BITS // 2)) for t in thresholds]
    return np.array(pairs, dtype=np.uint64).T


if __name__ == "__main__":
    table = split_columns(gaussian_thresholds())
    np.save(TABLE_PATH, table, allow_pickle=False)
    print(f"{TABLE_PATH.name}: {table.shape}, sha256 {table_digest(table)}")
