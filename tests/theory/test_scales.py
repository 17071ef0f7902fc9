"""How likely a search for a scale sees nothing."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.scales import find_scale
from skdp.theory import scale_doubt


@pytest.mark.thorough
@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_doubt_of_a_scale(spread):
    """The curve against searches, between two and five deviations."""
    rng, n = np.random.default_rng(0), 1000
    for deviations in (2.0, 3.0, 4.0, 5.0):
        missed = 0
        for _ in range(60):
            numbers = np.sort(np.exp(spread * rng.standard_normal(n)))
            noise = n / deviations

            def rank(threshold, *, share, numbers=numbers, noise=noise):
                below = np.searchsorted(numbers, threshold, side="right")
                return Answer(below - n / 2 + noise * rng.standard_normal(), noise)

            missed += not find_scale(rank, 1.0).found
        expected = scale_doubt(deviations, 1.0)
        assert abs(missed / 60 - expected) < 0.1 + 3 * math.sqrt(expected * (1 - expected) / 60)
