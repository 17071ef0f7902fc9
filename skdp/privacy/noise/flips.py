"""Noise for binary arrays: each cell is flipped by itself, with one probability (a pure law).

The flips of n cells do not depend on what the cells hold, and most cells are not flipped. So their
places are drawn by the gaps between them, which are geometric: exactly, from `integer_geometric`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from skdp.privacy.noise.integers import LAPLACE_SCALE, integer_geometric
from skdp.privacy.noise.words import Words

IntArray = NDArray[np.int64]
MAX_FLIPS = 2e7  # expected number in one array: seconds and a few hundred megabytes
_SLIP = 1 + 1e-12  # float error of the rate, on the safe side


def flip_rate(epsilon: float) -> int:
    """Return the smallest a for which flips with probability 1 - exp(-a/2^30) are epsilon-DP.

    A cell that differs changes the probability of each outcome by a factor (1 - p)/p at most,
    which is e^epsilon for p = 1/(1 + e^epsilon), that is a = 2^30 log(1 + e^-epsilon).
    """
    rate = math.ceil(LAPLACE_SCALE * math.log1p(math.exp(-epsilon)) * _SLIP)
    if not flip_probability(rate) < 0.5:
        raise ValueError("The budget of a cell is too small to tell a flipped one from another.")
    return rate


def flip_probability(rate: int) -> float:
    """Return the probability of a flip, 1 - exp(-rate/2^30)."""
    return -math.expm1(-rate / LAPLACE_SCALE)


def flip_deviation(probability: float) -> float:
    """Return the standard deviation of the unbiased (y - p)/(1 - 2p) of one cell."""
    return math.sqrt(probability * (1 - probability)) / (1 - 2 * probability)


def draw_flips(words: Words, size: int, rate: int) -> IntArray:
    """Draw which of `size` cells are flipped: sorted places.

    Law: exact. The cells before the next flip are geometric with P(>= g) = exp(-rate g / 2^30),
    the law of floor(G / rate) for the G of `integer_geometric`. Words read: a function of the
    flips alone.
    """
    found: list[IntArray] = []
    place, probability = -1, flip_probability(rate)
    while place < size:
        expected = (size - place) * probability
        number = int(expected + 6 * math.sqrt(expected)) + 16
        gaps = integer_geometric(words, number) // rate
        # A gap beyond the end is as good as the end: sums stay far below 2^63.
        places = place + np.cumsum(np.minimum(gaps, size) + 1)
        found.append(places)
        place = int(places[-1])
    joined = np.concatenate(found)
    return joined[: int(np.searchsorted(joined, size))]


def flipped(ones: IntArray, flips: IntArray) -> IntArray:
    """Return the places that are in one of two sorted lists: the ones after flipping."""
    places = np.concatenate([ones, flips])
    places.sort(kind="stable")  # merges two sorted runs
    twice = np.flatnonzero(places[1:] == places[:-1])
    kept = np.ones(len(places), bool)
    kept[twice] = kept[twice + 1] = False
    return places[kept]
