"""Noisy binary search: the right grid point, and a number of questions that is fixed."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest

from skdp.solvers.quantiles import NORM_GRID, private_clip_level, private_quantile


class Answer(NamedTuple):
    value: float


class Norms:
    """Answers from norms, with noise if asked for; keeps the questions."""

    def __init__(self, norms, noise=0.0, seed=0):
        self.norms = np.asarray(norms)
        self.noise = noise
        self.rng = np.random.default_rng(seed)
        self.asked = []

    def norms_below(self, threshold, quantile, *, share):
        self.asked.append((threshold, share))
        below = np.count_nonzero(self.norms <= threshold) - quantile * len(self.norms)
        return Answer(below + self.noise * self.rng.standard_normal())

    def above(self, threshold, *, share):
        self.asked.append((threshold, share))
        count = np.count_nonzero(self.norms > threshold)
        return Answer(count + self.noise * self.rng.standard_normal())


class Script:
    """Answers with given signs, whatever is asked."""

    def __init__(self, signs):
        self.signs = list(signs)
        self.asked = []

    def norms_below(self, threshold, quantile, *, share):
        self.asked.append((threshold, share))
        return Answer(self.signs[len(self.asked) - 1])

    def above(self, threshold, *, share):
        self.asked.append((threshold, share))
        return Answer(self.signs[len(self.asked) - 1])


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_quantile_finds_the_first_grid_point_above(quantile, scale):
    norms = scale * np.random.default_rng(0).lognormal(size=2000)
    ask = Norms(norms)
    found = private_quantile(ask, quantile, 0.05)
    enough = [t for t in NORM_GRID if np.mean(norms <= t) >= quantile]
    assert found == enough[0]
    assert math.fsum(share for _, share in ask.asked) == pytest.approx(0.05)


def test_quantile_outside_the_grid():
    assert private_quantile(Norms(np.full(9, 1e30)), 0.9, 1.0) == NORM_GRID[-1]
    assert private_quantile(Norms(np.zeros(9)), 0.9, 1.0) == NORM_GRID[0]
    assert private_quantile(Norms([]), 0.9, 1.0) in NORM_GRID


def test_quantile_under_noise_is_near():
    norms = np.random.default_rng(1).lognormal(size=5000)
    found = [private_quantile(Norms(norms, 100.0, seed), 0.9, 1.0) for seed in range(20)]
    for t in found:
        assert np.mean(norms <= t * 1.5) >= 0.85
        assert np.mean(norms <= t / 1.5) <= 0.95


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 16])
def test_every_point_of_any_grid_can_be_found(size):
    grid = 2.0 ** np.arange(size)
    for i in range(size):
        assert private_quantile(Norms(np.full(4, grid[i])), 0.5, 1.0, grid) == grid[i]


@pytest.mark.parametrize("size", [2, 3, 5, 8, 9])
def test_quantile_asks_a_fixed_number_of_questions(size):
    grid = 2.0 ** np.arange(size)
    steps = math.ceil(math.log2(size))
    for signs in itertools.product([-1.0, 1.0], repeat=steps):
        ask = Script(signs)
        assert private_quantile(ask, 0.5, 1.0, grid) in grid
        assert [share for _, share in ask.asked] == [1.0 / steps] * steps
        assert all(threshold in grid for threshold, _ in ask.asked)


@pytest.mark.parametrize("goal", [0.0, 1.0, 30.0, 700.0])
def test_clip_level_leaves_about_the_goal_above(goal):
    norms = np.random.default_rng(2).uniform(0, 1, 1000) ** 2
    ask = Norms(norms)
    level = private_clip_level(ask.above, 1.0, goal, 0.1)
    assert np.count_nonzero(norms > level) <= goal
    next_lower = level * 2**-0.25
    assert np.count_nonzero(norms > next_lower) > goal
    assert math.fsum(share for _, share in ask.asked) == pytest.approx(0.1)


def test_clip_level_is_at_most_the_largest():
    assert private_clip_level(Norms(np.full(50, 5.0)).above, 2.0, 0.0, 1.0) == 2.0
    lowest = private_clip_level(Norms(np.zeros(50)).above, 2.0, 0.0, 1.0)
    assert lowest == pytest.approx(2.0 * 2**-20)
    everyone = private_clip_level(Norms(np.full(50, 1.0)).above, 2.0, 50.0, 1.0)
    assert everyone == pytest.approx(2.0 * 2**-20)  # the goal allows to shorten all


def test_clip_level_asks_a_fixed_number_of_questions():
    rng = np.random.default_rng(0)
    scripts = [np.full(7, -1e9), np.full(7, 1e9), *rng.choice([-1e9, 1e9], (200, 7))]
    asked = set()
    for signs in scripts:
        ask = Script(signs)
        assert 0 < private_clip_level(ask.above, 3.0, 5.0, 0.7) <= 3.0
        asked.add(tuple(share for _, share in ask.asked))
    assert asked == {(0.7 / 7,) * 7}
