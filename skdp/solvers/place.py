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
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr

from skdp.answer import Answer

# What noisy ranks leave likely of a median, step by step of a grid. Pure and public.


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
QUESTIONS = 7
FARTHEST = 46  # octaves: a median of 1e-12 or 1e12, and a little more
OCTAVES = np.arange(-FARTHEST, FARTHEST + 1)
_WIDTHS = (0.1, 0.4, 1.2, 3.0)  # how far numbers spread about their median, in octaves
_FALL = 6.0  # octaves: half of the prior falls off from 1 like this, as units of measurement do
_NOTHING = 2.0  # what a column of few numbers adds to the likelihood of each octave
_NEAR = 2  # octaves that a found median may be off
_SURE = 0.88
_ASIDE = np.array([0, -1, 1, -2, 2, -3, 3, -4])  # octaves: the first that was not asked about
_APART, _GOLDEN = 0.4, (math.sqrt(5) - 1) / 2
_SCATTER = (0.5, 2.0, 6.0)  # of columns about their common scale, in octaves
_EXACT = 0.01  # of a number: stands for the noise scale where there is no noise
_LEAST = -200.0  # logarithm of a likelihood: smaller ones are slow and say no more
_BLOCK = 128  # columns at a time
_TOGETHER = 64  # numbers of at least .001 whose product is a normal float
_CLEAR_RANK = 3.0  # deviations from which a rank says on which side of a threshold the median lies
_ENOUGH = 4.2  # numbers, in deviations of the noise of one rank, from which a median is found

# Rank of a threshold among numbers whose median lies i - len(OCTAVES) octaves below it.
_GAPS = np.arange(-len(OCTAVES), len(OCTAVES) + 1) + 0.5
_RANKS = np.stack([expit(_GAPS / width) - 0.5 for width in _WIDTHS])


class _Likely:
    """What the released ranks leave likely, for each column and step of the grid."""

    _apart = 0.0

    def __init__(self, d: int, prior: FloatArray) -> None:
        self._asked: list[IntArray] = []
        self._posterior = np.tile(prior, (d, 1))

    def quantile(self, q: Any) -> IntArray:
        """Return the step of each column below which q of the posterior lies."""
        reached = self._posterior.cumsum(axis=1) >= np.reshape(q, (-1, 1)) * (1 - 1e-12)
        return np.asarray(reached.argmax(axis=1))

    def question(self) -> IntArray:
        """Return the next threshold of each column: near its median, not the same for all.

        Columns that share what they show learn more of it from different thresholds. At the very
        median an answer is that of an empty column: no threshold is asked about twice.
        """
        d, left = len(self._posterior), 1 - len(self._asked) / QUESTIONS
        apart = np.arange(d) * _GOLDEN % 1 - 0.5 if d > 1 else np.zeros(1)
        middle = self.quantile(0.5 + self._apart * left * apart)
        near = np.minimum(np.maximum(middle[:, None] + _ASIDE, 0), len(OCTAVES) - 1)
        if not self._asked:
            return np.asarray(near[:, 0])
        known = (np.stack(self._asked)[:, :, None] == near).any(axis=0)
        return np.asarray(near[np.arange(d), known.argmin(axis=1)])

    def result(self) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the median of what is likely, and whether that is narrow."""
        middle = self.quantile(0.5)
        off = np.abs(np.arange(len(OCTAVES)) - middle[:, None])
        return middle, np.asarray(np.sum(self._posterior, axis=1, where=off <= _NEAR) > _SURE)


class Bisection(_Likely):
    """Medians of columns that are known to hold numbers, whatever their distribution.

    A median lies at or below a threshold with the chance that the rank without its noise is
    positive.
    """

    def __init__(self, d: int) -> None:
        super().__init__(d, np.full(len(OCTAVES), 1 / len(OCTAVES)))
        self._logs = np.zeros((d, len(OCTAVES)))
        self._lowest, self._highest = np.zeros(d), np.zeros(d)  # ranks, in deviations

    def enclosed(self) -> NDArray[np.bool_]:
        """Return whether clear ranks lie on both sides of the median."""
        return (self._lowest < -_CLEAR_RANK) & (self._highest > _CLEAR_RANK)

    def question(self) -> IntArray:
        """Return the next threshold of each column; the last one looks for the other side.

        A median next to the first thresholds is come upon from one side alone, and seems to lie
        beyond the grid.
        """
        asked = super().question()
        if len(self._asked) < QUESTIONS - 1:
            return asked
        above = (self._highest <= _CLEAR_RANK) & (self._lowest < -_CLEAR_RANK)
        below = (self._lowest >= -_CLEAR_RANK) & (self._highest > _CLEAR_RANK)
        middle = self.quantile(0.5)
        asked = np.where(above, (middle + len(OCTAVES)) // 2, asked)
        return np.asarray(np.where(below, middle // 2, asked))

    def learn(self, asked: IntArray, answer: Answer) -> None:
        """Take in one more answer for each column."""
        self._asked.append(asked)
        ranks = np.atleast_1d(answer.value) / max(answer.noise_scale, _EXACT)
        self._lowest = np.minimum(self._lowest, ranks)
        self._highest = np.maximum(self._highest, ranks)
        z = ranks[:, None]
        below = np.arange(len(OCTAVES)) <= asked[:, None]
        self._logs += np.where(below, log_ndtr(z), log_ndtr(-z))
        self._logs -= self._logs.max(axis=1, keepdims=True)
        self._posterior = _normalised(np.exp(np.maximum(self._logs, _LEAST)))


class Search(_Likely):
    """The scales of columns, of which some may be empty, and which share what they show."""

    _apart = _APART

    def __init__(self, d: int) -> None:
        mild = np.exp(-np.abs(OCTAVES) / _FALL)
        self._base = 0.5 / len(OCTAVES) + 0.5 * mild / mild.sum()
        super().__init__(d, self._base)
        self.noise_scale = 0.0
        # Sums over the answers so far of f^2 and f a, for each width, column and octave.
        self._squares = np.zeros((len(_WIDTHS), d, len(OCTAVES)))
        self._products = np.zeros_like(self._squares)

    @property
    def needed(self) -> int:
        """Return about how many numbers that are not zero would be found under this noise."""
        return math.ceil(_ENOUGH * self.noise_scale)

    def learn(self, asked: IntArray, answer: Answer) -> None:
        """Take in one more answer for each column."""
        self.noise_scale = noise = max(answer.noise_scale, _EXACT)
        self._asked.append(asked)
        scaled = (np.atleast_1d(answer.value) / noise)[:, None]
        likelihood = np.empty_like(self._posterior)
        for some in _blocks(len(asked)):
            gaps = asked[some, None] - np.arange(len(OCTAVES)) + len(OCTAVES)
            f = _RANKS.take(gaps, axis=1)
            self._products[:, some] += f * scaled[some]
            self._squares[:, some] += np.multiply(f, f, out=f)
            logs = self._log_likelihood(some)
            logs -= logs.max(axis=1, keepdims=True)
            np.exp(np.maximum(logs, _LEAST, out=logs), out=likelihood[some])
        self._posterior = _pooled(likelihood, self._base)

    def _log_likelihood(self, columns: slice) -> FloatArray:
        """Return log P(answers | octave) of some columns, summed over widths and counts.

        An answer is N f + noise, f the logistic rank of its threshold. For N whose logarithm is
        uniform the sum over N is sqrt(2 pi) exp(z^2/2)/z with z = f'a/|f|, once that is clear; a
        column that shows nothing adds as much to every octave.
        """
        products = np.maximum(self._products[:, columns], 0.0)
        logs = products * products / self._squares[:, columns]
        roots = np.sqrt(1 + logs)
        logs *= 0.5
        largest = np.max(logs, axis=0)
        logs -= largest
        likely = np.exp(logs, out=logs)
        likely /= roots
        return np.asarray(largest + np.log(likely.sum(axis=0) + _NOTHING * np.exp(-largest)))


def _pooled(likelihood: FloatArray, base: FloatArray) -> FloatArray:
    """Return the posterior of each column, for scales that scatter about a common one.

    The common scale has the prior `base`; how far columns scatter about it is not known either.
    """
    if len(likelihood) == 1:
        return _normalised(likelihood * base)
    totals = likelihood @ _KERNELS  # (columns, spreads and common scales)
    logs = _log_product(totals).reshape(len(_SCATTER), -1) + np.log(base)
    weights = np.exp(logs - logs.max())
    weights = (weights / weights.sum()).ravel()
    posterior = likelihood
    for some in _blocks(len(likelihood)):
        posterior[some] *= np.divide(weights, totals[some], out=totals[some]) @ _KERNELS.T
    return _normalised(posterior)


def _blocks(n: int) -> list[slice]:
    return [slice(i, i + _BLOCK) for i in range(0, n, _BLOCK)]


def _log_product(rows: FloatArray) -> FloatArray:
    """Return the sum of logarithms of rows: few are taken, as products of some stay floats.

    What a kernel leaves of a likelihood with the maximum 1 is at least .1 / 93.
    """
    some = range(0, len(rows), _TOGETHER)
    return np.asarray(sum(np.log(rows[i : i + _TOGETHER].prod(axis=0)) for i in some))


def _kernel(spread: float) -> FloatArray:
    """P(octave of a column | common octave), in columns; one in ten may lie anywhere."""
    near = np.exp(-np.abs(OCTAVES[:, None] - OCTAVES) / spread)
    return np.asarray(0.9 * near / near.sum(axis=0) + 0.1 / len(OCTAVES))


_KERNELS = np.hstack([_kernel(spread) for spread in _SCATTER])


def _normalised(rows: FloatArray) -> FloatArray:
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


_LOW = 0.25  # where nothing was found the lower quartile of what is likely is taken
_STAY = 0.01  # of the posterior of a place lies to one side of where it was: it has moved
_LEVELS, _LEVELS_PER_OCTAVE = 80, 4  # of a clip level, downwards
# Clip levels upwards, in octaves: the steps are wide where few rows are left. Questions among them.
_RAISES, RAISING = (*np.arange(0, 6, 0.5), 6.5, 7.5, 9.0, 10.5), 4
# Deviations of a count that raises a level: more in the first steps, where a mistake makes noise
# 256 times as large, than in the last, for half an octave.
_LEVEL_DOUBTS = (3.5, 3.0, 2.5, 2.0)
_FINER = 2  # questions about parts of an octave
# Deviations: one raise by mistake costs more accuracy than one left out, and far ones cost most.
_RAISE_DOUBTS = (4.5, 4.0, 3.0)
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
    return _lowest(count_above, clip_levels(largest), goal, share)


def clip_levels(largest: float) -> FloatArray:
    """Return the public grid of clip levels up to `largest`, upwards."""
    return np.asarray(largest * 2.0 ** (-np.arange(_LEVELS, -1, -1.0) / _LEVELS_PER_OCTAVE))


def raised_level(count_above: AsksCount, lowest: float, goal: float, share: float) -> float:
    """Return the smallest level from `lowest` upwards above which about `goal` rows lie.

    A count that does not stand clear of its noise raises nothing.
    """
    return _lowest(count_above, lowest * 2.0 ** np.array(_RAISES), goal, share, _LEVEL_DOUBTS)


def _lowest(
    count_above: AsksCount,
    grid: FloatArray,
    goal: float,
    share: float,
    doubts: tuple[float, ...] = (),
) -> float:
    low, high = 0, len(grid) - 1
    steps = _questions(grid)
    for _, doubt in zip_longest(range(steps), doubts, fillvalue=0.0):
        middle = (low + high) // 2
        above = count_above(float(grid[middle]), share=share / steps)
        if above.value <= goal + doubt * above.noise_scale:
            high = middle
        else:
            low = min(middle + 1, high)
    return float(grid[high])


def _questions(grid: FloatArray) -> int:
    return math.ceil(math.log2(len(grid)))
