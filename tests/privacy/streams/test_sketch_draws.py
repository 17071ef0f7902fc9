"""Entries of random sketches, as they are drawn."""

import math

import mpmath as mp
import pytest

from skdp.privacy.streams.sketches import COARSE, FINE, gaussian_scale


def coarse_law(divisor):
    """Exact probabilities of |round(K / divisor)|, K a discrete Gaussian of deviation 300."""
    weights = [mp.e ** (-((mp.mpf(k) / 300) ** 2) / 2) for k in range(4000)]
    total = weights[0] + 2 * sum(weights[1:])
    law = [mp.mpf(0)] * (4000 // divisor + 2)
    for k, w in enumerate(weights):
        law[(2 * k + divisor) // (2 * divisor)] += (w if k == 0 else 2 * w) / total
    return law


def least_margin(divisor, scale):
    """Smallest relative gap of the stop-loss functions over all thresholds.

    That of the integers is linear in each cell, that of the normal variable convex with slope
    -2 Phi(-a/s): the gap is smallest where the slopes agree, or at an end.
    """
    law, least = coarse_law(divisor), mp.inf
    above = excess = mp.mpf(0)
    for i in range(len(law) - 2, -1, -1):
        above += law[i + 1]
        excess += above
        turn = min(max(-scale * mp.mpf(math.sqrt(2)) * mp.erfinv(above - 1), i), i + 1)
        for a in (mp.mpf(i), mp.mpf(i + 1), turn):
            normal = 2 * (scale * mp.npdf(a / scale) - a * mp.ncdf(-a / scale))
            if normal > mp.mpf(10) ** -40:  # beyond the cut of the table
                least = min(least, (normal - (excess - (a - i) * above)) / normal)
    return least


@pytest.mark.deep
@pytest.mark.parametrize("divisor", [FINE, COARSE])
def test_integer_entries_are_smaller_in_convex_order(divisor):
    with mp.workdps(60):
        assert least_margin(divisor, mp.mpf(gaussian_scale(divisor))) > 0
        small = mp.sqrt((mp.mpf(300) / divisor) ** 2 + mp.mpf("0.1"))
        assert least_margin(divisor, small) < 0  # the test can fail
