"""How likely a search for a scale sees nothing."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.place import chances_of_levels, clip_levels, find_scale, private_clip_level
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


@pytest.mark.thorough
@pytest.mark.parametrize(("goal", "noise"), [(40.0, 60.0), (40.0, 1e-9), (300.0, 200.0)])
def test_chances_of_levels_are_those_of_searches(goal, noise):
    """The level that a search ends at, over noise: as often as it is said to."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.standard_normal(500) - 3)
    grid = clip_levels(1.0)
    above = np.array([np.sum(sizes > level) for level in grid])
    chances = chances_of_levels(grid, above, goal, noise)
    found = np.zeros(len(grid))

    def count(threshold, *, share):
        return Answer(np.sum(sizes > threshold) + noise * rng.standard_normal(), noise)

    for _ in range(3000):
        level = private_clip_level(count, 1.0, goal, 0.1)
        found[np.argmin(np.abs(grid - level))] += 1 / 3000
    assert chances.sum() == pytest.approx(1.0)
    assert np.abs(np.cumsum(found - chances)).max() < 6 * 0.5 / math.sqrt(3000)
