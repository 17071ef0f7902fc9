"""The scale of private numbers, from few noisy ranks. Everything but the ranks is free.

A rank is the noisy sum, over the numbers that are not zero, of 1/2 below a threshold and -1/2 above
it. The threshold is always the median of what the released ranks leave likely, octave by octave, so
that seven of them find one octave among ninety. What they leave likely also says how sure that is:
a doubt that is public. Ties go downwards: clipping at a level that is too low shortens signal and
noise alike, one that is too high drowns the signal.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from skdp.answer import Answer
from skdp.solvers.likely import FARTHEST, OCTAVES, QUESTIONS, Bisection, Search

FloatArray = NDArray[np.float64]
_LOW = 0.25  # where nothing was found the lower quartile of what is likely is taken
_STAY = 0.01  # of the posterior of a place lies to one side of where it was: it has moved
_LEVELS, _LEVELS_PER_OCTAVE = 80, 4  # of a clip level, downwards
# Clip levels upwards, in octaves: the steps are wide where few rows are left. Questions among them.
_RAISES, RAISING = (*np.arange(0, 6, 0.5), 6.5, 7.5, 9.0, 10.5), 4
LEVEL_DOUBT = 2.0  # deviations of a count, that a level is raised for by half an octave
_BEYOND = 2.5  # levels: rows so much longer may hold what shortened ones no longer show
# For more in the steps before: a mistake in the first one makes noise 256 times as large.
_LEVEL_DOUBTS = (3.5, 3.0, 2.5, LEVEL_DOUBT)
_FINER = 2  # questions about parts of an octave
# Deviations: one raise by mistake costs more accuracy than one left out, and far ones cost most.
_RAISE_DOUBTS = (4.5, 4.0, 3.0)
_NEVER = 1e-9  # chance of a way through a search that is not followed
_FAR, _OUTSIDE = 4.0, 0.07  # of the numbers may lie so many scales outside


class AsksRank(Protocol):
    """A noisy rank of a threshold among the numbers that are not zero."""

    def __call__(self, threshold: float, *, share: float) -> Answer:
        """Return half of the numbers at most the threshold minus half of those above it."""
        ...


class AsksRanks(Protocol):
    """Noisy ranks, of one threshold in each column."""

    def __call__(self, thresholds: FloatArray, *, share: float) -> Answer:
        """Return the rank of each threshold among the entries of its column."""
        ...


class AsksCount(Protocol):
    """A noisy count of the numbers above a threshold."""

    def __call__(self, threshold: float, *, share: float) -> Answer:
        """Return the noisy count."""
        ...


class Scale(NamedTuple):
    """A released scale.

    Attributes
    ----------
    value : float or array
        The end of the octave that holds the median; where it was not found a low guess.
    found : bool or array of bool
        Whether the released ranks leave little doubt.
    needed : int
        About how many numbers that are not zero would show it, under this noise.
    noise_scale : float
        Of one rank.
    """

    value: FloatArray
    found: NDArray[np.bool_]
    needed: int
    noise_scale: float = 0.0


def _one(rank: AsksRank) -> AsksRanks:
    """Return ranks of a single column."""

    def ranks(thresholds: FloatArray, *, share: float) -> Answer:
        return rank(float(thresholds[0]), share=share)

    return ranks


def find_scale(rank: AsksRank, share: float, *, near: float = 1.0) -> Scale:
    """Return the scale of some private numbers; see `find_scales`."""
    found = find_scales(_one(rank), 1, share, near=near)
    return found._replace(value=found.value[0], found=found.found[0])


def find_scales(
    ranks: AsksRanks,
    d: int,
    share: float,
    *,
    near: float | FloatArray = 1.0,
) -> Scale:
    """Return the scale of each of d columns, whose ranks come together in a fixed number of steps.

    `near` is a public guess, from which half of the prior falls off by six octaves. Columns
    share what they show: one too short to be found by itself takes the scale that most have.
    """
    unit = np.ldexp(1.0, np.rint(np.log2(np.broadcast_to(near, d))).astype(int))
    search = Search(d)
    for _ in range(QUESTIONS):
        asked = search.question()
        thresholds = unit * np.ldexp(1.0, OCTAVES[asked])
        search.learn(asked, ranks(thresholds, share=share / QUESTIONS))
    middle, found = search.result()
    octave = np.where(found, middle, search.quantile(_LOW))
    value = unit * np.ldexp(1.0, OCTAVES[octave])
    return Scale(value, found, search.needed, search.noise_scale)


class Places(NamedTuple):
    """Released medians.

    Attributes
    ----------
    at : array of shape (d,)
        Steps from where they were looked for.
    narrow : array of bool, shape (d,)
        Whether little doubt is left about the step.
    enclosed : array of bool, shape (d,)
        Whether clear ranks say that it lies above one threshold and below another.
    """

    at: FloatArray
    narrow: NDArray[np.bool_]
    enclosed: NDArray[np.bool_]


def find_places(ranks: AsksRanks, d: int, share: float, *, stay: float = _STAY) -> Places:
    """Return the median of each column in steps from a place, and how certain it is.

    `ranks` takes whole numbers of steps, up to `FARTHEST` to each side. A median that may as well
    be here stays: entries are often alike, and next to what most of them are lies nothing. It moves
    if less than `stay` of what is likely lies on one side of here (0.5: always).
    """
    likely = Bisection(d)
    for _ in range(QUESTIONS):
        asked = likely.question()
        likely.learn(asked, ranks(OCTAVES[asked].astype(float), share=share / QUESTIONS))
    middle, narrow = likely.result()
    moved = (likely.quantile(stay) > FARTHEST) | (likely.quantile(1 - stay) < FARTHEST)
    return Places(np.where(moved, OCTAVES[middle], 0.0), narrow, likely.enclosed())


def finer_scale(rank: AsksRank, scale: Scale, share: float, *, questions: int = _FINER) -> float:
    """Return where in its octave the median lies; see `finer_scales`."""
    column = Scale(np.atleast_1d(scale.value), np.atleast_1d(scale.found), scale.needed)
    return float(finer_scales(_one(rank), column, share, questions=questions)[0])


def finer_scales(
    ranks: AsksRanks, scale: Scale, share: float, *, questions: int = _FINER
) -> FloatArray:
    """Return where in its octave each median lies, to an eighth of the octave's end by default.

    A wrong answer leads to another part of the octave, at worst: nothing has to stand clear.
    """
    low, high = np.full(len(scale.value), 0.5), np.ones(len(scale.value))
    for _ in range(questions):
        middle = (low + high) / 2
        below = ranks(scale.value * middle, share=share / questions)
        half = below.value >= 0
        low, high = np.where(half, low, middle), np.where(half, middle, high)
    return np.asarray(np.where(scale.found, scale.value * high, scale.value))


def raised_scales(
    ranks: AsksRanks, scales: FloatArray, share: float, bits: int = len(_RAISE_DOUBTS)
) -> FloatArray:
    """Return scales that are larger where many of the numbers lie far outside.

    A half that is nearly alike, beside others that are not, has a scale of its own: that of half of
    the numbers says nothing of the rest. A step up is four times, of 2^bits - 1; a share of the
    numbers that does not stand clear of its noise raises nothing.
    """
    doubts = (*_RAISE_DOUBTS[:1] * (bits - len(_RAISE_DOUBTS)), *_RAISE_DOUBTS)
    part = share / (1 + bits)
    total = ranks(scales * np.ldexp(1.0, 2 * FARTHEST), share=part)
    low = np.zeros(len(scales), int)
    high = np.full(len(scales), 2**bits - 1)
    for doubt in doubts:
        middle = (low + high) // 2
        below = ranks(scales * np.ldexp(_FAR, 2 * middle), share=part)
        above = total.value - below.value
        goal = 2 * _OUTSIDE * total.value + doubt * math.sqrt(2) * total.noise_scale
        few = above <= goal
        low, high = np.where(few, low, middle + 1), np.where(few, middle, high)
    return np.asarray(scales * np.ldexp(1.0, 2 * high))


def private_clip_level(count_above: AsksCount, largest: float, goal: float, share: float) -> float:
    """Return the smallest level of a public grid up to `largest` above which about `goal` rows lie.

    The rows above a level are those that clipping shortens. A goal in proportion to the noise makes
    the harm of clipping stay in proportion to the noise that it saves, and vanish with it.
    """
    return _lowest(count_above, clip_levels(largest), goal, share)[0]


def clip_levels(largest: float) -> FloatArray:
    """Return the public grid of clip levels up to `largest`, upwards."""
    return np.asarray(largest * 2.0 ** (-np.arange(_LEVELS, -1, -1.0) / _LEVELS_PER_OCTAVE))


def chances_of_levels(grid: FloatArray, above: FloatArray, goal: float, noise: float) -> FloatArray:
    """Return how likely `private_clip_level` ends at each level, where so many rows lie above.

    `noise` is that of one count.
    """
    chances = np.zeros(len(grid))
    open_ends = [(0, len(grid) - 1, 1.0)]
    for _ in range(_questions(grid)):
        ends = []
        for low, high, chance in open_ends:
            middle = (low + high) // 2
            lower = chance * float(ndtr((goal - above[middle]) / noise))
            ends += [(low, middle, lower), (min(middle + 1, high), high, chance - lower)]
        open_ends = [end for end in ends if end[2] > _NEVER]
    for _, high, chance in open_ends:
        chances[high] += chance
    return np.asarray(chances / chances.sum())


class Level(NamedTuple):
    """A released clip level.

    Attributes
    ----------
    value : float
        The level.
    beyond : float
        How many rows may be several times longer, by the counts that were released on the way: that
        many, and two deviations of the noise.
    """

    value: float
    beyond: float


def raised_level(count_above: AsksCount, lowest: float, goal: float, share: float) -> Level:
    """Return the smallest level from `lowest` upwards above which about `goal` rows lie.

    A count that does not stand clear of its noise raises nothing.
    """
    grid = lowest * 2.0 ** np.array(_RAISES)
    level, asked = _lowest(count_above, grid, goal, share, _LEVEL_DOUBTS)
    far = [most for threshold, most in asked if threshold >= _BEYOND * level] or [asked[0][1]]
    return Level(level, max(0.0, min(far)))


def _lowest(
    count_above: AsksCount,
    grid: FloatArray,
    goal: float,
    share: float,
    doubts: tuple[float, ...] = (),
) -> tuple[float, list[tuple[float, float]]]:
    """Return the level, and of each threshold how many numbers may lie above."""
    low, high, asked = 0, len(grid) - 1, []
    steps = _questions(grid)
    for _, doubt in zip_longest(range(steps), doubts, fillvalue=0.0):
        middle = (low + high) // 2
        above = count_above(float(grid[middle]), share=share / steps)
        asked.append((float(grid[middle]), float(above.value) + LEVEL_DOUBT * above.noise_scale))
        if above.value <= goal + doubt * above.noise_scale:
            high = middle
        else:
            low = min(middle + 1, high)
    return float(grid[high]), asked


def _questions(grid: FloatArray) -> int:
    return math.ceil(math.log2(len(grid)))
